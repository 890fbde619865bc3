"""Adam and AdamW in two calls for all parameters of a model: the gradients' norm, the update."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from operator import is_
from typing import Any

import torch
from torch import distributed

from fusewire.errors import ConfigurationError
from fusewire.train.flat import FlatParameters
from fusewire.train.fsdp import refuse_divided
from fusewire.train.runs import MOMENTS, Member, Run, Update, layout, runs
from fusewire.train.shards import Shards, State, by_parameter
from fusewire.train.step_factors import StepFactors
from fusewire.train.torch_tensors import PARAMETER_DTYPES

# Options of torch's optimizers of this name that this one does not have.
_LACKS = ("amsgrad", "maximize", "differentiable")


class Adam(torch.optim.Optimizer):
    """torch.optim.AdamW, or torch.optim.Adam with `adamw=False`, with clip_grad_norm_ built in.

        optimizer = fusewire.train.Adam(model.parameters(), lr=5e-5, max_grad_norm=1.0)

    Parameters are fp32 or bf16, on the CPU or on GPUs, their gradients fp32 (as `replace` makes
    those of bf16 parameters; otherwise set their `grad_dtype`), and so are the moments. New values
    in bf16 are rounded stochastically, by numbers that depend on the step and on the place in the
    buffer alone (csrc/core/stochastic_rounding.h). Parameters that are adjacent in memory, as
    FlatParameters lays them out, are updated by one call, the others by one call each. Parameter
    groups have their own `lr` and `weight_decay` (default: 0.01 for AdamW, 0 for Adam), which
    schedulers may change.
    `max_grad_norm`: all gradients together are scaled to at most this norm (Pascanu et al. 2013);
    switch off the clipping of the host (Trainer, Accelerate, Lightning). The gradients themselves
    are not changed.

    A step whose gradients have NaN or Inf, or squares that overflow fp32, changes nothing and is
    counted in `skipped_steps`. So is one whose gradients are all 0, as those of a batch without
    labels are: torch's optimizers go on by momentum and decay. `gradient_norm` is the norm of the
    last step's gradients before clipping, also of a skipped step. A GradScaler passes its scale to
    `step`, which divides by it. On a GPU `step` does not synchronise; reading `skipped_steps` or
    `gradient_norm` waits for the steps so far. `state_dict` has the format of torch's optimizers:
    checkpoints load either way. `state` and `param_groups` may be changed between steps, as in
    torch: a parameter without `state` begins anew.

    `process_group`, for example torch.distributed.group.WORLD: its processes, whose gradients are
    equal (DistributedDataParallel makes them so, and Step those of each part), share the work. Each
    process updates a part of the parameters, of about the same size, holds the moments of that part
    alone, and receives the other values from the other processes. Gradients are clipped by the norm
    of all of them, and either all processes skip a step or none does. `step` waits for all of them,
    and so does `consolidate_state_dict`, which has to be called before `state_dict`. By default
    each process has everything.

    Adam: Kingma and Ba 2015, algorithm 1; AdamW: Loshchilov and Hutter 2019, algorithm 2. Raises
    ConfigurationError for settings out of range and for parameters that it cannot update.
    """

    # Tells GradScaler that `step` reads the attributes grad_scale and found_inf, which it sets.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float | None = None,
        *,
        adamw: bool = True,
        max_grad_norm: float | None = None,
        process_group: distributed.ProcessGroup | None = None,
    ) -> None:
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise ConfigurationError(
                f"max_grad_norm: got {max_grad_norm}, wanted a number above 0, or None"
            )
        self.max_grad_norm = max_grad_norm
        self.process_group = process_group
        # Made by the first step: where parameters are may change until then. Of an optimizer with
        # a group _consolidated has the state before, and again once it was gathered.
        self._shards: Shards | None = None
        self._consolidated: State | None = {}
        self._norm = torch.tensor(math.nan)
        self._skipped = torch.tensor(0.0)
        # How often parameters, gradients and moments were found anew: recordings of them are old.
        self.layouts = 0
        # Whose rounded copies, which kernels read, the last step wrote with the parameters.
        self.copied: list[FlatParameters] = []
        self._forget_runs()
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": (1e-2 if adamw else 0.0) if weight_decay is None else weight_decay,
            "decoupled_weight_decay": adamw,
            # For torch's optimizers, which load what this one saves.
            "amsgrad": False,
            "maximize": False,
            "foreach": None,
            "capturable": False,
            "differentiable": False,
            "fused": None,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in torch; checks the group."""
        if self._shards is not None:
            raise ConfigurationError(
                "param_groups: got another one when the parameters were shared out to processes, "
                "wanted all before the first step; make an optimizer anew"
            )
        super().add_param_group(param_group)
        _check(self.param_groups[-1])
        self._forget_runs()

    @property
    def gradient_norm(self) -> float:
        """The norm of the last step's gradients before clipping; NaN before the first step."""
        return float(self._norm)

    @property
    def skipped_steps(self) -> int:
        """The number of steps that changed nothing because their gradients were not finite, or
        all 0."""
        return int(self._skipped)

    def read_rates(self) -> None:
        """Reads the current learning rates and decays of the groups. `step` calls it; code that
        replays a recorded step has to call it before each replay."""
        for run in self._runs:
            run.read_rates()

    def follow(self) -> None:
        """Finds parameters and moments anew in the next step where `state` or `param_groups` have
        others than in the last one. `step` calls it; code that replays a recorded step has to call
        it before, and to record anew where `layouts` changed."""
        now = self._parts_of_runs()
        if self._runs and not (len(now) == len(self._kept) and all(map(is_, now, self._kept))):
            self._forget_runs()

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step over all parameters that have a gradient. Returns what `closure` returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        current = self._current_runs()
        if self._factors is None or not (current or self._shards):
            return loss
        gradients = [run.gradients() for run in current]
        factors = self._factors.of_step(
            gradients,
            self.max_grad_norm,
            getattr(self, "grad_scale", None),
            getattr(self, "found_inf", None),
        )
        self.read_rates()
        copies = self._copies_to_write(current)
        updates = list(zip(current, gradients, factors, strict=True))
        if self._shards is None:
            for run, gradient, factor in updates:
                run.step(gradient, factor, None if run.flat is None else copies.get(run.flat))
        else:

            def step(block: int) -> None:
                for run, gradient, factor in updates:
                    if run.block == block:
                        run.step(gradient, factor)

            self._shards.update(step, copies)
            self._consolidated = None
        self.copied = list(copies)
        return loss

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Gathers the state of all processes in process `to`, whose `state_dict` has it until the
        next step. All processes of the group have to call it. (The name is that of torch's
        ZeroRedundancyOptimizer.) Without a group there is nothing to do."""
        if self._shards is not None:
            self._consolidated = self._shards.consolidated(self.state, to)

    def state_dict(self) -> dict[str, Any]:
        """As in torch. Raises ConfigurationError where other processes hold a part of the state."""
        found: dict[str, Any] = super().state_dict()
        if self.process_group is None:
            return found
        if self._consolidated is None:
            raise ConfigurationError(
                "state_dict: got a part of the moments, as others are in other processes, wanted "
                "all; call consolidate_state_dict() in every process before, and state_dict() in "
                "process 0"
            )
        whole = {i: self._consolidated.get(p) for i, p in enumerate(self._parameters())}
        return found | {"state": {i: state for i, state in whole.items() if state is not None}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch; takes the state of this class or of torch's Adam and AdamW. The state is
        copied; whether decay is decoupled does not change."""
        for group in state_dict["param_groups"]:
            for name in _LACKS:
                if group.get(name):
                    raise ConfigurationError(
                        f"{name}: got a checkpoint of an optimizer with it, wanted one without; go "
                        "on with torch's optimizer"
                    )
        if self.process_group is not None:
            self._shards = None
            self._consolidated = by_parameter(state_dict, self._parameters())
            state_dict = state_dict | {"state": {}}
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            group["decoupled_weight_decay"] = self.defaults["decoupled_weight_decay"]
        every = self._parameters()
        is_half = any(p.dtype != torch.float32 for p in every)
        given = by_parameter(state_dict, every) if is_half else {}
        for p, state in self.state.items():
            for name, value in state.items():
                # torch has rounded the moments of parameters in 16 bits.
                rounded = name in MOMENTS and p.dtype != torch.float32
                exact = given[p][name].to(p.device) if rounded else value
                state[name] = torch.as_tensor(exact, dtype=torch.float32).clone()

    def __getstate__(self) -> dict[str, Any]:
        if self.process_group is not None:
            raise ConfigurationError(
                "process_group: got an optimizer to copy whose other parts are in other processes, "
                "wanted one without; copy its state_dict"
            )
        kept = ("max_grad_norm", "process_group", "_shards", "_norm", "_skipped")
        return super().__getstate__() | {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.layouts = getattr(self, "layouts", 0)
        self._forget_runs()

    def _forget_runs(self) -> None:
        self.layouts += 1
        self._runs: list[Run] = []
        self._factors: StepFactors | None = None
        self._seen: list[Any] = []
        self._kept: list[Any] = []
        self.copied = []

    def _current_runs(self) -> list[Run]:
        """The runs of all parameters that have a gradient: those of the last step where parameters
        and gradients are adjacent as they were then, otherwise new ones."""
        self.follow()
        given = [
            (p, group)
            for group in self.param_groups
            for p in group["params"]
            if p.grad is not None and p.numel() > 0
        ]
        for p, _ in given:
            _check_gradient(p)
        seen = layout([p for p, _ in given])
        seen += [(*group["betas"], group["eps"]) for group in self.param_groups]
        if seen != self._seen:
            self.layouts += 1
            members = self._members(given)
            for member in members:
                p = member.parameter
                if not self.state[p]:
                    self.state[p]["step"] = torch.tensor(0.0)
                    for name in MOMENTS:
                        part = member.part_of(p)
                        self.state[p][name] = torch.zeros_like(part, dtype=torch.float32)
            taken = _numbers([self.state[member.parameter]["step"] for member in members])
            steps = {m.parameter: int(one) for m, one in zip(members, taken, strict=True)}
            self._runs = list(runs(members, partial(_update_of, steps), self.state))
            if self._runs or self._shards:
                home = self._runs[0].device if self._runs else self._parameters()[0].device
                self._factors = StepFactors(
                    self._runs, self.state, self._norm, self._skipped, home, self._shards
                )
                self._norm, self._skipped = self._factors.norm, self._factors.skipped
            self._seen, self._kept = seen, self._parts_of_runs()
        return self._runs

    def _members(self, given: list[tuple[torch.Tensor, dict[str, Any]]]) -> list[Member]:
        """The parts of these parameters that this process updates."""
        if self.process_group is None:
            return [Member(p, group, 0, p.numel()) for p, group in given]
        shards = self.shards()
        shards.check_places()
        members = [Member(p, group, *shards.range(p)) for p, group in given]
        return [member for member in members if member.begin < member.end]

    def _copies_to_write(self, current: list[Run]) -> dict[FlatParameters, torch.Tensor]:
        flats = dict.fromkeys(run.flat for run in current if run.flat is not None)
        copies = {flat: flat.copy_to_write() for flat in flats}
        return {flat: copy for flat, copy in copies.items() if copy is not None}

    def shards(self) -> Shards:
        """The parameters, cut into one part per process. All processes of the group have to call it
        the first time."""
        assert self.process_group is not None
        if self._shards is None:
            assert self._consolidated is not None
            self._shards = Shards(self._parameters(), self.process_group)
            self.state.update(self._shards.parts_of(self._consolidated))
        return self._shards

    def _parts_of_runs(self) -> list[Any]:
        """Groups and their parameters, and what the optimizer's state has of these."""
        grouped = [part for group in self.param_groups for part in (group, *group["params"])]
        names = ("step", *MOMENTS)
        return grouped + [state.get(name) for state in self.state.values() for name in names]

    def _parameters(self) -> list[torch.Tensor]:
        return [p for group in self.param_groups for p in group["params"]]


def _update_of(taken: dict[torch.Tensor, int], member: Member) -> Update:
    beta1, beta2 = member.group["betas"]
    decoupled = bool(member.group["decoupled_weight_decay"])
    return beta1, beta2, member.group["eps"], decoupled, taken[member.parameter]


def _numbers(scalars: list[torch.Tensor]) -> list[float]:
    """The values of the tensors, with one synchronisation per device."""
    found: dict[int, float] = {}
    by_device: dict[torch.device, list[int]] = {}
    for number, scalar in enumerate(scalars):
        by_device.setdefault(scalar.device, []).append(number)
    for numbers in by_device.values():
        values = torch.stack([scalars[number] for number in numbers]).tolist()
        found.update(zip(numbers, values, strict=True))
    return [found[number] for number in range(len(scalars))]


def _check(group: dict[str, Any]) -> None:
    for name, least, below in (("lr", 0, math.inf), ("eps", 0, 1), ("weight_decay", 0, math.inf)):
        if not least <= float(group[name]) < below:
            raise ConfigurationError(f"{name}: got {group[name]}, wanted [{least}, {below})")
    if len(group["betas"]) != 2 or not all(0 <= beta < 1 for beta in group["betas"]):
        raise ConfigurationError(f"betas: got {group['betas']}, wanted two of [0, 1)")
    for p in group["params"]:
        refuse_divided("params", p)
        on_either = p.device.type in ("cpu", "cuda")
        if p.dtype not in PARAMETER_DTYPES or not on_either or not p.is_contiguous():
            raise ConfigurationError(
                f"params: got {str(p.dtype).removeprefix('torch.')} of shape {list(p.shape)} on "
                f"{p.device}, strides {p.stride()}, wanted contiguous float32 or bfloat16 on the "
                "CPU or a GPU; update it with torch's optimizer"
            )


def _check_gradient(p: torch.Tensor) -> None:
    assert p.grad is not None
    if p.grad.layout != torch.strided:
        raise ConfigurationError(
            f"grad: got layout {p.grad.layout} for a parameter of shape {list(p.shape)}, wanted "
            "dense gradients; make the embedding without sparse=True"
        )
    if p.grad.dtype != torch.float32:
        raise ConfigurationError(
            f"grad: got {p.grad.dtype} for a parameter of shape {list(p.shape)}, wanted float32; "
            "call zero_grad() before a model is converted, and set grad_dtype = torch.float32 of "
            "bfloat16 parameters that replace() has not seen"
        )
