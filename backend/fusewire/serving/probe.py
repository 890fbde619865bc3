"""A tiny request that a model must be able to answer: its warm-up, and the watchdog's question."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from fusewire.errors import CheckpointError
from fusewire.tasks.contract import GENERATE
from fusewire.tasks.tokenizer import Tokenizer
from fusewire.weights import open_folder

_TEXT = "Is this model awake?"
# One step, before those that wait: a model that has much to do is no model that hangs.
_ONE_STEP = json.dumps({"max_new_tokens": 1, "min_new_tokens": 0, "priority": -1000})


@dataclass(frozen=True)
class ProbeTensor:
    """One input of the probe, without the batch dimension of one that an encoder's has."""

    name: str
    values: tuple[str, ...] | tuple[int, ...]

    @property
    def texts(self) -> bool:
        return isinstance(self.values[0], str)

    def raw(self) -> bytes:
        """The bytes of a Triton warm-up data file: little-endian; strings with their lengths."""
        if not self.texts:
            return b"".join(int(value).to_bytes(8, "little", signed=True) for value in self.values)
        encoded = [str(value).encode() for value in self.values]
        return b"".join(len(text).to_bytes(4, "little") + text for text in encoded)

    def json(self) -> dict[str, object]:
        """As the KServe v2 protocol writes an input, with the batch dimension."""
        return {
            "name": self.name,
            "shape": [1, len(self.values)],
            "datatype": "BYTES" if self.texts else "INT64",
            "data": list(self.values),
        }


@dataclass(frozen=True)
class Probe:
    """The probe's inputs and how they are sent over HTTP."""

    task: str
    tensors: tuple[ProbeTensor, ...]

    @property
    def path(self) -> str:
        """After the model's: decoupled models answer no `infer`."""
        return "generate" if self.task == GENERATE else "infer"

    def json(self) -> dict[str, object]:
        if self.task == GENERATE:
            return {
                tensor.name: tensor.values[0] if tensor.texts else list(tensor.values)
                for tensor in self.tensors
            }
        return {"inputs": [tensor.json() for tensor in self.tensors]}


def probe(folder: Path, task: str) -> list[ProbeTensor]:
    """The probe of a checkpoint folder for a task; empty when it has no tokenizer and the task
    cannot do without one."""
    if task == GENERATE:
        return [ProbeTensor("input_ids", (0,)), ProbeTensor("sampling_parameters", (_ONE_STEP,))]
    tokenizer = Tokenizer.load(open_folder(folder))
    if tokenizer is None:
        if task in ("answer", "fill"):
            return []
        return [ProbeTensor("input_ids", (0, 0, 0, 0))]
    if task == "answer":
        return [ProbeTensor("text_input", ("Who?",)), ProbeTensor("text_pair", ("Ada.",))]
    if task == "fill":
        if tokenizer.mask_id is None:
            raise CheckpointError(
                "tokenizer.json: got no mask token, wanted one for the task fill; choose another "
                "task"
            )
        return [ProbeTensor("text_input", (tokenizer.piece(tokenizer.mask_id),))]
    return [ProbeTensor("text_input", (_TEXT,))]
