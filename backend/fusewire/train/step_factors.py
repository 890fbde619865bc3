"""What a step of Adam is computed with that changes from step to step, on the device: nothing on
the host waits for it, and a recorded step finds it anew at every replay."""

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

# torch's clip_grad_norm_ divides by the norm and this.
_CLIP_EPS = 1e-6


class StepFactors:
    """Of runs that step together, from the gradients of all of them, in the other processes of
    `shards` too.

    `norm` is that of the last step's gradients, before clipping; `skipped` counts the steps whose
    gradients were not finite. Both are fp64 on the device `home`, and so is, in fp32, the number of
    steps taken, which `state` has by parameter.
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
        self._runs, self._shards = runs, shards
        self.norm, self.skipped = norm.to(home), skipped.to(home)
        # Sum of squares and count of numbers that are not finite, by run.
        self._squares = {
            device: torch.empty(len(runs), 2, dtype=torch.float32, device=device).zero_()
            for device in dict.fromkeys(run.device for run in runs)
        }
        betas = [run.update[:2] for run in runs]
        self._betas = torch.tensor(betas, dtype=torch.float64).reshape(-1, 2).to(home)
        # A number for each parameter, as torch's checkpoints have it; those of a run are equal.
        members = [(p, float(run.update[4])) for run in runs for p in run.parameters]
        self._steps = torch.tensor([taken for _, taken in members], dtype=torch.float32).to(home)
        for (p, _), taken in zip(members, self._steps, strict=True):
            state[p]["step"] = taken
        firsts = np.cumsum([0, *(len(run.parameters) for run in runs[:-1])])
        self._firsts = torch.from_numpy(firsts).to(home)

    def of_step(
        self,
        gradients: list[kernels.Tensor],
        max_norm: float | None,
        scale: Any,
        found_inf: Any,
    ) -> list[kernels.Tensor]:
        """`factors` of kernels.adam, by run; counts the step. `scale`: that gradients have, or
        None. `found_inf`: above 0 where they are known not to be finite, or None."""
        for row, (run, gradient) in enumerate(zip(self._runs, gradients, strict=True)):
            out = self._squares[run.device][row]
            kernels.gradient_norm(view(out), gradient, stream_of(run.device))
        home = self.norm.device
        sums = [squares.sum(0, dtype=torch.float64).to(home) for squares in self._squares.values()]
        none = torch.zeros(0, 2, dtype=torch.float64, device=home)
        total = sums[0] if len(sums) == 1 else torch.stack(sums).sum(0) if sums else none.sum(0)
        if found_inf is not None:
            total[1].add_(torch.as_tensor(found_inf, device=home))
        if self._shards is not None:
            between_graphs(partial(self._shards.add_up, total))
        square, broken = total
        norm = square.sqrt()
        good = (square < math.inf) & (broken == 0)
        if scale is not None:
            unscale = 1.0 / torch.as_tensor(scale, dtype=torch.float64, device=home)
            norm = norm * unscale
        self.norm.copy_(norm)
        self.skipped.add_(~good)
        factor = torch.ones_like(norm) if max_norm is None else _clip(norm, max_norm)
        factor = torch.where(good, factor if scale is None else factor * unscale, math.nan)
        self._steps.add_(good)
        taken = self._steps.index_select(0, self._firsts)
        rest = 1.0 - self._betas ** taken[:, None]
        rows = torch.stack([factor.expand(len(rest)), 1.0 / rest[:, 0], rest[:, 1].rsqrt()], 1)
        rows = rows.to(torch.float32)
        return [view(rows[row].to(run.device)) for row, run in enumerate(self._runs)]


def _clip(norm: torch.Tensor, most: float) -> torch.Tensor:
    return (most / (norm + _CLIP_EPS)).clamp(max=1.0)
