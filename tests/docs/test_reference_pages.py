"""The pages on protocol and generation match the code that validates requests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fusewire.generation.parameters import GenerationParameters
from fusewire.tasks.contract import (
    ENCODER_TASKS,
    GENERATE,
    IMAGE_TASKS,
    TRANSCRIBE,
    TensorContract,
    contract,
)

from tests.docs.reference_pages import DOCS, TABLES, parameters, written

TYPES = {"TYPE_STRING": "BYTES"}  # config.pbtxt's name -> KServe's


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_the_tables_are_those_of_the_code(path: Path) -> None:
    assert path.read_text() == written(path), "run python -m tests.docs.reference_pages"


def test_every_parameter_of_generation_has_its_description_and_range() -> None:
    table = parameters()
    for name, field in GenerationParameters.model_fields.items():
        assert f"| `{name}`" in table
        assert str(field.description) in table
    assert "| `temperature` | number ≥ 0, ≤ 100 | `1.0` |" in table
    assert "| `stop` | list of at most 16 strings of at most 256 characters | `[]` |" in table
    assert "| `best_of` | integer ≥ 1, ≤ 64 | none |" in table


def rows(marker: str) -> list[list[str]]:
    """Returns the first cells of a table of docs/protocol.md, up to the shape."""
    page = (DOCS / "protocol.md").read_text()
    _, table, _ = re.split(f"<!-- {marker}:(?:begin|end) -->", page)
    cells = [re.split(r" *\| *", line.strip("|\n ")) for line in table.strip().splitlines()[2:]]
    return [[cell.strip("` ") for cell in row] for row in cells]


def said(tensor: TensorContract, *, batched: bool) -> tuple[str, str, int]:
    """Returns name, type and rank of a tensor."""
    kind = TYPES.get(tensor.dtype, tensor.dtype.removeprefix("TYPE_"))
    return tensor.name, kind, len(tensor.dims) + batched


def read(name: str, kind: str, shape: str) -> tuple[str, str, int]:
    return name, kind, len(shape.strip("[]").split(","))


def test_the_tensors_are_those_of_the_contract() -> None:
    inputs, _ = contract(ENCODER_TASKS[0])
    wanted = [said(tensor, batched=True) for tensor in inputs]
    assert [read(*row[:3]) for row in rows("encoder-inputs")] == wanted
    outputs = [
        (task, *said(tensor, batched=True))
        for task in ENCODER_TASKS
        for tensor in contract(task)[1]
    ]
    found = [(row[0], *read(*row[1:4])) for row in rows("encoder-outputs")]
    assert found == outputs
    taken = {tensor: None for task in IMAGE_TASKS for tensor in contract(task, images=True)[0]}
    wanted = [said(tensor, batched=True) for tensor in taken]
    assert [read(*row[:3]) for row in rows("image-inputs")] == wanted
    outputs = [
        (task, *said(tensor, batched=True))
        for task in IMAGE_TASKS
        for tensor in contract(task, images=True)[1]
    ]
    assert [(row[0], *read(*row[1:4])) for row in rows("image-outputs")] == outputs
    for task in (GENERATE, TRANSCRIBE):
        for marker, tensors in zip(("inputs", "outputs"), contract(task), strict=True):
            wanted = [said(tensor, batched=False) for tensor in tensors]
            assert [read(*row[:3]) for row in rows(f"{task}-{marker}")] == wanted
