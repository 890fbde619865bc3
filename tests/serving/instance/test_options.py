"""What a request says of itself, and that nothing else is taken from its model's parameters."""

from __future__ import annotations

from typing import Any

import pytest
from fusewire.errors import InvalidInput
from fusewire.serving.instance.options import Options, take_options


def test_options_are_taken_and_the_models_parameters_left() -> None:
    parameters: dict[str, Any] = {"truncate": True, "tenant": "blue", "request_priority": "-3"}
    parameters |= {"timeout": 1_500_000, "watchdog_probe": True}
    assert take_options(parameters) == Options(1.5, -3, "blue", True)
    assert parameters == {"truncate": True}


def test_a_request_that_says_nothing_has_all_the_time_there_is() -> None:
    assert take_options({}) == take_options({"normalize": True}) == Options(None, 0, "")
    assert take_options({"timeout": 0}).timeout_s is None  # as Triton has it


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timeout", -1),
        ("timeout", "soon"),
        ("timeout", 0.5),
        ("request_priority", 1001),
        ("request_priority", True),
        ("request_priority", "high"),
        ("tenant", 7),
        ("watchdog_probe", 1),
        ("tenant", "x" * 129),
    ],
)
def test_what_cannot_be_meant_is_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"{name}: got .*; correct or remove it"):
        take_options({name: value})
