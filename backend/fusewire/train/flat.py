"""All parameters of a module in one buffer, their gradients in another.

Kernels take a layer's weights as slices of `values` and write their gradients to the same slices of
`gradients`; an optimizer updates everything in one call. For torch nothing changes: parameters keep
their names and shapes, and are views.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd.graph import increment_version
from torch.nn import Module, Parameter

from fusewire.errors import ConfigurationError
from fusewire.train.probes import Probes
from fusewire.train.rounded import RoundedCopies, Version
from fusewire.train.slot import NO_PASS, Slot, check_kind

# Parameters of whole cache lines (16 fp32 elements) are aligned to one: others come last.
_CACHE_LINE = 16

_FLATS: weakref.WeakSet[FlatParameters] = weakref.WeakSet()  # all that have buffers


def flat_of(parameter: torch.Tensor) -> FlatParameters | None:
    """The FlatParameters whose buffer the parameter is a view of, or None."""
    return next((f for f in list(_FLATS) if 0 <= f.begin_of(parameter) < len(f.values)), None)


def _zeros(elements: int, device: torch.device) -> torch.Tensor:
    if device.type == "cpu":  # from calloc: pages of other segments are never touched
        return torch.from_numpy(np.zeros(elements, np.float32))
    return torch.zeros(elements, dtype=torch.float32, device=device)


class GradientPlace(NamedTuple):
    """Where a backward writes the gradients of some parameters, and what it returns to torch."""

    buffer: torch.Tensor  # fp32, laid out as FlatParameters.values
    accumulate: bool  # kernels add to the slices of `buffer` instead of writing them
    returned: list[torch.Tensor | None]  # one for each parameter


class FlatParameters:
    """All parameters of a module, fp32 or bf16 on one device, as views of one buffer. Their
    gradients are fp32 in any case.

        flat = FlatParameters(model, groups=[[query.weight, key.weight, value.weight]])
        flat.relink()                 # at the start of each forward
        flat.values, flat.gradients   # [elements]
        flat.layouts                  # times allocated: what was built on them is outdated

    `groups`: parameters that are adjacent in this order, so that kernels take them as one matrix.
    The others follow in the module's order, those whose size is not a multiple of 16 last. A
    parameter that several modules share has one slice.

    Each parameter has a storage of its own in the buffer's memory: pickle and safetensors, which
    save storages, write only its own elements. A deep copy of the module, or an unpickled one, gets
    buffers of its own on first use. Parameters that are added to the module later are not in the
    buffers.

    Raises ConfigurationError for parameters that are not all fp32 or all bf16 on the CPU or on one
    GPU, and for groups that overlap or whose parameters are not the module's.
    """

    def __init__(self, module: Module, groups: Sequence[Sequence[Parameter]] = ()) -> None:
        self._module: Callable[[], Module | None] = weakref.ref(module)
        names = {id(p): name for name, p in module.named_parameters()}
        grouped = [p for group in groups for p in group]
        for p in grouped:
            if id(p) not in names or sum(p is other for other in grouped) > 1:
                raise ConfigurationError(
                    f"groups: got {names.get(id(p), 'a parameter of another module')} "
                    f"{sum(p is other for other in grouped)} times, wanted each parameter of "
                    f"{type(module).__name__} once at most; pass its own"
                )
        self._groups = [[names[id(p)] for p in group] for group in groups]
        self._relinks = self.layouts = 0
        self._lay_out()

    @property
    def module(self) -> Module:
        module = self._module()
        if module is None:
            raise ConfigurationError("FlatParameters: the module is gone; keep a reference to it")
        return module

    @property
    def values(self) -> torch.Tensor:
        """[elements], in the parameters' dtype"""
        return self._buffers()[0]

    @property
    def gradients(self) -> torch.Tensor:
        """fp32 [elements]; only slices that are the `.grad` of their parameter are valid."""
        return self._buffers()[1]

    def values_in(self, dtype: torch.dtype) -> torch.Tensor:
        """`values` in this dtype, [elements]. In another than theirs it is a copy, which is written
        again after parameters were written."""
        values, _ = self._buffers()
        if values.device.type == "cpu" and dtype == values.dtype:
            return values
        return self._copies.read(dtype, self.version())

    def copy_written_along(self, dtype: torch.dtype) -> AbstractContextManager[None]:
        """While the context is open, the optimizer writes `values_in(dtype)` together with the
        parameters. Of parameters in 16 bits layers read no copy."""
        values, _ = self._buffers()
        read = dtype if values.dtype == torch.float32 else values.dtype
        return self._copies.written_along(read, self.version)

    def copy_to_write(self) -> torch.Tensor | None:
        """The copy [elements] that an optimizer has to write together with the parameters, or
        None."""
        self._buffers()
        return self._copies.to_write(self.version())

    def copy_was_written(self) -> None:
        """Marks the copy as current. To be called after the writes to parameters were counted."""
        self._copies.was_written(self.version())

    @property
    def slots(self) -> list[Slot]:
        """The slots of all parameters, in the order of the buffers."""
        self._buffers()
        return self._slots

    @property
    def names(self) -> list[str]:
        """The names of the parameters (the first name of a tied one), in the order of the
        buffers."""
        return [slot.names[0] for slot in self.slots]

    def offset(self, name: str) -> int:
        """The offset of a parameter in the buffers, in elements."""
        return self._slot(name).begin

    def begin_of(self, tensor: torch.Tensor) -> int:
        """The offset of a tensor that lies in the buffer of values, in elements."""
        return (tensor.data_ptr() - self.values.data_ptr()) // self.values.element_size()

    def make_section(self, names: Sequence[str]) -> None:
        """Marks parameters whose gradients a backward pass computes at the same time: distributed
        training sends each section by itself."""
        for slot in self._named(names):
            self._sections[slot.begin] = names[0]

    def section(self, offset: int) -> str | None:
        """The section of the parameter at this offset. None: all parameters without one form a
        section."""
        return self._sections.get(offset)

    def parameter(self, name: str) -> Parameter:
        """The current parameter of this name."""
        return self._slot(name).parameter

    def slot_of(self, parameter: torch.Tensor) -> Slot | None:
        """The slot of a parameter that lies in the buffer; None for a tensor that is a part of
        one."""
        slot = self._by_begin.get(self.begin_of(parameter))
        return slot if slot is not None and slot.parameter is parameter else None

    def gradient(self, name: str) -> torch.Tensor:
        """The slice of `gradients` of a parameter, a new view each time."""
        return self._slot(name).view(self.gradients)

    def relink(self) -> None:
        """Moves parameters that left the buffer back into it, with their values. Where all of them
        are on another device, the buffers are allocated there.

        `.to`, `load_state_dict(assign=True)`, deepcopy and pickle move parameters. Raises
        ConfigurationError for a parameter with another shape or dtype than before, or on another
        device than the others, and where parameters are no longer tied or newly tied.

        On a CPU, whose layers pack weights, writes that torch does not count (`.data`, `.numpy()`)
        are detected here, by a few elements of each parameter.
        """
        values, _ = self._buffers()
        between = torch._C._current_graph_task_id() == NO_PASS
        moved = False
        for slot in self._slots:
            if between:
                slot.written_in = NO_PASS
            if not slot.is_linked(values):
                if self._are_elsewhere(values.device):
                    self._lay_out()
                    return
                self._refuse_newly_tied(slot)
                slot.link(values)
                moved = True
        written = self._probes.changed()
        self._relinks += moved or written

    def version(self, names: Iterable[str] | None = None) -> Version:
        """Changes when any of these parameters (default: all) was written, by torch's count.

        Of the writes that torch does not count (through `.data` or `.numpy()`) it includes those
        that `relink` detected; for others call `written`.
        """
        slots = self._named(names)
        return self.layouts, self._relinks, sum(slot.parameter._version for slot in slots)

    def written(self, names: Iterable[str] | None = None) -> None:
        """Counts a write to parameters (default: all) that torch does not know of."""
        increment_version([slot.parameter for slot in self._named(names)])

    def forget_nodes(self) -> None:
        """Releases the autograd nodes that accumulate gradients: those of the next forward belong
        to the stream that is current then."""
        for slot in self._named(None):
            slot.forget_node()

    def begin_backward(self, names: Sequence[str]) -> GradientPlace:
        """Where the running backward pass writes the gradients of these parameters.

        Called by the backward of an autograd Function that has them as inputs, before it writes.
        Torch takes a returned view as `.grad`, without a copy, where `.grad` was None. Where
        `.grad` is our view already, kernels add to the slice and torch gets None. Where a slice may
        not be written (Slot.needs_own_memory), the gradients of all go to a separate buffer. DDP's
        reducer reads `.grad` when AccumulateGrad is done, which torch also calls with None.
        """
        _, gradients = self._buffers()
        slots = self._named(names)
        running = torch._C._current_graph_task_id()
        if any(slot.needs_own_memory(gradients) for slot in slots):
            own = _zeros(len(gradients), gradients.device)
            return GradientPlace(own, False, [slot.view(own) for slot in slots])
        adds = [slot.is_in(gradients, slot.parameter.grad) for slot in slots]
        returned: list[torch.Tensor | None] = []
        for slot, add in zip(slots, adds, strict=True):
            if any(adds) and not add:
                slot.view(gradients).zero_()
            returned.append(None if add else slot.view(gradients))
            slot.written_in = running
        return GradientPlace(gradients, any(adds), returned)

    def __getstate__(self) -> dict[str, Any]:
        return {"module": self.module, "groups": self._groups}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # The module may not be complete yet, so the buffers are made on first use. It is referenced
        # strongly: where only a part of it was copied, nothing else refers to the whole.
        module, self._groups = state["module"], state["groups"]
        self._relinks = self.layouts = 0
        self._module = lambda: module
        self._laid_out: tuple[torch.Tensor, torch.Tensor] | None = None

    def _buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._laid_out or self._lay_out()

    @torch.inference_mode(mode=False)  # what is made here trains later
    def _lay_out(self) -> tuple[torch.Tensor, torch.Tensor]:
        names: dict[int, list[str]] = {}
        sizes: dict[str, int] = {}
        for name, parameter in self.module.named_parameters(remove_duplicate=False):
            check_kind(name, parameter)
            names.setdefault(id(parameter), []).append(name)
            sizes[names[id(parameter)][0]] = parameter.numel()
        dtypes = {parameter.dtype for parameter in self.module.parameters()} or {torch.float32}
        if len(dtypes) > 1:
            got = " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
            raise ConfigurationError(
                f"parameters: got {got}, wanted one dtype for all; convert the model with .float() "
                "or .bfloat16()"
            )
        places: dict[str, list[tuple[dict[str, Any], str]]] = {first: [] for first in sizes}
        for module in self.module.modules():
            for attribute, value in module._parameters.items():
                if value is not None:
                    places[names[id(value)][0]].append((module._parameters, attribute))
        leader = {group[0]: group for group in self._groups if group}
        behind = {name for group in self._groups for name in group[1:]}
        runs = [leader.get(name, [name]) for name in sizes if name not in behind]
        runs.sort(key=lambda run: sum(sizes[name] for name in run) % _CACHE_LINE != 0)
        by_first = {every[0]: every for every in names.values()}
        self._slots: list[Slot] = []
        end = 0
        for name in (name for run in runs for name in run):
            self._slots.append(Slot(by_first[name], places[name], end))
            end += sizes[name]
        self._by_name = {name: slot for slot in self._slots for name in slot.names}
        self._by_begin = {slot.begin: slot for slot in self._slots if slot.shape.numel()}
        self.layouts += 1
        device = self._slots[0].parameter.device if self._slots else torch.device("cpu")
        values = torch.empty(end, dtype=dtypes.pop(), device=device)  # not the default dtype
        self._copies = RoundedCopies(values)
        self._sections: dict[int, str] = {}
        for slot in self._slots:
            slot.link(values)
        self._laid_out = values, torch.zeros(end, dtype=torch.float32, device=device)
        spans = [(s.begin, s.begin + s.shape.numel() - 1) for s in self._slots if s.shape.numel()]
        self._probes = Probes(values, spans)
        _FLATS.add(self)
        return self._laid_out

    def _named(self, names: Iterable[str] | None) -> list[Slot]:
        self._buffers()
        return self._slots if names is None else [self._slot(name) for name in names]

    def _slot(self, name: str) -> Slot:
        self._buffers()
        if name not in self._by_name:
            raise ConfigurationError(
                f"parameter: got {name!r}, wanted a name of {type(self.module).__name__}; see names"
            )
        return self._by_name[name]

    def _are_elsewhere(self, device: torch.device) -> bool:
        devices = {parameter.device for parameter in self.module.parameters()}
        return len(devices) == 1 and device not in devices

    def _refuse_newly_tied(self, slot: Slot) -> None:
        for other in self._slots:
            if other is not slot and any(t.get(n) is other.parameter for t, n in slot.places):
                raise ConfigurationError(
                    f"{slot.names[0]}, {other.names[0]}: got one parameter, wanted two as when the "
                    "module was replaced; tie weights before"
                )
