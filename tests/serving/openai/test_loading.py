"""Entries that the OpenAI endpoint can serve: also those of earlier versions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fusewire.errors import ConfigurationError
from fusewire.serving.openai.generation import OUTPUTS
from fusewire.serving.openai.loading import _check_outputs
from fusewire.tasks.contract import GENERATE, contract


def entry(outputs: set[str]) -> Any:
    return SimpleNamespace(output=[SimpleNamespace(name=name) for name in sorted(outputs)])


def test_an_entry_may_lack_outputs_that_are_never_asked_for():
    outputs = {output.name for output in contract(GENERATE)[1]}
    assert set(OUTPUTS) < outputs
    _check_outputs(entry(outputs - {"alignment"}), "m", OUTPUTS)


@pytest.mark.parametrize("missing", OUTPUTS)
def test_an_entry_without_an_output_that_is_asked_for_is_refused(missing):
    with pytest.raises(ConfigurationError, match=rf"^m/.*got no output {missing}, .* --replace"):
        _check_outputs(entry(set(OUTPUTS) - {missing}), "m", OUTPUTS)
