"""Gradients are sent block by block, each when it is whole, while lower layers are computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusewire.train import replace
from fusewire.train.flat import flat_of
from fusewire.train.gradients import collected, leaves_of
from fusewire.train.sending import Sending
from fusewire.train.shards import blocks

from tests.train.tiny_models import eager, ragged

SEGMENTS = 2


class Log:
    """In place of Shards: what was sent, and which segments were computed, in order."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self.blocks = blocks(parameters)
        self.events: list[tuple[str, int]] = []
        self.sent: list[tuple[torch.Tensor, torch.Tensor]] = []

    def reduce(self, gradients: torch.Tensor) -> list[Any]:
        flat = flat_of(self.blocks[0][0])
        assert flat is not None
        begins = [flat.begin_of(block[0]) for block in self.blocks]
        self.events.append(("sent", begins.index(gradients.storage_offset())))
        self.sent.append((gradients, gradients.clone()))
        return []


class Watched:
    """A segment's stack whose backward passes are in the log."""

    def __init__(self, stack: Any, number: int, log: Log) -> None:
        self._stack, self._number, self._log = stack, number, log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stack, name)

    def backward(self, *arguments: Any, **others: Any) -> None:
        self._stack.backward(*arguments, **others)
        self._log.events.append(("computed", self._number))


def plain(model: Any, name: str) -> torch.Tensor:
    loss: torch.Tensor = model(**ragged(name)).loss
    return loss


def with_penalty(model: Any, name: str) -> torch.Tensor:
    """Gradients of layers come from two nodes."""
    return plain(model, name) + 0.1 * sum(p.square().sum() for p in model.parameters())


@pytest.mark.parametrize("loss_of", [plain, with_penalty])
@pytest.mark.parametrize("name", ["BertForSequenceClassification", "GPT2LMHeadModel"])
def test_blocks_are_sent_whole_and_before_lower_segments(
    name: str, loss_of: Callable[[Any, str], torch.Tensor]
) -> None:
    model = replace(eager(name), segments=SEGMENTS)
    base = model.base_model
    log = Log(list(model.parameters()))
    for number, segment in enumerate(base.fusewire.segments):
        segment.stack = Watched(segment.stack, number, log)
    flat = base.fusewire.flat
    sending = Sending([flat], log)  # type: ignore[arg-type]
    wanted = torch.autograd.grad(loss_of(model, name), list(model.parameters()))
    log.events.clear()
    flat.gradients.fill_(torch.nan)
    loss = loss_of(model, name)
    with collected(flat, leaves_of(loss)), sending.during_backward(leaves_of(loss)):
        loss.backward()
    for (parameter_name, _), gradient in zip(model.named_parameters(), wanted, strict=True):
        torch.testing.assert_close(flat.gradient(parameter_name), gradient)
    assert all(torch.equal(then, now) for now, then in log.sent)
    assert sum(len(now) for now, _ in log.sent) == flat.values.numel()
    assert [number for event, number in log.events if event == "sent"] == list(
        reversed(range(len(log.blocks)))
    )
    embeddings = 1
    for segment in range(1, SEGMENTS):
        sent, lower = ("sent", embeddings + segment), ("computed", segment - 1)
        assert log.events.index(sent) < log.events.index(lower)
    assert all(p.grad is None for p in model.parameters())
