"""Parameters that follow each other in memory, with their gradients: what one call updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.nn import Parameter

from fusewire import kernels
from fusewire.train.torch_tensors import view

MOMENTS = ("exp_avg", "exp_avg_sq")
Update = tuple[float, float, float, bool, int]  # beta1, beta2, eps, decoupled, steps taken


class Run:
    """Some parameters, of one or several groups of an optimizer, whose values, gradients and
    moments are each one fp32 array [elements] in memory.

    `state`: an optimizer's, by parameter; moments that are not one array yet become views of new
    ones. `update`: betas, eps, whether decay is decoupled, and how many
    steps were taken: one of each for all parameters of a run.
    """

    def __init__(
        self, members: list[tuple[Parameter, dict[str, Any]]], update: Update, state: Any
    ) -> None:
        self.parameters: list[torch.Tensor] = [p for p, _ in members]
        self.update = update
        self._groups = [group for _, group in members]
        self.device = self.parameters[0].device
        ends = np.cumsum([0, *(p.numel() for p in self.parameters)], dtype=np.int64)
        self.segments = view(torch.from_numpy(ends).to(self.device))
        self._settings = torch.empty(2, len(members), dtype=torch.float32, device=self.device)
        self._known: list[list[float]] = []  # that are in _settings
        self.rates, self.decays = map(view, self._settings)
        self.values = _array(self.parameters)
        self.exp_avg, self.exp_avg_sq = (self._moment(name, state) for name in MOMENTS)

    def gradients(self) -> kernels.Tensor:
        """As they are now. Not kept: torch frees gradients between steps, and reuses memory."""
        return _array([p.grad for p in self.parameters if p.grad is not None])

    def read_rates(self) -> None:
        """Takes learning rates and decays as they are now."""
        now = [[float(group[name]) for group in self._groups] for name in ("lr", "weight_decay")]
        if now != self._known:
            self._known = now
            self._settings.copy_(torch.tensor(now, dtype=torch.float32), non_blocking=True)

    def _moment(self, name: str, state: Any) -> kernels.Tensor:
        tensors = [state[p][name] for p in self.parameters]
        if not all(follows(*pair) for pair in pairwise(tensors)):
            joined = torch.cat([tensor.reshape(-1) for tensor in tensors])
            pieces = joined.split([p.numel() for p in self.parameters])
            tensors = [piece.view_as(p) for piece, p in zip(pieces, self.parameters, strict=True)]
            for p, tensor in zip(self.parameters, tensors, strict=True):
                state[p][name] = tensor
        return _array(tensors)


def runs(
    members: list[tuple[Parameter, dict[str, Any]]],
    update_of: Callable[[Parameter, dict[str, Any]], Update],
    state: Any,
) -> Iterator[Run]:
    """The fewest runs of these parameters, each of which has a gradient.

    A gradient that is not contiguous is replaced by one that is.
    """
    run: list[tuple[Parameter, dict[str, Any]]] = []
    last: Update | None = None
    for p, group in sorted(members, key=lambda member: member[0].data_ptr()):
        if p.grad is not None and not p.grad.is_contiguous():
            p.grad = p.grad.contiguous()
        update = update_of(p, group)
        if run and (update != last or not _continues(run[-1][0], p)):
            assert last is not None
            yield Run(run, last, state)
            run = []
        run.append((p, group))
        last = update
    if last is not None:
        yield Run(run, last, state)


def _continues(before: Parameter, after: Parameter) -> bool:
    assert before.grad is not None
    assert after.grad is not None
    return follows(before, after) and follows(before.grad, after.grad)


def follows(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether a contiguous fp32 tensor begins where another ends, in the same storage."""
    return (
        after.data_ptr() == before.data_ptr() + 4 * before.numel()
        and after.untyped_storage().data_ptr() == before.untyped_storage().data_ptr()
    )


def _array(tensors: list[torch.Tensor]) -> kernels.Tensor:
    """Tensors that follow each other, as fp32 [elements]: their memory, not a copy."""
    elements = sum(tensor.numel() for tensor in tensors)
    first = tensors[0].detach()
    return view(first.as_strided((elements,), (1,), first.storage_offset()))
