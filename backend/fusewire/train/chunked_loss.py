"""The autograd Function that computes a criterion in chunks, loss and gradients at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusewire import kernels
from fusewire.errors import FusewireError
from fusewire.train.arguments import refuse_create_graph
from fusewire.train.gradients import add_gradient
from fusewire.train.head_weight import HeadWeight
from fusewire.train.packed import Rows
from fusewire.train.torch_tensors import stream_of, view


class Labelled(NamedTuple):
    """The rows that are computed: all that have a label, and maybe others."""

    rows: Rows | None  # among those of `hidden`; None: all of them
    labels: Tensor  # int64, of these rows
    scale: Tensor  # fp64 [], the factor of the sum of their losses


class Criterion(NamedTuple):
    ignore_index: int
    label_smoothing: float
    chunk: int  # rows
    gradients: bool


class ChunkedLoss(torch.autograd.Function):
    """Computes the gradients together with the loss, while a chunk's logits exist.

    In 16 bits the gradients of the logits are kept between -1 and 1, where precision is highest.
    What follows from them is scaled in backward, when the factor of a GradScaler is known too.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labelled: Labelled,
        criterion: Criterion,
        head: HeadWeight,
    ) -> Tensor:
        rows, labels, scale = labelled
        wanted = [criterion.gradients and need for need in ctx.needs_input_grad[:3]]
        x = hidden.contiguous() if rows is None else hidden.index_select(0, rows.index)
        # Written by the first chunk, where there is one.
        new = torch.empty if len(labels) else torch.zeros
        classes, width = weight.shape[0], head.width
        shapes = x.shape, (width, *weight.shape[1:]), (width,)
        wanted[2] = wanted[2] and bias is not None
        dtypes = x.dtype, torch.float32, torch.float32
        dx, dw, db = (
            new(shape, dtype=dtype, device=x.device) if need else None
            for dtype, shape, need in zip(dtypes, shapes, wanted, strict=True)
        )
        stream = stream_of(x.device)
        logits = x.new_empty(min(criterion.chunk, len(labels)), width)
        losses = torch.empty(len(labels), dtype=torch.float32, device=x.device)
        in_kernel = x.dtype == torch.float32
        factor = view(scale.float().reshape(1)) if in_kernel else None
        for begin in range(0, len(labels), criterion.chunk):
            part = slice(begin, begin + criterion.chunk)
            x_part, z = view(x[part]), view(logits[: len(labels[part])])
            head.logits(z, x_part, stream)
            kernels.cross_entropy(
                view(losses[part]),
                z.columns(0, classes),
                view(labels[part]),
                criterion.ignore_index,
                criterion.label_smoothing,
                factor,
                any(wanted),
                stream,
            )
            if dx is not None:
                head.hidden_gradients(view(dx[part]), z, stream)
            if dw is not None:
                kernels.linear_backward_weight(view(dw), z, x_part, begin > 0, stream)
            if db is not None:
                kernels.column_sums(view(db), z, begin > 0, stream)
        if dx is not None and rows is not None:
            all_rows = dx.new_zeros(len(hidden) + 1, hidden.shape[1])
            dx = all_rows.index_copy_(0, rows.places, dx)[:-1]
        dw, db = (each if each is None else each[:classes] for each in (dw, db))
        ctx.gradients, ctx.weight = (dx, dw, db), weight
        ctx.scale = None if in_kernel else scale.float()
        return (losses.sum(dtype=torch.float64) * scale).float()

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        refuse_create_graph()
        if ctx.gradients is None:
            raise FusewireError(
                "CrossEntropy: got a second backward through one loss, wanted one; compute the "
                "loss again, or add losses before backward"
            )
        (dx, dw, db), ctx.gradients = ctx.gradients, None
        factor: Tensor | float = dloss if ctx.scale is None else dloss * ctx.scale
        if dloss.device.type == "cpu" and factor == 1:  # on a GPU this would synchronise
            factor = 1.0
        for gradient in (dx, db):
            if gradient is not None and isinstance(factor, Tensor):
                gradient.mul_(factor)

        def add(to: Tensor, accumulate: bool) -> None:
            if not accumulate:
                torch.mul(dw, factor, out=to)
            elif isinstance(factor, Tensor):
                to.addcmul_(dw, factor)
            else:
                to.add_(dw)

        of_weight = None if dw is None else add_gradient(ctx.weight, add)
        return dx, of_weight, db, None, None, None
