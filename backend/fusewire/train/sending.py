"""Gradients that processes sum while their backward passes go on."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import distributed

from fusewire.train.flat import FlatParameters, flat_of
from fusewire.train.gradients import watched
from fusewire.train.recording import between_graphs
from fusewire.train.shards import Shards
from fusewire.train.slot import Slot


class Sending:
    """Sums the gradients in the buffers of `flats` over processes, in the blocks of `shards`. Each
    is sent as soon as it is complete, from the last in memory, which backward passes reach first,
    to the first, because all processes have to send in the same order.

    Between GPUs NCCL sums on a stream of its own, while the lower layers are computed.
    """

    def __init__(self, flats: Sequence[FlatParameters], shards: Shards) -> None:
        self._flats, self._shards = flats, shards
        self._sent: list[distributed.Work] = []

    @contextmanager
    def during_backward(self, reached: Container[torch.Tensor]) -> Iterator[None]:
        """`reached`: the parameters that the backward pass in the context gives gradients to."""
        blocks = list(self._shards.blocks)
        missing = [sum(p in reached for p in block) for block in blocks]
        number_of = {
            p: number for number, block in enumerate(blocks) for p in block if p in reached
        }

        def send_whole() -> None:
            while blocks and not missing[len(blocks) - 1]:
                between_graphs(partial(self._send, _gradients(blocks.pop())))

        def done(slot: Slot) -> None:
            missing[number_of[slot.parameter]] -= 1
            send_whole()

        with ExitStack() as stack:
            for flat in self._flats:
                stack.enter_context(watched(flat, number_of, done))
            yield
        send_whole()

    def wait(self) -> None:
        """Makes later work wait for the sums; on a GPU the host does not wait."""
        for work in self._sent:
            work.wait()
        self._sent.clear()

    def _send(self, gradients: torch.Tensor) -> None:
        self._sent += self._shards.reduce(gradients)


def _gradients(block: Sequence[torch.Tensor]) -> torch.Tensor:
    flat = flat_of(block[0])
    assert flat is not None
    begin = flat.begin_of(block[0])
    return flat.gradients[begin : begin + sum(p.numel() for p in block)]
