"""Parameters of which each process updates a part, and holds the moments of that part alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import distributed

from fusewire.errors import ConfigurationError
from fusewire.train.flat import FlatParameters, flat_of
from fusewire.train.recording import between_graphs
from fusewire.train.runs import MOMENTS, allocation, array, follows
from fusewire.train.torch_tensors import weights_were_written

# torch 2.13 renamed these functions, and warns about the old names.
_all_gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
_reduce_scatter = (
    getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor
)

Block = list[torch.Tensor]  # parameters that are adjacent in memory
State = dict[torch.Tensor, dict[str, torch.Tensor]]  # step and moments, by parameter


class Shards:
    """The parameters of an optimizer, cut into one part per process of a group.

    Parameters that are adjacent in memory, as FlatParameters lays them out, form a `block`; each
    section is a block of its own. A block is cut as one array into equal parts (the last process
    also takes the remainder), so that one call sums its gradients and one gathers its new values; a
    cut may go through a parameter. Every process has to make the same calls.

    ZeRO stage 1: Rajbhandari et al. 2020, section 5.1. Raises ConfigurationError where the
    processes do not have the same parameters in the same order.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], group: distributed.ProcessGroup) -> None:
        self._group = group
        self._rank, self._processes = distributed.get_rank(group), group.size()
        self._parameters = parameters
        self.blocks = blocks(parameters)
        self._ranges: dict[torch.Tensor, tuple[int, int, int]] = {}
        for number, block in enumerate(self.blocks):
            begin, end = self._own(sum(p.numel() for p in block))
            for p, at in _places(block):
                cut = [min(max(border - at, 0), p.numel()) for border in (begin, end)]
                self._ranges[p] = cut[0], cut[1], number
        self._check_others()

    def range(self, parameter: torch.Tensor) -> tuple[int, int, int]:
        """The elements [begin, end) of a parameter that belong to this process (none if they are
        equal), and the number of its block."""
        return self._ranges.get(parameter, (0, 0, 0))

    def check_places(self) -> None:
        """Raises ConfigurationError where parameters are no longer adjacent as they were."""
        now = [[id(p) for p in block] for block in blocks(self._parameters)]
        if now != [[id(p) for p in block] for block in self.blocks]:
            raise ConfigurationError(
                "params: got parameters that lie in memory otherwise than at the first step, when "
                "they were cut, wanted them as they were; call replace(model) before"
            )

    def add_up(self, own: torch.Tensor) -> None:
        """Replaces a tensor by the sum over all processes."""
        distributed.all_reduce(own, group=self._group)

    def reduce(self, gradients: torch.Tensor) -> list[distributed.Work]:
        """Starts to replace this process's part of a block's gradients, given as one array, by the
        sum over all processes. The other parts are invalid afterwards."""
        even, own, rest = self._cut(gradients)
        works = []
        if len(own):
            works.append(_reduce_scatter(own, even, group=self._group, async_op=True))
        if len(rest):
            works.append(distributed.all_reduce(rest, group=self._group, async_op=True))
        return works

    def gather(self, whole: torch.Tensor) -> list[distributed.Work]:
        """Starts to fill the array of a block, of which this process's part is valid, with the
        parts of the other processes."""
        even, own, rest = self._cut(whole)
        works = []
        if len(own):
            works.append(_all_gather(even, own, group=self._group, async_op=True))
        if len(rest):
            last = distributed.get_global_rank(self._group, self._processes - 1)
            works.append(distributed.broadcast(rest, last, group=self._group, async_op=True))
        return works

    def update(
        self, step: Callable[[int], None], copies: Mapping[FlatParameters, torch.Tensor]
    ) -> None:
        """Calls `step` with the number of each block, which writes this process's part of it, and
        receives the other parts: they are sent while the next block is written. Copies of buffers
        are written too."""
        # The last block first: heads are small, so sending starts early.
        arrays = list(enumerate(array(block) for block in self.blocks))[::-1]
        travelling: list[list[distributed.Work]] = []

        def wait() -> None:
            for work in travelling.pop(0):
                work.wait()

        def send(values: torch.Tensor) -> None:
            travelling.append(self.gather(values))

        for number, values in arrays:
            step(number)
            between_graphs(partial(send, values))
        for _, values in arrays:
            between_graphs(wait)
            flat = flat_of(values)
            if flat is not None and flat in copies:
                copies[flat][flat.begin_of(values) :][: len(values)].copy_(values)
        for device in dict.fromkeys(values.device for _, values in arrays):
            weights_were_written(device)

    def parts_of(self, whole: State) -> State:
        """The part of an optimizer's state, by parameter, that belongs to this process, on the
        parameters' devices."""
        parts = {}
        for p, state in whole.items():
            begin, end, _ = self.range(p)
            if begin < end:
                moments = {name: state[name].reshape(-1)[begin:end] for name in MOMENTS}
                parts[p] = {
                    name: tensor.to(p.device, torch.float32, copy=True)
                    for name, tensor in ({"step": state["step"]} | moments).items()
                }
        return parts

    def consolidated(self, state: State, to: int) -> State | None:
        """The inverse of `parts_of`: the state of all processes, joined on the CPU; None in other
        processes than `to`. The device holds the whole moment of one block at a time."""
        device = self._parameters[0].device
        taken = torch.tensor(
            [float(state[p]["step"]) if p in state else -1.0 for p in self._parameters],
            device=device,
        )
        distributed.all_reduce(taken, distributed.ReduceOp.MAX, group=self._group)
        whole: State = {
            p: {"step": torch.tensor(steps)}
            for p, steps in zip(self._parameters, taken.tolist(), strict=True)
            if steps >= 0
        }
        for name in MOMENTS:
            for p, moment in self._whole(name, state):
                if p in whole and self._rank == to:
                    whole[p][name] = moment
        return whole if self._rank == to else None

    def _whole(self, name: str, state: State) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for block in self.blocks:
            joined = torch.zeros(sum(p.numel() for p in block), device=block[0].device)
            pieces = joined.split([p.numel() for p in block])
            for p, piece in zip(block, pieces, strict=True):
                if p in state:
                    begin, end, _ = self._ranges[p]
                    piece[begin:end] = state[p][name].reshape(-1)
            for work in self.gather(joined):
                work.wait()
            pieces = joined.cpu().split([p.numel() for p in block])
            yield from ((p, piece.view_as(p)) for p, piece in zip(block, pieces, strict=True))

    def _own(self, elements: int) -> tuple[int, int]:
        size = elements // self._processes
        last = self._rank == self._processes - 1
        return self._rank * size, elements if last else (self._rank + 1) * size

    def _cut(self, whole: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The part of an array that is cut into equal parts, this process's part of it, and the
        remainder."""
        size = len(whole) // self._processes
        even = whole[: size * self._processes]
        return even, even[self._rank * size :][:size], whole[len(even) :]

    def _check_others(self) -> None:
        own = [[p.numel() for p in block] for block in self.blocks]
        every: list[Any] = [None] * self._processes
        distributed.all_gather_object(every, own, group=self._group)
        for rank, other in enumerate(every):
            if other != own:
                raise ConfigurationError(
                    f"params: got other sizes, or another order in memory, in process {rank} than "
                    f"in process {self._rank}, wanted the same; make models and optimizers alike"
                )


def by_parameter(state_dict: dict[str, Any], parameters: Sequence[torch.Tensor]) -> State:
    """The state in an optimizer's state_dict by parameter, copied to the CPU."""
    keys = [key for group in state_dict["param_groups"] for key in group["params"]]
    return {
        p: {
            name: torch.as_tensor(state_dict["state"][key][name]).to("cpu", copy=True)
            for name in ("step", *MOMENTS)
        }
        for key, p in zip(keys, parameters, strict=False)  # torch checks their number
        if key in state_dict["state"]
    }


def blocks(parameters: Sequence[torch.Tensor]) -> list[Block]:
    """The blocks, in an order that does not depend on addresses, which differ between processes."""
    by_allocation: dict[FlatParameters | int, Block] = {}
    for p in parameters:
        if p.numel() > 0:
            by_allocation.setdefault(allocation(p), []).append(p)
    found: list[Block] = []
    for block in by_allocation.values():
        for p in sorted(block, key=torch.Tensor.data_ptr):
            if found and follows(found[-1][-1], p) and section(found[-1][-1]) == section(p):
                found[-1].append(p)
            else:
                found.append([p])
    return found


def section(parameter: torch.Tensor) -> str | None:
    """The section of a parameter in its FlatParameters."""
    flat = flat_of(parameter)
    return None if flat is None else flat.section(flat.begin_of(parameter))


def _places(block: Block) -> Iterator[tuple[torch.Tensor, int]]:
    """The parameters of a block, and the offset of each."""
    return zip(block, accumulate((p.numel() for p in block[:-1]), initial=0), strict=True)
