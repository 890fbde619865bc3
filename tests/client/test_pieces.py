"""What the client makes of the tensors of one response."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from fusewire_client.errors import ServerError
from fusewire_client.generation import Asked, pieces


def response(**more: list[Any]) -> dict[str, np.ndarray]:
    texts = {"text_output": [b"ja", b"nein"], "finish_reason": [b"stop", b"None"]}
    values = {
        **texts,
        "cumulative_logprob": [-1.0, -2.0],
        "logprobs": [b"null", b"null"],
        "num_input_tokens": [5],
        "num_cached_tokens": [0],
        "num_output_tokens": [2, 1],
        **more,
    }
    return {name: np.array(value) for name, value in values.items()}


def asked(**parameters: Any) -> Asked:
    return Asked(True, True, None, "", None, {"n": 2, **parameters})


def test_an_alignment_is_that_of_its_text() -> None:
    record = {"source_ids": [7, 8], "token_ids": [1, 2], "weights": [[0.25, 0.75], [1.0, 0.0]]}
    outputs = response(alignment=[json.dumps(record).encode(), b"null"])
    assert "alignment" in asked(alignment=True).outputs
    first, second = pieces(outputs, asked(alignment=True))
    assert (first.alignment.source_ids, first.alignment.token_ids) == ([7, 8], [1, 2])
    assert first.alignment.weights.dtype == np.float32
    assert first.alignment.weights.argmax(axis=1).tolist() == [1, 0]
    assert second.alignment is None


def test_without_asking_there_is_none() -> None:
    assert "alignment" not in asked().outputs
    assert [each.alignment for each in pieces(response(), asked())] == [None, None]
    with pytest.raises(ServerError, match="got none of alignment"):
        list(pieces(response(), asked(alignment=True)))
