"""Settings and request parameters: bounds, types, precedence."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire.engine.encoder import EncoderEngine
from fusewire.errors import ConfigurationError
from fusewire.settings import EngineSettings
from fusewire.tasks.contract import ENCODER_TASKS, IMAGE_TASKS, contract
from fusewire.tasks.parameters import IMAGE_PARAMETERS, REQUEST_PARAMETERS, override
from fusewire.tasks.registry import IMAGE_TASK_TYPES, TASK_TYPES

from tests.reference import SENTENCES
from tests.tasks.deployed import text_request


def test_every_task_has_a_contract_parameters_and_a_type():
    assert set(ENCODER_TASKS) == set(REQUEST_PARAMETERS) == set(TASK_TYPES)
    assert set(IMAGE_TASKS) == set(IMAGE_PARAMETERS) == set(IMAGE_TASK_TYPES)
    fields = EngineSettings.model_fields
    for names in (*REQUEST_PARAMETERS.values(), *IMAGE_PARAMETERS.values()):
        assert set(names) <= set(fields)
    assert all(field.description for field in fields.values())


def test_replies_have_the_names_types_and_ranks_of_the_contract(deploy):
    types = {"TYPE_FP32": np.float32, "TYPE_STRING": object}
    for task in ENCODER_TASKS:
        pairs = ["It was him.", "Or her."] if task == "answer" else None
        text = "who [MASK] it?"
        answer = deploy("bert", task).ask(text_request(text, text, pairs=pairs))
        outputs = contract(task)[1]
        assert list(answer) == [output.name for output in outputs]
        for output in outputs:
            array = answer[output.name]
            assert array.dtype == types[output.dtype]
            assert array.ndim == 1 + len(output.dims)
            assert len(array) == 2
            for size, stated in zip(array.shape[1:], output.dims, strict=True):
                assert stated in (-1, size)


def test_an_unknown_task_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="task: got 'dance', wanted one of embed, hidden"):
        EncoderEngine(tmp_path, "dance")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_batch_tokens", 0),
        ("threads", -1),
        ("pooling", "sum"),
        ("top_k", 1001),
        ("max_length", 0),
        ("unheard_of", 1),
    ],
)
def test_settings_are_bounded_and_closed(name, value):
    with pytest.raises(ConfigurationError, match=rf"^{name}: got .+, wanted .+; correct or remove"):
        EngineSettings(**{name: value})


def test_settings_that_the_task_has_no_use_for_are_refused(deploy):
    folder = deploy("bert", "hidden").folder
    with pytest.raises(ConfigurationError, match="pooling: got 'cls' for the task hidden"):
        EncoderEngine(folder, "hidden", EngineSettings(pooling="cls"))
    EncoderEngine(folder, "hidden", EngineSettings(pooling=None, threads=1, max_batch_tokens=9))


def test_settings_hold_until_a_request_overrides_them(deploy):
    deployed = deploy("bert", "embed").with_settings(pooling="cls", normalize=True)
    by_setting = deployed.ask(text_request(SENTENCES[0]))["embedding"]
    same = deployed.ask(text_request(SENTENCES[0], pooling="cls", normalize="true"))["embedding"]
    other = deployed.ask(text_request(SENTENCES[0], pooling="mean"))["embedding"]
    np.testing.assert_array_equal(by_setting, same)
    assert abs(np.linalg.norm(other) - 1) < 1e-6
    assert np.abs(other - same).max() > 1e-3


def test_values_may_be_written_as_strings():
    base = EngineSettings()
    as_strings = override(base, {"top_k": "7", "handle_impossible_answer": "true"}, "answer", 64)
    plain = override(base, {"top_k": 7, "handle_impossible_answer": True}, "answer", 64)
    assert as_strings == plain != base
    assert override(base, {}, "answer", 64) is base
