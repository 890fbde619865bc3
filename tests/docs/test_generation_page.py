"""The page on generation says what the model that checks requests says."""

from __future__ import annotations

from fusewire.tasks.generation_parameters import GenerationParameters

from tests.docs.generation_page import PAGE, parameters, written


def test_the_tables_are_those_of_the_model() -> None:
    page = PAGE.read_text()
    assert page == written(page), "run python -m tests.docs.generation_page"


def test_every_parameter_is_described_with_its_range() -> None:
    table = parameters()
    for name, field in GenerationParameters.model_fields.items():
        assert f"| `{name}`" in table
        assert str(field.description) in table
    assert "| `temperature` | number ≥ 0, ≤ 100 | `1.0` |" in table
    assert "| `stop` | list of at most 16 strings of at most 256 characters | `[]` |" in table
    assert "| `best_of` | integer ≥ 1, ≤ 64 | none |" in table
