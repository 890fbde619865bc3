"""Embeddings of torch whose gradients are written to the flat buffer.

For every lookup torch makes a gradient as large as the table, and adds up the gradients of a table
that several modules share (encoder, decoder and head). With a large vocabulary that takes longer
than some layers. Here each lookup adds the rows that it has read to a single gradient.
"""

from __future__ import annotations

from typing import Any, TypeGuard

from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional

from fusewire import kernels
from fusewire.train.arguments import refuse_create_graph, uncompiled
from fusewire.train.gradients import add_gradient
from fusewire.train.torch_tensors import stream_of, view


def is_plain(module: nn.Module) -> TypeGuard[nn.Embedding]:
    """Whether a module only looks up rows."""
    return (
        isinstance(module, nn.Embedding)
        and type(module).forward is nn.Embedding.forward
        and "forward" not in vars(module)
        and module.max_norm is None
        and not module.scale_grad_by_freq
        and not module.sparse
    )


class EmbeddingForward:
    """Replaces the forward of a plain Embedding. Unlike a bound method it is copied and pickled
    with its module."""

    def __init__(self, module: nn.Embedding) -> None:
        self._module = module

    @uncompiled
    def __call__(self, input: Tensor) -> Tensor:
        """ids [...] -> [..., features]"""
        found: Tensor = _Lookup.apply(input, self._module.weight, self._module.padding_idx)
        return found


class _Lookup(Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, padding_idx: int | None) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.weight, ctx.padding_idx = weight, padding_idx
        return functional.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        refuse_create_graph()
        (ids,) = ctx.saved_tensors
        rows = gradient.reshape(-1, gradient.shape[-1]).contiguous()
        rows = rows.float() if rows.device.type == "cpu" else rows
        ids = ids.reshape(-1).contiguous()
        if ctx.padding_idx is not None:
            ids, rows = _without(ctx.padding_idx, ids, rows)

        def add(to: Tensor, accumulate: bool) -> None:
            stream = stream_of(to.device)
            kernels.embed_backward(view(to), view(ids), view(rows), 1.0, accumulate, stream)

        return None, add_gradient(ctx.weight, add), None


def _without(padding_idx: int, ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Drops the row that has no gradient (the padding id). On a GPU, where counting would
    synchronise, an id outside of the table takes its place, which has no gradient."""
    padding = ids == padding_idx
    if ids.device.type != "cpu":
        return ids.masked_fill(padding, -1), rows
    if not padding.any():
        return ids, rows
    return ids[~padding], rows[~padding]
