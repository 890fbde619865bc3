"""Models of images on a real server: what goes in, what comes out, what is refused."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fusewire
import numpy as np
import pytest
import urllib3
from fusewire.serving import repository
from fusewire.serving.config import Deployment, ServerSettings
from fusewire.serving.repository import import_folder
from fusewire.serving.supervisor.pulse import Outcome, Pulse
from fusewire.serving.supervisor.server import Server
from fusewire_client import AsyncClient, Client, InvalidArgument
from tritonclient.utils import InferenceServerException
from typer.testing import CliRunner

from tests.images import files
from tests.server import images
from tests.server.asking import Asker, texts
from tests.server.bad_input.message import GrpcCaller, HttpCaller, Message, Tensor
from tests.server.bad_input.message import texts as text_tensor
from tests.server.bad_input.verdict import OURS
from tests.tolerance import BATCHED_VERSUS_ALONE

GATHER_US = 300_000
LABELS = ["cat", "two dogs", "a bird"]
TEMPLATE = "{}."
MODELS = ("label", "embed", "zero-shot")


@dataclass
class Served:
    server: Server
    folders: dict[str, Path]

    @property
    def grpc(self) -> str:
        at = self.server.endpoint
        return f"{at.reachable}:{at.grpc_port}"

    @property
    def http(self) -> str:
        at = self.server.endpoint
        return f"{at.reachable}:{at.http_port}"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("repository")
    make = tmp_path_factory.mktemp
    clip = images.clip(make("clip"))
    folders = {"label": images.classifier(make("vit")), "embed": clip, "zero-shot": clip}
    for name, folder in folders.items():
        import_folder(
            folder,
            root,
            name=name,
            settings={"task": "label" if name == "zero-shot" else None, "dtype": "float32"},
            deployment=Deployment(device="cpu", queue_delay_us=GATHER_US),
        )
    settings = ServerSettings(
        http_port=0, grpc_port=0, metrics_port=0, openai_port=0, log_level="error"
    )
    with Server([root], settings, log=lambda level, line: print(line), report=print) as server:
        yield Served(server, folders)


@pytest.fixture(scope="module")
def asker(served: Served) -> Iterator[Asker]:
    with Asker(served.server) as asker:
        yield asker


def same(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=BATCHED_VERSUS_ALONE)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_labels_are_those_of_the_same_folder_in_python(served, asker, kind):
    photos = images.photos(3, kind)
    classifier = fusewire.ImageClassifier(served.folders["label"], device="cpu")
    got = asker.ask("label", images.images(*photos))
    wanted = classifier(photos, top_k=None)
    for label, scores, best in zip(got["label"][:, 0], got["scores"], wanted, strict=True):
        assert label.decode() == best[0]["label"]
        by_name = {each["label"]: each["score"] for each in best}
        same(scores, np.array([by_name[name] for name in classifier.labels], np.float32))


def test_pixel_values_of_any_size_give_what_the_model_gives(served, asker):
    rng = np.random.default_rng(0)
    classifier = fusewire.ImageClassifier(served.folders["label"], device="cpu")
    for size in ((42, 42), (28, 70), (15, 14)):
        pixels = rng.standard_normal((2, 3, *size), np.float32)
        got = asker.ask("label", {"pixel_values": pixels}, parameters={"function_to_apply": "none"})
        same(got["scores"], classifier._model.results(classifier._model.encode(list(pixels))))


def test_images_and_texts_of_one_model_are_embedded_where_they_can_be_compared(served, asker):
    photos = images.photos(2)
    embedder = fusewire.ImageEmbedder(served.folders["embed"], device="cpu")
    same(asker.ask("embed", images.images(*photos))["embedding"], embedder.encode(photos))
    same(asker.ask("embed", texts(*LABELS))["embedding"], embedder.encode_text(LABELS))
    unit = asker.ask("embed", images.images(*photos), parameters={"normalize": True})["embedding"]
    same(unit, embedder.encode(photos, normalize_embeddings=True))
    cut = asker.ask("embed", texts("cat " * 40), parameters={"truncate": True})["embedding"]
    assert np.isfinite(cut).all()


def test_labels_of_the_request_are_scored_as_in_python(served, asker):
    photos = images.photos(2)
    classifier = fusewire.ZeroShotImageClassifier(served.folders["zero-shot"], device="cpu")
    inputs = images.images(*photos) | images.labels(2, *LABELS)
    for _ in range(2):  # the second time with embeddings of labels that were kept
        got = asker.ask("zero-shot", inputs, parameters={"hypothesis_template": TEMPLATE})
        wanted = classifier(photos, LABELS, hypothesis_template=TEMPLATE)
        for label, scores, best in zip(got["label"][:, 0], got["scores"], wanted, strict=True):
            assert label.decode() == best[0]["label"]
            by_name = {each["label"]: each["score"] for each in best}
            same(scores, np.array([by_name[name] for name in LABELS], np.float32))


def tensor(name: str, array: np.ndarray) -> Tensor:
    return Tensor(name, "FP32", array.shape, array.tobytes())


def encoded(*values: bytes) -> Tensor:
    return text_tensor(*values, name="image")


def candidates(*names: str) -> Tensor:
    made = text_tensor(*names, name="candidate_labels")
    return Tensor(made.name, made.datatype, (1, len(names)), made.raw)


PHOTO = files.photo(30, 20)
ANIMATED = files.encoded(
    files.image(8, 8), "WEBP", save_all=True, append_images=[files.image(8, 8, seed=1)]
)
HUGE = files.png(10_000, 10_000, 8, 2, b"")
PIXELS = np.zeros((1, 3, 42, 42), np.float32)
NAN = np.full((1, 3, 42, 42), np.nan, np.float32)
# (model, inputs, parameters, what the refusal says in this order)
BAD = {
    "no image": ("label", [encoded(b"GIF89a, or so")], {}, "image: got 13 bytes that begin with"),
    "nothing at all": ("label", [encoded(b"")], {}, "image: got no bytes"),
    "truncated": ("label", [encoded(PHOTO[:300])], {}, "image: got a damaged or truncated PNG"),
    "one of several": ("label", [encoded(PHOTO, PHOTO[:300])], {}, "image[1]: got a damaged"),
    "a bomb": ("label", [encoded(HUGE)], {}, "image: got 10000 x 10000 pixels"),
    "animated": ("label", [encoded(ANIMATED)], {}, "image: got an animated WEBP file of 2 frames"),
    "too small for a patch": ("label", [tensor("pixel_values", PIXELS[:, :, :9])], {}, "9 x 42"),
    "not finite": ("label", [tensor("pixel_values", NAN)], {}, "pixel_values: got a number that"),
    "two kinds": (
        "label", [encoded(PHOTO), tensor("pixel_values", PIXELS)], {},
        "image: got image and pixel_values together",
    ),
    "an unknown parameter": ("label", [encoded(PHOTO)], {"top_k": 3}, "top_k: got 3"),
    "a wrong function": (
        "label", [encoded(PHOTO)], {"function_to_apply": "max"}, "function_to_apply: got 'max'",
    ),
    "labels that the model has": (
        "label", [encoded(PHOTO), candidates("cat")], {}, "candidate_labels: got it, wanted none",
    ),
    "no labels": ("zero-shot", [encoded(PHOTO)], {}, "candidate_labels: got nothing"),
    "an empty label": (
        "zero-shot", [encoded(PHOTO), candidates("cat", " ")], {}, "an empty label at 1",
    ),
    "a template without a place": (
        "zero-shot", [encoded(PHOTO), candidates("cat")], {"hypothesis_template": "photo"},
        "hypothesis_template: got 'photo'",
    ),
    "a label that is too long": (
        "zero-shot", [encoded(PHOTO), candidates("cat " * 40)], {}, "candidate_labels: got",
    ),
    "a long text": ("embed", [text_tensor("cat " * 40)], {}, "text_input: got"),
    "a text that is none": ("embed", [text_tensor(b"\xff")], {}, "byte 0xff"),
    "both towers at once": (
        "embed", [encoded(PHOTO), text_tensor("cat")], {}, "image: got image and text_input",
    ),
}  # fmt: skip


@pytest.mark.parametrize("protocol", [GrpcCaller, HttpCaller])
def test_bad_requests_are_refused_in_their_own_words(served, protocol):
    caller = protocol(served.server.endpoint)
    for name, (model, inputs, parameters, said) in BAD.items():
        reply = caller.call(Message(model, inputs, parameters))
        assert reply.status in ("INVALID_ARGUMENT", "400"), (name, reply)
        assert OURS.fullmatch(reply.text), (name, reply)
        assert said in reply.text, (name, reply)
        assert len(reply.text) < 500


WRONG_SHAPES = {
    "one channel": tensor("pixel_values", PIXELS[:, :1]),
    "four channels": tensor("pixel_values", np.zeros((1, 4, 42, 42), np.float32)),
    "channels last": tensor("pixel_values", np.zeros((1, 42, 42, 3), np.float32)),
    "doubles": Tensor("pixel_values", "FP64", (1, 3, 2, 2), struct.pack("<12d", *range(12))),
    "two images a row": Tensor("image", "BYTES", (1, 2), encoded(PHOTO, PHOTO).raw),
    "ids": Tensor("input_ids", "INT64", (1, 1), bytes(8)),
}


@pytest.mark.parametrize("name", WRONG_SHAPES)
def test_wrong_tensors_are_refused_by_the_server_itself(served, name):
    for caller in (GrpcCaller(served.server.endpoint), HttpCaller(served.server.endpoint)):
        reply = caller.call(Message("label", [WRONG_SHAPES[name]]))
        assert reply.status in ("INVALID_ARGUMENT", "400"), reply


def test_a_bad_image_harms_no_request_of_its_execution(served, asker):
    photos = images.photos(3)
    alone = [asker.ask("label", images.images(photo))["scores"] for photo in photos]
    found: dict[int, np.ndarray] = {}
    refused: list[str] = []

    def ask(place: int, data: bytes) -> None:
        try:
            found[place] = asker.ask("label", images.images(data))["scores"]
        except Exception as error:
            refused.append(str(error))

    asked = [*photos, PHOTO[:200], HUGE, b"x"]
    threads = [threading.Thread(target=ask, args=each) for each in enumerate(asked)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 3
    for place, wanted in enumerate(alone):
        same(found[place], wanted)


def test_many_large_images_in_a_request_take_the_memory_of_a_few(served, asker):
    """24 images of 16 million pixels: 1.2 GB as RGB at once, more with their copies."""
    photo = large_photo()
    stub = peak_of("label", served)
    before = stub()
    got = asker.ask("label", images.images(*[photo] * 24), timeout_s=120)
    assert got["scores"].shape == (24, 5)
    assert stub() - before < 700 << 20


def test_a_small_image_does_not_wait_for_large_ones(served, asker):
    large, small = images.images(*[large_photo()] * 24), images.images(*images.photos(1))
    wanted = asker.ask("label", small)["scores"]
    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(asker.ask, "label", large, timeout_s=120) for _ in range(3)]
        time.sleep(0.5)  # the first is being decoded
        same(asker.ask("label", small)["scores"], wanted)
        assert not all(each.done() for each in waiting)
        for each in waiting:
            assert each.result()["scores"].shape == (24, 5)


def test_more_pixels_than_a_request_may_have_are_refused(asker):
    with pytest.raises(InferenceServerException, match="more pixels together, wanted at most"):
        asker.ask("label", images.images(*[large_photo()] * 33))


def large_photo() -> bytes:
    """16 million pixels in 200 KB."""
    return files.encoded(files.image(64, 64).resize((4096, 4096)), "JPEG", quality=30)


def peak_of(model: str, served: Served):
    """The peak memory in bytes of the process that serves a model."""
    [process] = [
        path
        for path in Path("/proc").glob("[0-9]*")
        if f"/{model}/".encode() in _command(path) and b"python_backend_stub" in _command(path)
    ]

    def peak() -> int:
        status = (process / "status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) << 10

    return peak


def _command(path: Path) -> bytes:
    try:
        return (path / "cmdline").read_bytes()
    except OSError:
        return b""


def embeddings(served: Served, **body: Any) -> tuple[int, dict[str, Any]]:
    """Status and body of /v1/embeddings."""
    assert served.server.openai is not None
    url = f"http://{served.server.openai.address}/v1/embeddings"
    response = urllib3.request("POST", url, json={"model": "embed", **body})
    return response.status, response.json()


def test_the_openai_endpoint_embeds_images_beside_texts(served):
    photos = images.photos(2)
    embedder = fusewire.ImageEmbedder(served.folders["embed"], device="cpu")
    in_base64 = [base64.b64encode(photo).decode() for photo in photos]
    items = [
        {"image": in_base64[0]},
        {"text": "a cat"},
        {"image": f"data:image/png;base64,{in_base64[1]}"},
        "sea",
    ]
    status, answer = embeddings(served, input=items)
    assert status == 200, answer
    found = np.array([each["embedding"] for each in answer["data"]], np.float32)
    same(found[::2], embedder.encode(photos))
    same(found[1::2], embedder.encode_text(["a cat", "sea"]))
    assert answer["usage"]["prompt_tokens"] == len("acat") + 2 + len("sea") + 2
    status, answer = embeddings(served, input="sea", normalize=True, dimensions=3)
    assert np.linalg.norm(answer["data"][0]["embedding"]) == pytest.approx(1, abs=1e-5)


REFUSED = {
    "an address": ({"image": "https://example.com/a.jpg"}, "the server fetches nothing"),
    "a file": ({"image": "file:///etc/passwd"}, "the server fetches nothing"),
    "no base64": ({"image": "!!!!"}, "wanted an image in base64"),
    "no image": ({"image": "aGVsbG8="}, "input: got 5 bytes that begin with"),
    "two in one": ({"image": "aGVsbG8=", "text": "a"}, "at 0, wanted a text"),
    "a number": ({"image": 7}, "at 0, wanted a text"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_openai_endpoint_refuses_what_is_no_image(served, name):
    item, said = REFUSED[name]
    status, answer = embeddings(served, input=[item])
    assert status == 400, answer
    assert said in answer["error"]["message"]


@pytest.mark.parametrize("model", MODELS)
def test_the_watchdog_has_a_probe_of_an_image(served, model):
    server = served.server
    question = Pulse(server.endpoint, [server.entry(model).parent]).question(model)
    assert question is not None
    assert "pixel_values" in [tensor.name for tensor in question.tensors]
    pulse = Pulse(server.endpoint, [server.entry(model).parent])
    assert pulse.ask(model, question, 30.0) == (Outcome.ANSWERED, "")
    assert not repository.takes_ids_only(server.entry(model))


def test_the_entry_holds_the_processor(served):
    version = repository.served_version(served.server.entry("label"))
    processor = json.loads((version / "preprocessor_config.json").read_text())
    assert processor["image_processor_type"].startswith("ViTImageProcessor")


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_the_client_takes_files_bytes_and_pixel_values(served, protocol, tmp_path):
    photos = images.photos(3, "JPEG")
    (tmp_path / "photo.jpg").write_bytes(photos[0])
    address = served.grpc if protocol == "grpc" else served.http
    with Client(address, protocol=protocol) as client:
        one, *_ = client.label(photos, model="label")
        [of_path] = client.label(tmp_path / "photo.jpg", model="label")
        assert (of_path.label, of_path.scores.tolist()) == (one.label, one.scores.tolist())
        vectors = client.embed(images=photos)  # the only model that embeds
        assert vectors.shape == (3, 24)
        assert client.embed(LABELS).shape == (3, 24)
        scored = client.label(photos, LABELS, model="zero-shot", hypothesis_template=TEMPLATE)
        assert [each.label in LABELS for each in scored] == [True] * 3
        pixels = client.label(pixel_values=np.zeros((2, 3, 42, 42), np.float32), model="label")
        assert pixels[0].scores.tolist() == pixels[1].scores.tolist()
        with pytest.raises(InvalidArgument, match=r"^image\[1\]: got 4 bytes"):
            client.label([photos[0], b"none"], model="label")
        with pytest.raises(InvalidArgument, match=r"^image\[33\]: got 4 bytes"):
            client.label([*photos[:1] * 33, b"none"], model="label")


def test_the_asyncio_client_has_the_same_methods(served):
    photos = images.photos(2)

    async def ask() -> None:
        async with AsyncClient(served.grpc) as client:
            assert len(await client.label(photos, model="label")) == 2
            assert (await client.embed(images=photos)).shape == (2, 24)

    asyncio.run(ask())


def test_the_command_line_labels_and_embeds_files(served, tmp_path):
    from fusewire.cli import app

    (tmp_path / "photo.jpg").write_bytes(images.photos(1, "JPEG")[0])
    photo = str(tmp_path / "photo.jpg")
    with Client(served.grpc) as client:
        [wanted] = client.label(photo, model="label")

    def run(*words: str) -> str:
        result = CliRunner().invoke(app, ["ask", *words, "--address", served.grpc])
        assert result.exit_code == 0, result.output
        return result.output

    assert f"{wanted.label} (" in run("label", photo, "--model", "label")
    [record] = json.loads(run("label", photo, "--model", "label", "--json"))
    np.testing.assert_allclose(record["scores"], wanted.scores, atol=1e-6)
    choices = ["--second", "cat", "--second", "dog", "--parameter", "hypothesis_template={}."]
    chosen = run("label", photo, "--model", "zero-shot", *choices)
    assert "cat (" in chosen or "dog (" in chosen
    assert "24 numbers" in run("embed", photo, "--images", "--model", "embed")
