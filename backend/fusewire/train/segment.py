"""Layers as one node of the autograd graph: one call forward and one backward, without the GIL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd import Function

from fusewire.errors import ConfigurationError
from fusewire.models.blueprint import Layer
from fusewire.models.stored_weights import Norm
from fusewire.train.arguments import refuse_create_graph
from fusewire.train.flat import FlatParameters
from fusewire.train.packed import Packed
from fusewire.train.parts import Dropouts, Parts
from fusewire.train.tape_memory import tape_blocks
from fusewire.train.torch_tensors import capturing, computed_in, stream_of, view

_LARGEST_SEED = 2**63 - 1
_BEFORE_BIASES = 10  # arguments of _Run.forward


class Source(NamedTuple):
    """What cross attention reads: x [source tokens, width], the output of the encoder."""

    x: torch.Tensor
    packed: Packed


class Shared:
    """What all segments of a forward read: the source, and biases by name.

    Each segment leaves it as an output of its own, which the next one reads. So a backward pass
    adds up its gradient in one tensor, layer by layer, and has the same bits with any number of
    segments: torch would add the sums of segments, rounded to the dtype of what is shared."""

    def __init__(self, source: Source | None) -> None:
        self.source = source
        self.biases: dict[str, torch.Tensor] = {}


class Segment:
    """Some layers of a model. Their parameters are in the buffer of `flat`, with names that begin
    with `prefix`."""

    def __init__(
        self,
        flat: FlatParameters,
        prefix: str,
        layers: Sequence[Layer],
        final_norm: Norm | None,
        dropouts: Dropouts,
        max_length: int,
    ) -> None:
        self.flat = flat
        self._parts = prefix, tuple(layers), final_norm, dropouts, max_length
        self._drops = any(vars(dropouts).values())
        self._build()

    def _build(self) -> None:
        prefix, layers, final_norm, dropouts, max_length = self._parts
        parts = Parts(self.flat, prefix, dropouts, max_length)
        self.stack = parts.stack(layers, final_norm)
        self._weights = parts.weights
        self._by_layer = [parts.names(layer) for layer in layers]
        self._last = [] if final_norm is None else parts.names(final_norm)
        self._biases = parts.biases
        apart = {bias.name for bias in self._biases}
        every = (name for names in (*self._by_layer, self._last) for name in names)
        self.names = [name for name in every if name not in apart]  # with gradients in the buffer
        self.flat.make_section(self.names)
        self._seen: tuple[int, int, int] | None = None
        self._layout = self.flat.layouts
        self._version = 0

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("flat", "_parts", "_drops")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.stack = None  # built later: parameters may not exist yet

    def __call__(
        self,
        x: torch.Tensor,
        packed: Packed,
        positions: torch.Tensor | None,
        shared: Shared,
        *,
        training: bool,
        recompute: str,
    ) -> torch.Tensor:
        """x [tokens, hidden] -> the output of the layers, with dropout if `training`. x is fp32, or
        has the parameters' dtype or that which the layers compute in (computed_in), which the
        output has.

        positions [tokens]: for RoPE. shared: what cross attentions and biases read; afterwards, for
        the next segment. recompute: none, norm, activation or layer.
        """
        if self.stack is None or self._layout != self.flat.layouts:
            self._build()
        parameters = [self.flat.parameter(name) for name in self.names]
        for bias in self._biases:
            if bias.name not in shared.biases:
                shared.biases[bias.name] = bias()
        biases = [shared.biases[bias.name] for bias in self._biases]
        states, of_source = (None, None) if shared.source is None else shared.source
        inputs = [x] if states is None else [x, states]
        device = self.flat.values.device
        dtype = computed_in(device, self.flat.values.dtype)
        known = (torch.float32, self.flat.values.dtype, dtype)
        for given in inputs:
            if given.dtype not in known or given.device != device:
                raise ConfigurationError(
                    f"training: got hidden states of {given.dtype} on {given.device}, wanted "
                    f"float32 on {'the CPU' if device.type == 'cpu' else device}; turn autocast "
                    "off, or train it with transformers itself"
                )
        x = x.to(dtype)
        states = None if states is None else states.to(dtype)
        options = training, recompute, self._first_trained(inputs)
        tensors = *biases, *parameters
        out, states, *biases = _Run.apply(
            x, states, self, packed, of_source, positions, *options, len(biases), *tensors
        )
        if of_source is not None:
            shared.source = Source(states, of_source)
        for bias, left in zip(self._biases, biases, strict=True):
            shared.biases[bias.name] = left
        return out

    def _first_trained(self, inputs: Sequence[torch.Tensor]) -> int:
        """The lowest layer that backward has to reach; the number of layers where none has to be
        reached."""
        if not torch.is_grad_enabled():
            return len(self._by_layer)
        if any(given.requires_grad for given in inputs):
            return 0
        layers = [*self._by_layer[:-1], self._by_layer[-1] + self._last]
        for layer, names in enumerate(layers):
            if any(self.flat.parameter(name).requires_grad for name in names):
                return layer
        return len(layers)

    def frozen(self) -> set[int]:
        """The offsets of weights that need no gradient."""
        return {
            offset
            for offset, names in self._weights.items()
            if not any(self.flat.parameter(name).requires_grad for name in names)
        }

    def version(self) -> int:
        """Changes with each write to the parameters of this segment."""
        now = self.flat.version(self.names)
        if now != self._seen:
            self._seen = now
            self._version += 1
        return self._version

    def seeds(self, training: bool, device: torch.device) -> tuple[int | None, torch.Tensor | None]:
        """The seed of all dropouts of a forward, from torch's generator, and a number that kernels
        add to it: while the forward is captured, one from the device's generator, which every
        replay draws again. None where nothing is dropped."""
        if not training or not self._drops:
            return None, None
        if capturing(device):
            return 0, torch.randint(_LARGEST_SEED, (1,), dtype=torch.int64, device=device)
        return int(torch.randint(_LARGEST_SEED, (), dtype=torch.int64)), None


class _Run(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        source: torch.Tensor | None,
        segment: Segment,
        packed: Packed,
        of_source: Packed | None,
        positions: torch.Tensor | None,
        training: bool,
        recompute: str,
        first_trained: int,
        bias_count: int,
        *biases_and_parameters: torch.Tensor,
    ) -> tuple[torch.Tensor | None, ...]:
        """The output of the layers, the source and the biases."""
        x = x.contiguous()
        source = None if source is None else source.contiguous()
        out = torch.empty_like(x)
        biases = biases_and_parameters[:bias_count]
        ctx.segment = segment
        ctx.version = segment.version()
        seed, added = segment.seeds(training, x.device)
        ctx.activations = segment.stack.forward(
            view(out),
            view(x),
            view(segment.flat.values_in(x.dtype)),
            packed.batch,
            positions=None if positions is None else view(positions),
            source=None if source is None or of_source is None else (view(source), of_source.batch),
            biases=[view(bias) for bias in biases],
            first_trained=first_trained,
            recompute=recompute,
            dropout_seed=seed,
            added_seed=None if added is None else view(added),
            version=ctx.version,
            blocks=tape_blocks(),
            stream=stream_of(x.device),
        )
        ctx.save_for_backward(x, source, *biases)  # torch detects writes to saved tensors
        ctx.set_materialize_grads(False)
        needed = ctx.needs_input_grad[1], *ctx.needs_input_grad[_BEFORE_BIASES:][:bias_count]
        shared = source, *biases
        frozen = [each for each, need in zip(shared, needed, strict=True) if not need]
        ctx.mark_non_differentiable(*(each for each in frozen if each is not None))
        return out, *shared

    @staticmethod
    def backward(
        ctx: Any,
        gradient: torch.Tensor,
        dsource: torch.Tensor | None,
        *dbiases: torch.Tensor | None,
    ) -> tuple[torch.Tensor | None, ...]:
        """The gradients of source and biases are those of the segments behind, to which this one
        adds its own in place."""
        refuse_create_graph()
        segment: Segment = ctx.segment
        x, source, *biases = ctx.saved_tensors
        dx = torch.empty_like(x)
        dx.copy_(gradient)
        dsource = _begun(dsource, source) if ctx.needs_input_grad[1] else None
        of_biases = [
            _begun(given, bias) if ctx.needs_input_grad[_BEFORE_BIASES + number] else None
            for number, (given, bias) in enumerate(zip(dbiases, biases, strict=True))
        ]
        place = segment.flat.begin_backward(segment.names)
        segment.stack.backward(
            ctx.activations,
            view(dx),
            view(segment.flat.values_in(x.dtype)),
            view(place.buffer),
            accumulate=place.accumulate,
            frozen=segment.frozen(),
            source_gradient=None if dsource is None else view(dsource),
            bias_gradients=[None if dbias is None else view(dbias) for dbias in of_biases],
            version=segment.version(),
            stream=stream_of(x.device),
        )
        return dx, dsource, *(None,) * (_BEFORE_BIASES - 2), *of_biases, *place.returned


def _begun(gradient: torch.Tensor | None, of: torch.Tensor) -> torch.Tensor:
    """The gradient that the segment behind has left, or zeros where there is none."""
    return torch.zeros_like(of) if gradient is None else gradient
