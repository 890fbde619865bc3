"""Tasks of images give the results of transformers' pipelines, and reject what is not an image."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from fusewire.cli.costs import show
from fusewire.engine import reading_lanes
from fusewire.engine.encoder import EncoderEngine, Request
from fusewire.engine.encoder_loop import EncoderLoop
from fusewire.errors import (
    CheckpointError,
    ConfigurationError,
    InvalidInput,
    OutOfMemory,
    Unavailable,
)
from fusewire.models import ImageModel, check_folder, read_config, tasks_of
from fusewire.models.text_tower import TextTower
from fusewire.models.whole_sequences import WholeSequenceModel
from fusewire.settings import EngineSettings
from fusewire.tasks import image_inputs
from fusewire.tasks.check_files import check_files
from fusewire.tasks.label import Label
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.api import test_image_texts, test_images
from tests.images import files
from tests.models.test_image_models import CLIP, saved
from tests.server.images import classifier as classifier_folder
from tests.server.images import clip as clip_folder
from tests.server.images import column, images, labels, photos
from tests.tolerance import BATCHED_VERSUS_ALONE, MODEL_FP32, PIPELINE_SCORE

NAMES = ["cat", "dogs", "a bird"]


def ask(engine: EncoderEngine, inputs, **parameters):
    [answer] = engine.answer([Request(inputs, parameters)])
    if isinstance(answer, Exception):
        raise answer
    return answer


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """folder(name): that of an image classifier, or of CLIP or SigLIP."""
    made = {}

    def folder(name):
        if name not in made:
            make = classifier_folder if name in test_images.PROCESSORS else clip_folder
            made[name] = make(tmp_path_factory.mktemp(name.split()[0]), name)
        return made[name]

    return folder


@pytest.fixture(scope="module")
def engines(folders):
    """engine(name, task): the engine of a folder."""
    made = {}

    def engine(name, task):
        if (name, task) not in made:
            made[name, task] = EncoderEngine(folders(name), task)
        return made[name, task]

    return engine


@pytest.fixture
def paths(tmp_path):
    found = []
    for index, (photo, kind) in enumerate(zip(photos(3), ("PNG", "PNG", "PNG"), strict=True)):
        (tmp_path / f"{index}.{kind.lower()}").write_bytes(photo)
        found.append(str(tmp_path / f"{index}.{kind.lower()}"))
    return found


def expect_scores(answer, names, wanted):
    """Asserts the scores of the pipeline, in the order of the names."""
    for label, scores, best in zip(answer["label"][:, 0], answer["scores"], wanted, strict=True):
        assert label.decode() == best[0]["label"]
        by_name = {each["label"]: each["score"] for each in best}
        theirs = [by_name[name] for name in names]
        np.testing.assert_allclose(scores, theirs, rtol=0, atol=PIPELINE_SCORE)


@pytest.mark.parametrize("name", test_images.PROCESSORS)
def test_labels_are_those_of_the_pipeline(engines, folders, paths, name):
    engine = engines(name, "label")
    pipeline = transformers.pipeline("image-classification", str(folders(name)), device="cpu")
    answer = ask(engine, images(*photos(3)))
    expect_scores(answer, engine.model.id2label, pipeline(paths, top_k=5))


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_zero_shot_labels_are_those_of_the_pipeline(engines, folders, paths, name):
    pipeline = transformers.pipeline(
        "zero-shot-image-classification", str(folders(name)), device="cpu"
    )
    wanted = pipeline(paths, candidate_labels=NAMES, hypothesis_template="a {}.")
    for _ in range(2):
        inputs = images(*photos(3)) | labels(3, *NAMES)
        answer = ask(engines(name, "label"), inputs, hypothesis_template="a {}.")
        expect_scores(answer, NAMES, wanted)


def test_each_image_may_have_labels_of_its_own_and_they_are_kept_a_while(engines, monkeypatch):
    monkeypatch.setattr("fusewire.tasks.label._MOST_KEPT", 2)
    engine = engines("clip", "label")
    task = engine._task
    assert isinstance(task, Label)
    one, two = photos(2)
    rows = np.array([[b"cat", b"dog"], [b"sea", b"cat"]], object)
    both = ask(engine, images(one, two) | {"candidate_labels": rows}, hypothesis_template="{}")
    assert len(task._known) == 2
    for row, photo in enumerate((one, two)):
        names = [name.decode() for name in rows[row]]
        alone = ask(engine, images(photo) | labels(1, *names), hypothesis_template="{}")
        np.testing.assert_allclose(
            both["scores"][row], alone["scores"][0], rtol=0, atol=BATCHED_VERSUS_ALONE
        )


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_images_and_texts_together_answer_as_alone(engines, name):
    engine = engines(name, "embed")
    texts = {"text_input": column(b"a cat", b"dogs")}
    asked = [images(*photos(2)), texts, images(photos(3)[2]), {"text_input": column(b"sea")}]
    together = engine.answer([Request(inputs) for inputs in asked])
    assert engine.last_counts.micro_batches == 1
    for inputs, answer in zip(asked, together, strict=True):
        assert isinstance(answer, dict), answer
        alone = ask(engine, inputs)["embedding"]
        np.testing.assert_allclose(answer["embedding"], alone, rtol=0, atol=BATCHED_VERSUS_ALONE)


def test_embeddings_of_images_and_texts_are_clips(engines, folders):
    model = transformers.CLIPModel.from_pretrained(folders("clip"))
    processor = transformers.CLIPImageProcessorPil.from_pretrained(folders("clip"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders("clip"))
    (given_images, texts) = photos(2), ["a cat", "two dogs"]
    decoded = [Image.open(files.io.BytesIO(photo)) for photo in given_images]
    with torch.inference_mode():
        pixels = processor(decoded, return_tensors="pt")
        of_images = model.get_image_features(**pixels).pooler_output.numpy()
        tokens = tokenizer(texts, padding=True, return_tensors="pt")
        of_texts = model.get_text_features(**tokens).pooler_output.numpy()
    engine = engines("clip", "embed")
    found = ask(engine, images(*given_images))["embedding"]
    np.testing.assert_allclose(found, of_images, rtol=0, atol=MODEL_FP32)
    found = ask(engine, {"text_input": column(*map(str.encode, texts))})["embedding"]
    np.testing.assert_allclose(found, of_texts, rtol=0, atol=MODEL_FP32)
    unit = ask(engine, images(*given_images), normalize=True)["embedding"]
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)


def test_images_of_later_micro_batches_are_read_while_earlier_ones_are_computed(
    folders, monkeypatch
):
    engine = EncoderEngine(folders("vit"), "label", EngineSettings(max_batch_tokens=10))
    events = []
    start, encode = engine._reader.start, engine.model.encode

    def started(queries):
        events.append("read")
        start(queries)

    def encoded(batch):
        events.append("compute")
        return encode(batch)

    monkeypatch.setattr(engine._reader, "start", started)
    monkeypatch.setattr(engine.model, "encode", encoded)
    answers = engine.answer([Request(images(photo)) for photo in photos(3)])
    assert all(isinstance(answer, dict) for answer in answers)
    # The first is read, the second ahead of its turn (and, as it was read already, again in its
    # turn), and so on.
    assert events == [*["read", "read", "compute"] * 2, "read", "compute"]


SOURCES = st.dictionaries(
    st.sampled_from(["image", "pixel_values", "candidate_labels", "input_ids"]),
    st.one_of(
        st.binary(max_size=40).map(lambda data: column(data)),
        st.binary(max_size=40).map(lambda data: column(photos(1)[0][:60] + data)),
        st.lists(st.integers(0, 4), min_size=0, max_size=5).map(
            lambda shape: np.zeros(shape, np.float32)
        ),
        st.lists(st.integers(0, 3), min_size=0, max_size=3).map(
            lambda shape: np.full(shape, b"x", object)
        ),
        st.just(np.zeros((1, 3, 14, 14), np.int64)),
    ),
    max_size=3,
)


@settings(max_examples=150)
@given(inputs=SOURCES)
def test_any_tensors_are_answered_or_refused_by_name(engines, inputs):
    for name in ("vit", "clip"):
        [answer] = engines(name, "label").answer([Request(inputs)])
        assert isinstance(answer, (dict, InvalidInput)), answer
        if isinstance(answer, InvalidInput):
            assert ": got " in str(answer)
            assert ", wanted " in str(answer)


def test_images_that_the_model_is_given_whole_are_bounded_together(engines, monkeypatch):
    monkeypatch.setattr(image_inputs, "MOST_MODEL_PIXELS", 3 * 42 * 42)
    engine = engines("vit", "label")
    ask(engine, images(*photos(3)))
    with pytest.raises(InvalidInput, match="together, wanted at most 5292; send fewer"):
        ask(engine, images(*photos(4)))


def test_an_image_without_memory_fails_alone(engines, monkeypatch):
    engine = engines("vit", "label")
    start = engine._reader._workers.start

    def failing(given, pixels):
        if given[0].endswith(b"large"):
            return lambda: (_ for _ in ()).throw(MemoryError)
        return start(given, pixels)

    monkeypatch.setattr(engine._reader._workers, "start", failing)
    photo = photos(1)[0]
    good, bad = engine.answer([Request(images(photo)), Request(images(photo + b"large"))])
    assert isinstance(good, dict)
    assert isinstance(bad, OutOfMemory)


def test_a_tokenizer_with_more_tokens_than_the_model_harms_no_other_request(engines, monkeypatch):
    engine = engines("clip", "embed")
    monkeypatch.setattr(engine.model.texts, "vocab_size", 3)
    good, bad = engine.answer(
        [Request(images(*photos(1))), Request({"text_input": column(b"cat")})]
    )
    assert isinstance(good, dict)
    assert isinstance(bad, InvalidInput)
    assert "the model's vocabulary" in str(bad)


@pytest.mark.parametrize("graphs", [False, True])
def test_the_encoders_of_images_and_of_texts_are_tuned_while_they_load(
    folders, monkeypatch, graphs
):
    tuned = []
    monkeypatch.setattr(
        WholeSequenceModel, "tune", lambda model, most: tuned.append((type(model), most))
    )
    EncoderEngine(folders("clip"), "embed", EngineSettings(graphs=graphs, max_batch_tokens=512))
    assert tuned == [(ImageModel, 512), (TextTower, 512)]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["vit", "clip", "siglip"])
def test_a_gpu_embeds_what_a_cpu_does(folders, engines, name):
    on_gpu = EncoderEngine(folders(name), "embed", EngineSettings(dtype="float32"), device="cuda")
    asked = [images(*photos(3))]
    if name != "vit":
        asked.append({"text_input": column(b"a cat", b"sea")})
    for inputs in asked:
        wanted = ask(engines(name, "embed"), inputs)["embedding"]
        found = ask(on_gpu, inputs)["embedding"]
        np.testing.assert_allclose(found, wanted, rtol=0, atol=MODEL_FP32)


def test_the_task_is_that_of_the_class(folders):
    assert tasks_of(read_config(folders("vit"))) == "label"
    assert tasks_of(read_config(folders("deit with a teacher"))) == "label"
    assert tasks_of(read_config(folders("clip"))) == "embed"


@pytest.mark.parametrize("name", ["vit", "dinov2", "clip", "siglip"])
@pytest.mark.parametrize("task", ["label", "embed"])
def test_a_folder_that_serves_passes_the_checks_of_import(folders, name, task):
    check_folder(folders(name), task)
    check_files(folders(name), read_config(folders(name)), task)
    EncoderEngine(folders(name), task)


def test_the_checks_of_import_refuse_what_an_engine_refuses(tmp_path, folders):
    with pytest.raises(ConfigurationError, match="task: got 'classify', wanted one of label"):
        check_folder(folders("vit"), "classify")
    with pytest.raises(ConfigurationError, match="task: got 'classify' for a model of images"):
        EncoderEngine(folders("vit"), "classify")
    with pytest.raises(ConfigurationError, match="pooling: got 'cls' for the task label"):
        EncoderEngine(folders("vit"), "label", EngineSettings(pooling="cls"))
    template = EngineSettings(hypothesis_template="a photo")
    with pytest.raises(ConfigurationError, match="hypothesis_template: got 'a photo' for a model"):
        EncoderEngine(folders("vit"), "label", template)
    with pytest.raises(InvalidInput, match="wanted a sentence with"):
        EncoderEngine(folders("clip"), "label", template)
    saved(tmp_path, *CLIP["the tower of images"])
    config = read_config(tmp_path)
    with pytest.raises(CheckpointError, match="label: got a clip_vision_model model"):
        check_folder(tmp_path, "label")
    check_folder(tmp_path, "embed")
    with pytest.raises(CheckpointError, match="preprocessor_config"):
        check_files(tmp_path, config, "embed")


def test_without_a_tokenizer_images_are_embedded_and_texts_refused(tmp_path):
    test_image_texts.folder_of(tmp_path, "clip")
    (tmp_path / "tokenizer.json").unlink()
    engine = EncoderEngine(tmp_path, "embed")
    assert ask(engine, images(*photos(1)))["embedding"].shape == (1, 24)
    with pytest.raises(InvalidInput, match="text_input: got a text for a model that reads no"):
        ask(engine, {"text_input": column(b"cat")})
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        EncoderEngine(tmp_path, "label")


WITHOUT_PILLOW = """
import sys
sys.modules["PIL"] = None
from fusewire.engine.encoder import EncoderEngine
try:
    EncoderEngine({folder!r}, "label")
