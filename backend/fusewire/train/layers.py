"""All layers of a stack in training, as one autograd node or several."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import torch
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from fusewire.errors import ConfigurationError
from fusewire.models.blueprint import Stack
from fusewire.train.flat import FlatParameters
from fusewire.train.layer_modules import LayerModules
from fusewire.train.packed import Packed
from fusewire.train.parts import Dropouts
from fusewire.train.segment import Segment, Shared, Source

RECOMPUTE = ("none", "norm", "activation", "layer")


class TrainedLayers:
    """The layers of a blueprint's stack and its final norm, in `segments` nodes of about equal
    size.

    `prefix`: the prefix of their parameters' names. `recompute`: as in `replace`. `modules`: the
    modules of transformers that the layers replace.
    """

    recompute = "none"

    def __init__(
        self,
        flat: FlatParameters,
        prefix: str,
        stack: Stack,
        dropouts: Dropouts,
        segments: int,
        modules: LayerModules,
    ) -> None:
        count = len(stack.layers)
        if not 1 <= segments <= count:
            raise ConfigurationError(f"segments: got {segments}, wanted 1 to {count}, the layers")
        self.flat = flat
        self.modules = modules
        self.max_length = stack.max_length  # positions that rotary angles are made for
        bounds = [count * i // segments for i in range(segments + 1)]
        self.segments = [
            Segment(
                flat,
                prefix,
                stack.layers[begin:end],
                stack.final_norm if end == count else None,
                dropouts,
                stack.max_length,
            )
            for begin, end in pairwise(bounds)
        ]

    def __call__(
        self,
        x: torch.Tensor,
        packed: Packed,
        positions: torch.Tensor | None,
        layers: Iterable[Module],
        source: Source | None = None,
    ) -> torch.Tensor:
        """x [tokens, hidden] -> the hidden states after the layers. positions int32 [tokens]: for
        RoPE. `layers`: transformers' own, whose gradient_checkpointing is respected. `source`: what
        cross attentions read."""
        self.flat.relink()
        of_parameters = self.flat.values.dtype
        if of_parameters != torch.float32:
            _refuse_ddp(of_parameters)
        training = self.modules.training
        checkpointing = any(getattr(layer, "gradient_checkpointing", False) for layer in layers)
        recompute = "layer" if checkpointing else self.recompute
        shared = Shared(source)
        for segment in self.segments:
            x = segment(x, packed, positions, shared, training=training, recompute=recompute)
        # Heads of 16 bits take 16 bits, also on a CPU, where layers compute in fp32.
        return x if of_parameters == torch.float32 else x.to(of_parameters)


def _refuse_ddp(dtype: torch.dtype) -> None:
    if getattr(DistributedDataParallel, "_active_ddp_module", None) is not None:
        raise ConfigurationError(
            f"DistributedDataParallel: got parameters in {dtype} with gradients in torch.float32, "
            "wanted both in float32, as its buckets have the parameters' dtype; take whole steps "
            "with Step and Adam(process_group=...), or convert the model with .float()"
        )
