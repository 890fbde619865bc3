"""A model whose answers a test can predict, and short ways to ask an engine that runs it."""

from __future__ import annotations

import numpy as np
from fusewire import kernels
from fusewire.engine.encoder import EncoderEngine, Request
from fusewire.kernels import Tensor
from fusewire.placement import Placement
from fusewire.settings import EngineSettings

HIDDEN = "last_hidden_state"


class CountingModel:
    """A model whose hidden states are its ids, and which runs out of memory past `room` tokens."""

    vocab_size, type_vocab_size, uses_token_types = 1000, 0, False
    max_length, hidden_size, folder = 100, 2, None

    def __init__(self, room: int = 10**9, poison: int | None = None) -> None:
        self.room, self.poison = room, poison
        self.place = Placement()
        self.computed_tokens = 0
        self.replay_counts = (0, 0)
        self.seen: list[list[int]] = []

    def encode(self, batch):
        self.seen.append(np.diff(batch.cu_seqlens).tolist())
        if batch.tokens > self.room:
            raise kernels.OutOfMemory(f"out of memory: wanted {batch.tokens} bytes; held: nothing")
        if self.poison in batch.input_ids:
            raise ZeroDivisionError("/secret/path.py exploded")
        self.computed_tokens = batch.tokens
        return Tensor.from_numpy(np.stack([batch.input_ids] * 2, axis=1).astype(np.float32))


def engine(tmp_path, model, **chosen) -> EncoderEngine:
    return EncoderEngine(tmp_path, "hidden", EngineSettings(**chosen), model=model)


def request(*rows: list[int]) -> Request:
    width = max(map(len, rows))
    ids = np.array([row + [0] * (width - len(row)) for row in rows], np.int64)
    mask = np.array([[1] * len(row) + [0] * (width - len(row)) for row in rows], np.int64)
    return Request({"input_ids": ids, "attention_mask": mask})


def answered(answer, *rows: list[int]) -> None:
    assert isinstance(answer, dict), answer
    for states, row in zip(answer[HIDDEN], rows, strict=True):
        assert states[: len(row), 0].tolist() == row
        assert not states[len(row) :].any()