except Exception as error:
    print(type(error).__name__, error)
"""


def test_without_pillow_a_model_of_images_is_refused_with_its_remedy(folders):
    program = WITHOUT_PILLOW.format(folder=str(folders("vit")))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.startswith("ConfigurationError pillow: got no such package"), done
    assert "pip install 'fusewire[images]'" in done.stdout


@pytest.mark.parametrize("name", ["vit", "clip"])
def test_what_images_cost_is_known_before_the_first(engines, name):
    engine = engines(name, "label" if name == "vit" else "embed")
    unmeasured = engine.costs
    try:
        engine.measure_costs()
        sizes = [tokens for tokens, _ in engine.costs.points]
        assert sizes[0] == engine.image_tokens > 1
        assert all(size % sizes[0] == 0 for size in sizes)
        assert len(sizes) > 1
        assert engine.costs.share(sizes[0], float(sizes[0]) ** 2) > 0
    finally:
        engine.costs = unmeasured


def test_doctor_measures_images(folders, capsys):
    show(str(folders("vit")), "cpu", as_json=True)
    assert json.loads(capsys.readouterr().out)["points"]


def processes_that_read() -> list[int]:
    """Returns the image reading processes of this process."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            words = (each / "cmdline").read_bytes().split(b"\0")
        except OSError:  # the process has ended
            continue
        if b"fusewire.images.worker" in words and str(os.getpid()).encode() in words:
            found.append(int(each.name))
    return found


def test_no_process_that_reads_outlives_the_loop(folders, monkeypatch):
    loop = EncoderLoop(EncoderEngine(folders("vit"), "label"))
    [photo, *_] = photos(1)

    def submit() -> Queue[Any]:
        answers: Queue[Any] = Queue()
        loop.submit(Request({"image": column(photo)}), None, answers.put)
        return answers

    assert isinstance(submit().get(timeout=60), dict)
    monkeypatch.setattr(reading_lanes, "LONG_PIXELS", 1)  # uses the other lane
    assert isinstance(submit().get(timeout=60), dict)
    found = processes_that_read()
    assert len(found) == 2
    for pid in found:  # also not a stopped one; on one core another thread's process may read
        os.kill(pid, signal.SIGSTOP)
    last = submit()
    loop.close()
    assert processes_that_read() == []
    answer = last.get(timeout=60)
    assert isinstance(answer, dict | Unavailable)
