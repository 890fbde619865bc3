"""Inputs of an Adam step that change from step to step, kept on the device: nothing synchronises,
and a replayed step finds the new values."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch

from fusewire import kernels
from fusewire.train.recording import between_graphs
from fusewire.train.runs import Run
from fusewire.train.shards import Shards
from fusewire.train.torch_tensors import stream_of, view


class StepFactors:
    """Factors for runs that step together, from the gradients of all of them, also in the other
    processes of `shards`.

    `norm` is the norm of the last step's gradients, before clipping; `skipped` counts the steps
    whose gradients were not finite, or all 0. Both are on the device `home`, and so is the number
    of steps taken, which `state` has by parameter.
    """

    def __init__(
        self,
        runs: list[Run],
        state: Any,
        norm: torch.Tensor,
        skipped: torch.Tensor,
        home: torch.device,
        shards: Shards | None,
    ) -> None:
        self._runs, self._shards, self._home = runs, shards, home
        self.norm = norm.to(home, torch.float32).reshape(1)
        self.skipped = skipped.to(home, torch.float32).reshape(1)
        # Sums of squares and numbers of elements that are not finite, for parts of each run.
        parts = [_parts_of(run) for run in runs]
        self._squares: list[torch.Tensor] = []  # by device
        self._parts: dict[int, kernels.Tensor] = {}  # by run
        for device in dict.fromkeys(run.device for run in runs):
            there = [row for row, run in enumerate(runs) if run.device == device]
            sizes = [parts[row] for row in there]
            squares = torch.zeros(sum(sizes), 2, dtype=torch.float32, device=device)
            self._squares.append(squares)
            self._parts |= zip(there, map(view, squares.split(sizes)), strict=True)
        betas = [run.update[:2] for run in runs]
        log_betas = torch.tensor(betas, dtype=torch.float64).reshape(-1, 2).log()
        # One number per parameter, as in torch's checkpoints; those of a run are equal.
        members = [(p, float(run.update[4])) for run in runs for p in run.parameters]
        steps = torch.tensor([taken for _, taken in members], dtype=torch.float32).to(home)
        for (p, _), taken in zip(members, steps, strict=True):
            state[p]["step"] = taken
        firsts = np.cumsum([0, *(len(run.parameters) for run in runs)], dtype=np.int64)[:-1]
        self._factors = torch.empty(len(runs), 4, dtype=torch.float32, device=home)
        self._rows = list(self._factors)
        self._results = [view(t) for t in (self._factors, self.norm, self.skipped, steps)]
        self._settings = [
            view(t.to(home)) for t in (torch.from_numpy(firsts), log_betas.to(torch.float32))
        ]

    def of_step(
        self,
        gradients: list[kernels.Tensor],
        max_norm: float | None,
        scale: Any,
        found_inf: Any,
    ) -> list[kernels.Tensor]:
        """`factors` of kernels.adam, by run; counts the step. `scale`: the factor that the
        gradients contain, or None. `found_inf`: above 0 where they are known not to be finite, or
        None."""
        for row, (run, gradient) in enumerate(zip(self._runs, gradients, strict=True)):
            kernels.gradient_norm(self._parts[row], gradient, stream_of(run.device))
        home = self._home
        sums = [squares.to(home) for squares in self._squares]
        total = sums[0] if len(sums) == 1 else torch.cat([self._factors[:0, :2], *sums])
        if found_inf is not None or self._shards is not None:
            total = total.sum(0, keepdim=True)
        if found_inf is not None:
            total[0, 1].add_(torch.as_tensor(found_inf, device=home))
        if self._shards is not None:
            between_graphs(partial(self._shards.add_up, total))
        if scale is not None:
            scale = torch.as_tensor(scale, dtype=torch.float32, device=home).reshape(1)
        kernels.adam_factors(
            *self._results,
            view(total),
            *self._settings,
            math.inf if max_norm is None else max_norm,
            None if scale is None else view(scale),
            stream_of(home),
        )
        return [view(row.to(run.device)) for run, row in zip(self._runs, self._rows, strict=True)]


def _parts_of(run: Run) -> int:
    """In how many parts the squares of a run's gradients are summed: blocks of a GPU, each of which
    reads 64 KiB or more. As many are enough for its memory's bandwidth."""
    return min(max(run.elements // 2**14, 1), 1024)
