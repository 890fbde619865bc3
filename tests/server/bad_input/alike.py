"""Whether two replies are the same answer: the same bits on the CPU, close numbers on a GPU."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

from tests.server.asking import same
from tests.server.bad_input.message import Reply


def alike(device: str, reply: Reply, wanted: Reply) -> None:
    """Fails unless both are the same answer of models on `device`."""
    if device == "cpu":
        assert reply == wanted
        return
    assert (reply.status, reply.text) == (wanted.status, wanted.text)
    assert reply.outputs.keys() == wanted.outputs.keys()
    for name, output in wanted.outputs.items():
        assert reply.outputs[name][:2] == output[:2]
        got: list[float] = []
        right: list[float] = []
        assert _rest(_values(reply.status, reply.outputs[name]), got) == _rest(
            _values(wanted.status, output), right
        )
        same(device, np.array(got), np.array(right))


def _values(status: str, output: tuple[str, tuple[int, ...], bytes]) -> list[Any]:
    """An output's values; texts that are JSON are read as such."""
    datatype, _, data = output
    if status != "OK":  # over HTTP
        values = json.loads(data)
    elif datatype == "FP32":
        values = list(struct.unpack(f"<{len(data) // 4}f", data))
    else:
        values = []
        while data:
            (length,) = struct.unpack("<I", data[:4])
            values.append(data[4 : 4 + length].decode())
            data = data[4 + length :]
    return [json.loads(v) if str(v).startswith(("[", "{")) else v for v in values]


def _rest(value: Any, numbers: list[float]) -> Any:
    """The value without its floating-point numbers, which go to `numbers` in order."""
    if isinstance(value, float):
        numbers.append(value)
        return None
    if isinstance(value, dict):
        return {name: _rest(each, numbers) for name, each in value.items()}
    if isinstance(value, list):
        return [_rest(each, numbers) for each in value]
    return value
