"""Parameters that are adjacent in memory, and so are their gradients: one call updates them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from fusewire import kernels
from fusewire.train.flat import FlatParameters, flat_of
from fusewire.train.torch_tensors import staged, stream_of, view

MOMENTS = ("exp_avg", "exp_avg_sq")
Update = tuple[float, float, float, bool, int]  # beta1, beta2, eps, decoupled, steps taken


class Member(NamedTuple):
    """A parameter of an optimizer's group, whose elements [begin, end) are updated. `block`: a
    number that all members of a run share."""

    parameter: torch.Tensor
    group: dict[str, Any]
    begin: int
    end: int
    block: int = 0

    def part_of(self, whole: torch.Tensor) -> torch.Tensor:
        """The elements of this member of a tensor of the parameter's shape; the tensor itself where
        that is all of it."""
        if self.end - self.begin == self.parameter.numel():
            return whole
        return whole.view_as(self.parameter).reshape(-1)[self.begin : self.end]


class Run:
    """Some parameters, of one or several groups of an optimizer, whose values, gradients and
    moments are each one array [elements] in memory: values fp32 or bf16, the others fp32. It may
    begin or end inside of a parameter.

    `state`: the optimizer's, by parameter; moments that are not one array yet become views of new
    ones. `update`: betas, eps, whether decay is decoupled, and the number of steps taken, which all
    parameters of a run share.
    """

    def __init__(self, members: list[Member], update: Update, state: Any) -> None:
        self.parameters = [member.parameter for member in members]
        self.update = update
        self._members = members
        self._groups = [member.group for member in members]
        self.device = self.parameters[0].device
        self._sizes = [member.end - member.begin for member in members]
        self.elements = sum(self._sizes)
        ends = np.cumsum([0, *self._sizes], dtype=np.int64)
        self.segments = view(torch.from_numpy(ends).to(self.device))
        self._settings = torch.empty(2, len(members), dtype=torch.float32, device=self.device)
        self._known: list[list[float]] = []  # the contents of _settings
        self.rates, self.decays = map(view, self._settings)
        self.values = self._part_of(self.parameters)
        self.flat = flat_of(self.parameters[0])
        self.block = members[0].block
        self.exp_avg, self.exp_avg_sq = (self._moment(name, state) for name in MOMENTS)

    def gradients(self) -> kernels.Tensor:
        """The current gradients. They are not cached: torch frees gradients between steps, and
        reuses memory."""
        return self._part_of([p.grad for p in self.parameters if p.grad is not None])

    def step(
        self,
        gradients: kernels.Tensor,
        factors: kernels.Tensor,
        copy: torch.Tensor | None = None,
    ) -> None:
        """Updates values and moments with the `factors` of kernels.adam, and its elements of
        `copy`, a copy of the buffer of `flat`."""
        beta1, beta2, eps, decoupled, _ = self.update
        # The place in the buffer: where processes share the work, the numbers by which values are
        # rounded are those of a single process.
        begin = 0 if self.flat is None else self.flat.begin_of(self.parameters[0])
        begin += self._members[0].begin
        copy = None if copy is None else copy[begin : begin + self.elements]
        kernels.adam(
            self.values,
            gradients,
            self.exp_avg,
            self.exp_avg_sq,
            self.segments,
            self.rates,
            self.decays,
            beta1,
            beta2,
            eps,
            factors,
            decoupled,
            None if copy is None else view(copy),
            begin,
            stream_of(self.device),
        )

    def read_rates(self) -> None:
        """Reads the current learning rates and decays of the groups."""
        now = [[float(group[name]) for group in self._groups] for name in ("lr", "weight_decay")]
        if now != self._known:
            self._known = now
            settings = torch.tensor(now, dtype=torch.float32)
            self._settings.copy_(staged(settings, self.device), non_blocking=True)

    def _moment(self, name: str, state: Any) -> kernels.Tensor:
        tensors = [state[p][name] for p in self.parameters]
        if not all(follows(*pair) for pair in pairwise(tensors)):
            joined = torch.cat([tensor.reshape(-1) for tensor in tensors]).split(self._sizes)
            tensors = [piece.view_as(old) for piece, old in zip(joined, tensors, strict=True)]
            for p, tensor in zip(self.parameters, tensors, strict=True):
                state[p][name] = tensor
        return view(array(tensors))

    def _part_of(self, tensors: list[torch.Tensor]) -> kernels.Tensor:
        begin = self._members[0].begin
        return view(array(tensors)[begin : begin + self.elements])


def runs(
    members: list[Member],
    update_of: Callable[[Member], Update],
    state: Any,
) -> Iterator[Run]:
    """The smallest number of runs for these parameters, each of which has a gradient.

    A gradient that is not contiguous is replaced by a contiguous one.
    """
    run: list[Member] = []
    last: Update | None = None
    for member in sorted(members, key=lambda member: member.parameter.data_ptr()):
        p = member.parameter
        if p.grad is not None and not p.grad.is_contiguous():
            p.grad = p.grad.contiguous()
        update = update_of(member)
        if run and (
            update != last or run[-1].block != member.block or not _continues(run[-1].parameter, p)
        ):
            assert last is not None
            yield Run(run, last, state)
            run = []
        run.append(member)
        last = update
    if last is not None:
        yield Run(run, last, state)


def layout(parameters: list[torch.Tensor]) -> list[Any]:
    """The addresses of parameters, sorted, and which gradients are adjacent: torch allocates some
    anew in each step. Equal layouts have equal runs."""
    found: list[Any] = []
    before: torch.Tensor | None = None
    for p in sorted(parameters, key=torch.Tensor.data_ptr):
        gradient = p.grad
        assert gradient is not None
        joined = before is not None and follows(before, gradient)
        found.append((p.data_ptr(), joined, gradient.is_contiguous()))
        before = gradient
    return found


def _continues(before: torch.Tensor, after: torch.Tensor) -> bool:
    assert before.grad is not None
    assert after.grad is not None
    return follows(before, after) and follows(before.grad, after.grad)


def follows(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether a contiguous tensor begins where another of its dtype ends, in the same
    allocation."""
    if after.dtype != before.dtype or after.data_ptr() != before.data_ptr() + before.nbytes:
        return False
    storages = (each.untyped_storage().data_ptr() for each in (before, after))
    return len({*storages}) == 1 or allocation(after) == allocation(before)


def allocation(tensor: torch.Tensor) -> FlatParameters | int:
    """The allocation that a tensor is a part of: its parameters' buffer, or the address of its
    storage."""
    return flat_of(tensor) or tensor.untyped_storage().data_ptr()


def array(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Adjacent tensors as one [elements]: their memory, not a copy."""
    elements = sum(tensor.numel() for tensor in tensors)
    first = tensors[0].detach()
    if (flat := flat_of(first)) is not None:
        return flat.values[flat.begin_of(first) :][:elements]
    return first.as_strided((elements,), (1,), first.storage_offset())
