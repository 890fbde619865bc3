"""A tiny request that a model must be able to answer: in the form in which it is sent, and in which
its entry stores it.

The supervisor loads no tokenizer, as a malicious one could block it. So the content of a probe is
determined when the entry is written (folder_probe.py).
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path

from fusewire.tasks.contract import ENCODER_INPUTS, GENERATING, TRANSCRIBE, contract

PARAMETER = "watchdog_probe"  # request parameter, true in a probe: metrics do not count it
WARMUP = "warmup"  # the folder of an entry with the warm-up request, which is the probe
# One step, before waiting requests, because a busy model must not count as hung. One beam, so that
# it does not wait for as many slots as the folder's default has beams.
_ONE_STEP = json.dumps(
    {"max_new_tokens": 1, "min_new_tokens": 0, "num_beams": 1, "priority": -1000}
)
_LENGTH_BYTES = 4  # of a text's length in the files of the warm-up request
# dtype -> format character of `struct`.
_SPELLED = {"TYPE_INT64": "q", "TYPE_FP32": "f"}
_PROTOCOL = {"TYPE_STRING": "BYTES", "TYPE_INT64": "INT64", "TYPE_FP32": "FP32"}
_CHANNELS = 3


@dataclass(frozen=True)
class ProbeTensor:
    """One input of the probe, without the batch dimension that an encoder's inputs have: texts,
    ids, samples of audio, or the pixel values of a square image."""

    name: str
    values: tuple[str, ...] | tuple[int, ...] | tuple[float, ...]

    @staticmethod
    def stored(name: str, raw: bytes, dtype: str) -> ProbeTensor:
        """Returns the input with these bytes, which are those of `raw`."""
        if dtype in _SPELLED:
            numbers = struct.iter_unpack(f"<{_SPELLED[dtype]}", raw)
            return ProbeTensor(name, tuple(number for (number,) in numbers))
        strings = []
        while raw:
            end = _LENGTH_BYTES + int.from_bytes(raw[:_LENGTH_BYTES], "little")
            strings.append(raw[_LENGTH_BYTES:end].decode(errors="replace"))
            raw = raw[end:]
        return ProbeTensor(name, tuple(strings))

    @property
    def dtype(self) -> str:
        """The dtype in the notation of config.pbtxt."""
        kinds = {str: "TYPE_STRING", int: "TYPE_INT64", float: "TYPE_FP32"}
        return kinds[type(self.values[0])]

    @property
    def texts(self) -> bool:
        return self.dtype == "TYPE_STRING"

    @property
    def dims(self) -> list[int]:
        """The shape without the batch dimension."""
        if self.name != "pixel_values":
            return [len(self.values)]
        side = math.isqrt(len(self.values) // _CHANNELS)
        return [_CHANNELS, side, side]

    def raw(self) -> bytes:
        """Returns the bytes of a Triton warm-up data file: little-endian, strings with their
        lengths."""
        if not self.texts:
            return struct.pack(f"<{len(self.values)}{_SPELLED[self.dtype]}", *self.values)
        encoded = [str(value).encode() for value in self.values]
        return b"".join(len(text).to_bytes(_LENGTH_BYTES, "little") + text for text in encoded)

    def json(self) -> dict[str, object]:
        """Returns the input in KServe v2 JSON, with the batch dimension."""
        return {
            "name": self.name,
            "shape": [1, *self.dims],
            "datatype": _PROTOCOL[self.dtype],
            "data": list(self.values),
        }


@dataclass(frozen=True)
class Probe:
    """The probe's inputs, and how they are sent over HTTP."""

    task: str
    tensors: tuple[ProbeTensor, ...]

    @property
    def path(self) -> str:
        """The path after the model's. Decoupled models do not support `infer`."""
        return "generate" if self.task in GENERATING else "infer"

    def json(self) -> dict[str, object]:
        if self.task in GENERATING:
            return {
                tensor.name: tensor.values[0] if tensor.texts else list(tensor.values)
                for tensor in self.tensors
            }
        return {"inputs": [tensor.json() for tensor in self.tensors]}


def stored_probe(entry: Path, task: str) -> list[ProbeTensor]:
    """Returns the probe of a repository entry: its warm-up request, otherwise one without a
    tokenizer."""
    stored = []
    for tensor in contract(task)[0] if task in GENERATING else ENCODER_INPUTS:
        path = entry / WARMUP / tensor.name
        if path.is_file() and (raw := path.read_bytes()):
            stored.append(ProbeTensor.stored(tensor.name, raw, tensor.dtype))
    return stored or without_tokenizer(task)


def without_tokenizer(task: str) -> list[ProbeTensor]:
    """Returns a probe of token ids, or of one sample of audio; empty where the task takes only
    texts."""
    if task == TRANSCRIBE:
        return [ProbeTensor("samples", (0.0,)), ProbeTensor("sampling_parameters", (_ONE_STEP,))]
    if task in GENERATING:
        return [ProbeTensor("input_ids", (0,)), ProbeTensor("sampling_parameters", (_ONE_STEP,))]
    return [] if task in ("answer", "fill", "label") else [ProbeTensor("input_ids", (0,))]
