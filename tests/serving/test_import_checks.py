"""What an engine would refuse to load, import refuses: before anything is written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import fusewire
import numpy as np
import pytest
import tokenizers
from fusewire.engine.encoder import EncoderEngine
from fusewire.engine.generation import GenerationEngine
from fusewire.errors import CheckpointError, ConfigurationError, InvalidInput
from fusewire.serving.repository import import_folder
from safetensors.numpy import load_file, save_file

from tests.engine.generating import tiny_folder
from tests.reference import edit_config, tiny_checkpoint

POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)
Damage = Callable[[Path], object]


def truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def changed(name: str, change: Callable[[np.ndarray], np.ndarray | None]) -> Damage:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        value = change(tensors.pop(name))
        save_file(tensors | ({} if value is None else {name: value}), folder / "model.safetensors")

    return damage


def modules(*kinds: str, **pooling: object) -> Damage:
    def damage(folder: Path) -> None:
        paths = ["", *(f"{i}_{kind}" for i, kind in enumerate(kinds) if i)]
        steps = [
            {"path": path, "type": f"sentence_transformers.models.{kind}"}
            for path, kind in zip(paths, kinds, strict=True)
        ]
        (folder / "modules.json").write_text(json.dumps(steps))
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))

    return damage


def file(name: str, content: bytes | str) -> Damage:
    data = content if isinstance(content, bytes) else content.encode()
    return lambda folder: (folder / name).write_bytes(data)


def pointer(name: str) -> tuple[Damage, str]:
    return file(
        name, POINTER
    ), f"{name}: is a Git LFS pointer of {len(POINTER)} bytes.*`git lfs pull`"


WORDS = "embeddings.word_embeddings.weight"
OF_ENCODERS: dict[str, tuple[Damage, str]] = {
    "truncated weights": (truncated, r"model.safetensors: .*truncated"),
    "weights left in Git LFS": pointer("model.safetensors"),
    "a tokenizer left in Git LFS": pointer("tokenizer.json"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "no model.safetensors"),
    "a tensor lost": (changed(WORDS, lambda a: None), f"missing: {WORDS}"),
    "a tensor of another shape": (changed(WORDS, lambda a: a[1:]), "of another shape"),
    "a quantised tensor": (changed(WORDS, lambda a: a.astype(np.int8)), "got I8 .quantised"),
    "a damaged tokenizer": (file("tokenizer.json", "{}"), "tokenizer.json: got a file that"),
    "half a dense module": (
        modules("Transformer", "Pooling", "Dense"),
        "2_Dense/config.json: miss",
    ),
    "weighted layers": (
        modules("Transformer", "WeightedLayerPooling", "Pooling"),
        "got the module WeightedLayerPooling",
    ),
    "a pooling not known": (
        modules("Transformer", "Pooling", pooling_mode="weightedmean"),
        r"pooling: got \['weightedmean'\]",
    ),
}
OF_GENERATORS: dict[str, tuple[Damage, str]] = {
    "truncated weights": (truncated, r"model.safetensors: .*truncated"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json: missing"),
    "beam search": (file("generation_config.json", '{"num_beams": 0}'), "num_beams: got 0"),
    "no end": (file("generation_config.json", '{"eos_token_id": "x"}'), "eos_token_id: got x"),
}


def refused_by_both(folder: Path, damage: tuple[Damage, str], load: Callable[[], object]) -> None:
    damage[0](folder)
    with pytest.raises(CheckpointError, match=damage[1]) as by_import:
        import_folder(folder, folder.parent / "repository", name="m")
    with pytest.raises(CheckpointError) as by_engine:
        load()
    assert str(by_import.value) == str(by_engine.value)
    assert not (folder.parent / "repository").exists()


@pytest.mark.parametrize("damage", OF_ENCODERS)
def test_an_encoder_that_could_not_be_loaded_is_not_imported(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "model"
    tiny_checkpoint(folder, "bert", "embed")
    refused_by_both(folder, OF_ENCODERS[damage], lambda: EncoderEngine(folder, "embed"))


@pytest.mark.parametrize("damage", OF_GENERATORS)
def test_a_generator_that_could_not_be_loaded_is_not_imported(tmp_path: Path, damage: str) -> None:
    folder = tiny_folder(tmp_path / "model")
    refused_by_both(folder, OF_GENERATORS[damage], lambda: GenerationEngine(folder))


def test_a_classifier_with_an_unknown_problem_is_not_imported(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    tiny_checkpoint(folder, "bert", "classify")
    wrong = (lambda folder: edit_config(folder, problem_type="ranking"), "problem_type: got")
    refused_by_both(folder, wrong, lambda: EncoderEngine(folder, "classify"))


def test_a_setting_of_another_task_is_not_imported(tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path / "model", "bert", "classify")
    for name, value in (("top_k", 3), ("pooling", "cls")):
        with pytest.raises(
            ConfigurationError, match=f"^model: {name}: got '?{value}'? for the task clas"
        ):
            import_folder(tmp_path / "model", tmp_path / "repository", settings={name: value})
    assert not (tmp_path / "repository").exists()


def test_a_damaged_chat_template_is_not_imported(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(CheckpointError, match=r"chat_template.jinja: line 1: .*wanted a Jinja"):
        import_folder(folder, tmp_path / "repository", name="m")


def test_modules_concern_embeddings_alone(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    tiny_checkpoint(folder, "bert", "embed")
    modules("Transformer", "Pooling", "Dense")(folder)
    import_folder(folder, tmp_path / "repository", name="m", settings={"task": "hidden"})


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_a_folder_whose_tokenizer_knows_more_than_its_model_is_opened_with_a_warning(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As transformers opens it. Its other texts have answers."""
    folder = tmp_path / "model"
    if kind == "encoder":
        tiny_checkpoint(folder, "bert", "embed")
    else:
        tiny_folder(folder)
    rows = json.loads((folder / "config.json").read_text())["vocab_size"]
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert max(tokenizer.get_vocab().values()) < rows
    import_folder(folder, tmp_path / "repository", name="m")
    assert not caplog.records
    filled = rows - tokenizer.get_vocab_size()
    tokenizer.add_tokens([f"<{i}>" for i in range(filled)])
    tokenizer.add_special_tokens(["<|image|>", "<|tool|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    warning = (
        f"its tokenizer has 2 tokens beyond ids 0..{rows - 1}, the model's vocabulary: "
        f"'<|image|>' (id {rows}), '<|tool|>' (id {rows + 1}); texts with them are refused"
    )
    import_folder(folder, tmp_path / "repository", name="m", replace=True)
    assert [record.message.startswith(f"m: {warning}") for record in caplog.records] == [True]
    caplog.clear()
    refused = re.escape(f"the token '<|tool|>' with id {rows + 1}")
    if kind == "encoder":
        embedder = fusewire.Embedder(folder)
        with pytest.raises(InvalidInput, match=refused):
            embedder.encode(["a <|tool|>"])
    else:
        with fusewire.LLM(folder) as llm, pytest.raises(InvalidInput, match=refused):
            llm.generate("a <|tool|>")
    assert [warning in record.message for record in caplog.records] == [True]


def test_a_folder_without_a_tokenizer_is_imported_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "model"
    tiny_checkpoint(folder, "bert", "embed")
    import_folder(folder, tmp_path / "repository", name="m")
    assert not caplog.records
    (folder / "tokenizer.json").unlink()
    import_folder(folder, tmp_path / "repository", name="m", replace=True)
    assert "m: has no tokenizer, so it takes input_ids and no texts" in caplog.text
