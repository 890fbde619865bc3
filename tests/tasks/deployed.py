"""Tiny deployments, and requests as a server passes them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from fusewire.engine.encoder import EncoderEngine, Request
from fusewire.settings import EngineSettings


@dataclass
class Deployment:
    """A folder, transformers' own model of it, and the engine that serves it."""

    folder: Path
    task: str
    reference: transformers.PreTrainedModel
    engine: EncoderEngine

    @cached_property
    def tokenizer(self) -> Any:
        return transformers.AutoTokenizer.from_pretrained(self.folder)

    def pipeline(self, name: str, **arguments: Any) -> Any:
        return transformers.pipeline(
            name, model=self.reference, tokenizer=self.tokenizer, device="cpu", **arguments
        )

    def with_settings(self, **settings: Any) -> Deployment:
        engine = EncoderEngine(self.folder, self.task, EngineSettings(**settings))
        return Deployment(self.folder, self.task, self.reference, engine)

    def ask(self, request: Request) -> dict[str, np.ndarray]:
        [answer] = self.engine.answer([request])
        if isinstance(answer, Exception):
            raise answer
        assert answer is not None
        return answer

    def ask_json(self, name: str, request: Request) -> list[Any]:
        """Returns the rows of a STRING output with JSON."""
        rows = self.ask(request)[name]
        assert rows.shape == (len(rows), 1)
        assert rows.dtype == object
        return [json.loads(row) for row in rows[:, 0]]


def texts(*values: str | bytes) -> np.ndarray:
    array = np.empty((len(values), 1), object)
    array[:, 0] = [value.encode() if isinstance(value, str) else value for value in values]
    return array


def text_request(
    *values: str | bytes, pairs: list[str] | None = None, **parameters: Any
) -> Request:
    inputs = {"text_input": texts(*values)}
    if pairs is not None:
        inputs["text_pair"] = texts(*pairs)
    return Request(inputs, parameters)


def id_request(ids: Any, mask: Any = None, types: Any = None, **parameters: Any) -> Request:
    inputs = {"input_ids": np.asarray(ids, np.int64)}
    if mask is not None:
        inputs["attention_mask"] = np.asarray(mask, np.int64)
    if types is not None:
        inputs["token_type_ids"] = np.asarray(types, np.int64)
    return Request(inputs, parameters)


def plain(value: Any) -> Any:
    """Converts numpy's scalars to Python's."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value.item() if isinstance(value, np.generic) else value


def same_json(got: Any, wanted: Any, tolerance: float) -> None:
    """Asserts that they are equal, with numbers within the tolerance; `got` may have additional
    keys."""
    if isinstance(wanted, dict):
        for key, value in wanted.items():
            same_json(got[key], value, tolerance)
    elif isinstance(wanted, list):
        assert len(got) == len(wanted), (got, wanted)
        for one, other in zip(got, wanted, strict=True):
            same_json(one, other, tolerance)
    elif isinstance(wanted, float):
        assert abs(got - wanted) <= tolerance, (got, wanted)
    else:
        assert got == wanted
