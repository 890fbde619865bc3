"""docs/models.md matches the registry, the tests, and the files that are downloaded."""

from __future__ import annotations

import re
from pathlib import Path

from fusewire.hub import DESCRIPTIONS
from fusewire.models.config import Config
from fusewire.models.registry import (
    ARCHITECTURES,
    DECODERS,
    IMAGE_ENCODERS,
    SEQ2SEQ,
    SEQ2SEQ_ENCODERS,
    SPEECH,
    tasks_of,
)
from fusewire.tasks.sentence_dense import ACTIVATIONS
from fusewire.tasks.sentence_files import POOLING_MODES

from tests.models.tiny_decoders import _OWN as TINY_DECODERS
from tests.models.tiny_seq2seq import SEQ2SEQ as TINY_SEQ2SEQ
from tests.reference import ARCHITECTURES as TINY_ENCODERS

PAGE = (Path(__file__).parents[1] / "docs" / "models.md").read_text()


def table(heading: str) -> list[list[str]]:
    """Returns the rows of the table whose first column has this heading."""
    lines = iter(PAGE.splitlines())
    next(line for line in lines if line.startswith(f"| {heading} |"))
    next(lines)
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_table_of_architectures_is_the_registry() -> None:
    written = [(code(name)[0], code(classes)[0]) for name, _, classes in table("`model_type`")]
    assert written == [
        *((name, f"{row.classes}…") for name, row in ARCHITECTURES.items()),
        *((name, row.causal_class) for name, row in SEQ2SEQ.items()),
        *((name, row.causal_class) for name, row in SPEECH.items()),
        *((name, row.causal_class) for name, row in DECODERS.items()),
    ]


def test_the_table_of_encoders_of_images_is_the_registry() -> None:
    written = [(code(row[0])[0], set(code(row[2]))) for row in table("`model_type` of images")]
    sizes = {"hidden_size": 48, "num_attention_heads": 4}
    assert written == [
        (name, set(row.blueprint(Config(sizes)).task_heads)) for name, row in IMAGE_ENCODERS.items()
    ]


def test_every_architecture_is_compared_with_transformers() -> None:
    assert TINY_ENCODERS.keys() == ARCHITECTURES.keys()
    assert TINY_SEQ2SEQ.keys() == SEQ2SEQ.keys() == SEQ2SEQ_ENCODERS.keys()
    assert TINY_DECODERS.keys() == DECODERS.keys()


def test_the_table_of_classes_says_which_task_a_class_is_served_for() -> None:
    for endings, task in table("class ends with"):
        for ending in code(endings):
            model, prefix = {
                "LMHeadModel": ("gpt2", "GPT2"),
                "ForCausalLM": ("llama", "Llama"),
                "ForConditionalGeneration": ("mbart", "MBart"),
                "MTModel": ("marian", "Marian"),
                "EncoderModel": ("t5", "T5"),
                "WhisperForConditionalGeneration": ("whisper", ""),
            }.get(ending, ("bert", "Bert"))
            config = {"model_type": model, "architectures": [prefix + ending]}
            assert tasks_of(config) == code(task)[0]


def test_the_files_that_are_fetched_are_listed() -> None:
    listed = {name for row in table("file") for name in code(row[0])}
    names = {"[0-9]*_*/": "1_Pooling/", "[0-9]*_Dense/": "2_Dense/"}
    fetched = {re.sub(r"^\[.*/", lambda found: names[found[0]], name) for name in DESCRIPTIONS}
    assert listed == fetched | {"model.safetensors"}


def test_the_pooling_modes_are_listed() -> None:
    [row] = [row for row in table("module") if row[0] == "`Pooling`"]
    assert set(code(row[1])) == set(POOLING_MODES)


def test_the_activations_of_dense_modules_are_listed() -> None:
    [row] = [row for row in table("module") if row[0] == "`Dense`"]
    listed = set(code(row[1])) - {"Pooling"}
    assert listed == {name.rpartition(".")[2] for name in ACTIVATIONS}
