"""The slice of one parameter in the flat buffers, and what autograd would do with its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge
from torch.nn import Parameter
from torch.utils.dlpack import from_dlpack, to_dlpack
from torch.utils.hooks import RemovableHandle

from fusewire.errors import ConfigurationError
from fusewire.kernels import cuda_built
from fusewire.train.fsdp import refuse_divided
from fusewire.train.torch_tensors import PARAMETER_DTYPES

NO_PASS = -1  # torch's id of the running backward pass, where none runs


class Slot:
    """A parameter, and its elements [begin, begin + shape.numel()) of a buffer.

    `names`: the names of the parameter, more than one if it is tied. `places`: the parameter tables
    of the modules that have it, with its name there.
    """

    def __init__(
        self, names: list[str], places: list[tuple[dict[str, Any], str]], begin: int
    ) -> None:
        self.names, self.places, self.begin = names, places, begin
        table, name = places[0]
        self.parameter: Parameter = table[name]
        self.shape = self.parameter.shape
        self.written_in = NO_PASS  # the backward pass that wrote the gradient and gave it to torch
        self._edge: Any = None

    def view(self, buffer: torch.Tensor) -> torch.Tensor:
        """The slice of a buffer, a new tensor each time: torch takes over a gradient without a copy
        only if nobody else holds it."""
        return buffer[self.begin : self.begin + self.shape.numel()].view(self.shape)

    def is_in(self, buffer: torch.Tensor, tensor: torch.Tensor | None) -> bool:
        """Whether a tensor is the slice of the buffer."""
        begin = buffer.data_ptr() + buffer.element_size() * self.begin
        return tensor is not None and tensor.data_ptr() == begin

    def is_linked(self, values: torch.Tensor) -> bool:
        """Whether every module still has the parameter, and the parameter is still the slice."""
        parameter = self.parameter
        return self.is_in(values, parameter) and all(
            table.get(name) is parameter for table, name in self.places
        )

    @torch.inference_mode(mode=False)
    def link(self, values: torch.Tensor) -> None:
        """Moves the current parameter of the modules into the slice. Raises ConfigurationError
        where it does not fit, or where modules that shared a parameter have parameters that
        differ."""
        found: list[Any] = [table.get(name) for table, name in self.places]
        first = found[0]
        if first is None or first.shape != self.shape:
            got = "none" if first is None else f"shape {list(first.shape)}"
            raise ConfigurationError(
                f"{self.names[0]}: got {got}, wanted {list(self.shape)} as when its module was "
                "replaced; change shapes before"
            )
        check_kind(self.names[0], first)
        if first.dtype != values.dtype:
            raise ConfigurationError(
                f"{self.names[0]}: got {first.dtype}, wanted {values.dtype} as when its module was "
                "replaced; convert the model before"
            )
        if first.device != values.device:
            raise ConfigurationError(
                f"{self.names[0]}: got it on {first.device}, wanted {values.device} as when its "
                "module was replaced; move the whole model"
            )
        for (table, name), other in zip(self.places, found, strict=True):
            if other is not first:
                if other is None or not torch.equal(other, first):
                    raise ConfigurationError(
                        f"{', '.join(self.names)}: got parameters that differ, wanted one as "
                        "when the module was replaced; call tie_weights() of the model"
                    )
                table[name] = first
        if self.parameter is not first and self.is_in(values, self.parameter):
            # Other references to the old parameter keep its values.
            self.parameter.data = self.parameter.detach().clone()
        if not self.is_in(values, first):
            slice_ = self._with_its_own_storage(values)
            slice_.copy_(first.detach())
            first.data = slice_
        _make_gradients_fp32(first)
        self.parameter, self._edge = first, None

    def _with_its_own_storage(self, buffer: torch.Tensor) -> torch.Tensor:
        """The slice of a buffer as a tensor whose storage has nothing else in it: safetensors
        cannot load into a parameter that is a part of a storage, and pickle would write all of
        it."""
        part = buffer[self.begin : self.begin + self.shape.numel()]
        return from_dlpack(to_dlpack(part)).view(self.shape)

    def forget_node(self) -> None:
        self._edge = None

    def when_done(self, call: Callable[[Slot], None]) -> RemovableHandle:
        """Registers a callback for backward passes: it is called when the parameter's whole
        gradient is in `.grad`, or when there is none. Like that of DistributedDataParallel it runs
        after the node that accumulates the gradient."""
        if self._edge is None:
            self._edge = get_gradient_edge(self.parameter)
        handle: RemovableHandle = self._edge.node.register_hook(lambda *_: call(self))
        return handle

    def needs_own_memory(self, gradients: torch.Tensor) -> bool:
        """Whether the gradient of the running pass may not be written to the slice:
        torch.autograd.grad returns it, a hook waits for it, an unfinished pass holds the slice (it
        wrote there, and `.grad` does not show it yet), or the parameter was frozen while it had a
        gradient there."""
        if not self.parameter.requires_grad:
            return self.is_in(gradients, self.parameter.grad)
        if self.parameter._backward_hooks:
            return True
        if self.written_in != NO_PASS and not self.is_in(gradients, self.parameter.grad):
            return True
        if self._edge is None:
            self._edge = get_gradient_edge(self.parameter)
        try:
            return not torch._C._will_engine_execute_node(self._edge.node)
        except RuntimeError:  # torch cannot tell for a leaf in torch.autograd.grad, only there
            return True

    def may_be_added_to(self, gradients: torch.Tensor) -> bool:
        """Whether the running backward pass may add its gradient to the slice and make that
        `.grad`, before torch has the other gradients of the same pass. Hooks of torch have to see
        the whole gradient."""
        gradient = self.parameter.grad
        return (
            (gradient is None or self.is_in(gradients, gradient))
            and not getattr(self.parameter, "_post_accumulate_grad_hooks", None)
            and not self.needs_own_memory(gradients)
        )


def _make_gradients_fp32(parameter: Parameter) -> None:
    """For a parameter in 16 bits: kernels add up gradients in fp32."""
    if parameter.dtype == torch.float32:
        return
    gradient, parameter.grad = parameter.grad, None
    parameter.grad_dtype = torch.float32
    parameter.grad = None if gradient is None else gradient.float()


def check_kind(name: str, parameter: Parameter) -> None:
    """Raises ConfigurationError for a parameter that kernels cannot train, Unsupported for one that
    processes share."""
    refuse_divided(name, parameter)
    places = ("cpu", "cuda") if cuda_built() else ("cpu",)
    if parameter.dtype not in PARAMETER_DTYPES or parameter.device.type not in places:
        raise ConfigurationError(
            f"{name}: got {str(parameter.dtype).removeprefix('torch.')} on {parameter.device}, "
            f"wanted float32 or bfloat16 on {' or '.join(places)}; convert the model with .float() "
            "and move it there, or train it with transformers itself"
        )
    if parameter.dtype != torch.float32 and not hasattr(parameter, "grad_dtype"):
        raise ConfigurationError(
            f"{name}: got bfloat16 with torch {torch.__version__}, wanted torch 2.10 or later, "
            "whose bfloat16 parameters can have float32 gradients; convert the model with .float()"
        )
    if parameter.is_inference():
        raise ConfigurationError(
            f"{name}: got it from torch.inference_mode, wanted a parameter that trains; make or "
            "load the model outside of it"
        )
