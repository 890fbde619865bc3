"""The projection to the vocabulary and the cross entropy of its logits, which are never whole.

Rows are taken in chunks: their logits, the loss, and where gradients are wanted those of the
logits over them, from which follow the rows' and the weight's (as in Liger Kernel, Hsu et al. 2024,
section 3.2). Rows without a label are left out, so masked language models compute 15 % of them.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fusewire import kernels
from fusewire.errors import ConfigurationError, FusewireError, InvalidInput

# Of a chunk's logits. The weight's gradient is read and written once a chunk, which takes as long
# as some 32 rows' products: chunks of a thousand rows (of 32,000 words) hide it.
_LOGIT_BYTES = 128 << 20


class CrossEntropy(nn.Module):
    """Hidden states, a projection and labels to a loss, instead of logits.

        criterion = CrossEntropy(label_smoothing=0.1)
        loss = criterion(hidden, head.weight, labels, head.bias)

    Keeps the packed weight between calls and packs it anew when torch counted a write to it. The
    settings are those of torch.nn.CrossEntropyLoss. Raises ConfigurationError for settings out of
    range.
    """

    def __init__(
        self,
        *,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        logit_bytes: int = _LOGIT_BYTES,
    ) -> None:
        """`logit_bytes`: of the largest chunk; a row at least."""
        super().__init__()
        if not 0.0 <= label_smoothing <= 1.0:
            raise ConfigurationError(f"label_smoothing: got {label_smoothing}, wanted [0, 1]")
        if logit_bytes < 1:
            raise ConfigurationError(f"logit_bytes: got {logit_bytes}, wanted 1 or more")
        self.label_smoothing, self.ignore_index = label_smoothing, ignore_index
        self.logit_bytes = logit_bytes
        self._packed: _Packed | None = None

    def forward(
        self,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        bias: Tensor | None = None,
        *,
        num_items_in_batch: int | Tensor | None = None,
    ) -> Tensor:
        """The loss, fp32 []: the mean over rows whose label is not `ignore_index`, or their sum
        over `num_items_in_batch` (what Hugging Face's Trainer passes when it accumulates
        gradients). Without such a row it is 0, and so are all gradients.

        `hidden` fp32 [..., features], `weight` fp32 [classes, features], `bias` fp32 [classes],
        `labels` int64 [...]: for next tokens, shifted by the caller. Raises InvalidInput for a
        label that is no class, with its row.
        """
        _check(hidden, weight, labels, bias)
        rows = self._labelled_rows(labels, weight.shape[0])
        items = rows.numel() if num_items_in_batch is None else num_items_in_batch
        if rows.numel() > 0 and not items > 0:
            raise InvalidInput(
                "num_items_in_batch", items, "the number of labelled rows, above 0", "count them"
            )
        call = _Call(
            rows,
            labels.reshape(-1)[rows],
            self.ignore_index,
            self.label_smoothing,
            1.0 / max(float(items), 1.0),
            max(1, self.logit_bytes // (4 * weight.shape[0])),
            torch.is_grad_enabled(),
            self._packed_as_now(weight, bias),
        )
        loss: Tensor = _ChunkedLoss.apply(hidden.reshape(-1, hidden.shape[-1]), weight, bias, call)
        return loss

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_packed": None}

    def _packed_as_now(self, weight: Tensor, bias: Tensor | None) -> _Packed:
        if self._packed is None or not self._packed.is_of(weight, bias):
            self._packed = _Packed(weight, bias)
        self._packed.follow()
        return self._packed

    def _labelled_rows(self, labels: Tensor, classes: int) -> Tensor:
        given = labels != self.ignore_index
        wrong = given & ((labels < 0) | (labels >= classes))
        if wrong.any():
            at = tuple(wrong.nonzero()[0].tolist())
            raise InvalidInput(
                "labels",
                f"{int(labels[at])} in row {list(at)}",
                f"[0, {classes}), or {self.ignore_index} for rows without a label",
                "check the tokenizer against the model's vocabulary",
            )
        return given.reshape(-1).nonzero().reshape(-1)


def cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    bias: Tensor | None = None,
    *,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    num_items_in_batch: int | Tensor | None = None,
) -> Tensor:
    """CrossEntropy called once; packs the weight each time."""
    criterion = CrossEntropy(label_smoothing=label_smoothing, ignore_index=ignore_index)
    loss: Tensor = criterion(hidden, weight, labels, bias, num_items_in_batch=num_items_in_batch)
    return loss


class _Packed:
    """A weight [classes, features] as kernels take it, for logits and for hidden gradients."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._parts = [weakref.ref(tensor) for tensor in (weight, bias) if tensor is not None]
        self._seen = self._now()
        self._logits = kernels.Linear(*self._views())
        self._hidden: kernels.Linear | None = None

    def is_of(self, weight: Tensor, bias: Tensor | None) -> bool:
        given = [tensor for tensor in (weight, bias) if tensor is not None]
        return len(given) == len(self._parts) and all(
            part() is tensor for part, tensor in zip(self._parts, given, strict=True)
        )

    def follow(self) -> None:
        """Packs anew what moved, or what torch counted a write to."""
        if self._seen != self._now():
            self._logits.refresh(*self._views())
            if self._hidden is not None:
                self._hidden.refresh(self._views()[0])
            self._seen = self._now()

    def logits(self, out: kernels.Tensor, x: kernels.Tensor) -> None:
        kernels.linear(out, x, self._logits, "none")

    def hidden_gradients(self, out: kernels.Tensor, dlogits: kernels.Tensor) -> None:
        if self._hidden is None:
            self._hidden = kernels.Linear(self._views()[0], None, transposed=True)
        kernels.linear(out, dlogits, self._hidden, "none")

    def _tensors(self) -> list[Tensor]:
        tensors = [part() for part in self._parts]
        return [tensor for tensor in tensors if tensor is not None]

    def _now(self) -> list[tuple[int, int]]:
        return [(tensor.data_ptr(), tensor._version) for tensor in self._tensors()]

    def _views(self) -> list[kernels.Tensor]:
        return [_view(tensor) for tensor in self._tensors()]


class _Call(NamedTuple):
    rows: Tensor  # those with a label, int64
    labels: Tensor  # theirs
    ignore_index: int
    label_smoothing: float
    scale: float
    chunk: int  # rows
    gradients: bool
    packed: _Packed


class _ChunkedLoss(torch.autograd.Function):
    """The gradients are computed with the loss, while a chunk's logits are there."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, call: Any) -> Tensor:
        wanted = [call.gradients and need for need in ctx.needs_input_grad[:3]]
        whole = call.rows.numel() == hidden.shape[0]
        x = hidden.contiguous() if whole else hidden.index_select(0, call.rows)
        # Written by the first chunk, where there is one.
        new = torch.empty_like if call.rows.numel() else torch.zeros_like
        dx, dw, db = (
            new(tensor, memory_format=torch.contiguous_format)
            if need and tensor is not None
            else None
            for tensor, need in zip((x, weight, bias), wanted, strict=True)
        )
        fp32 = torch.float32  # whatever torch's default is
        logits = torch.empty(min(call.chunk, x.shape[0]), weight.shape[0], dtype=fp32)
        scale = _view(torch.tensor([call.scale], dtype=fp32))
        loss = 0.0
        for begin in range(0, x.shape[0], call.chunk):
            part = slice(begin, begin + call.chunk)
            x_part, labels = _view(x[part]), call.labels[part]
            losses, z = torch.empty(len(labels), dtype=fp32), _view(logits[: len(labels)])
            call.packed.logits(z, x_part)
            kernels.cross_entropy(
                _view(losses),
                z,
                _view(labels),
                call.ignore_index,
                call.label_smoothing,
                scale,
                any(wanted),
            )
            loss += float(losses.sum(dtype=torch.float64))
            if dx is not None:
                call.packed.hidden_gradients(_view(dx[part]), z)
            if dw is not None:
                kernels.linear_backward_weight(_view(dw), z, x_part, begin > 0)
            if db is not None:
                kernels.column_sums(_view(db), z, begin > 0)
        if dx is not None and not whole:
            dx = torch.zeros_like(hidden).index_copy_(0, call.rows, dx)
        ctx.gradients = dx, dw, db
        return hidden.new_tensor(loss * call.scale)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise FusewireError(
                "CrossEntropy: got a second backward through one loss, wanted one; compute the "
                "loss again, or add losses before backward"
            )
        gradients, ctx.gradients = ctx.gradients, None
        for gradient in gradients:
            if gradient is not None and dloss != 1:
                gradient.mul_(dloss)
        return *gradients, None


def _check(hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None) -> None:
    for name, tensor in (("hidden", hidden), ("weight", weight), ("bias", bias)):
        if tensor is not None and (tensor.dtype != torch.float32 or tensor.device.type != "cpu"):
            raise InvalidInput(
                name,
                f"{str(tensor.dtype).removeprefix('torch.')} on {tensor.device}",
                "float32 on cpu",
                "train without autocast, or with transformers' own loss",
            )
    shapes = list(hidden.shape), list(weight.shape), list(labels.shape)
    if weight.ndim != 2 or shapes[0] != [*labels.shape, weight.shape[1]]:
        raise InvalidInput(
            "hidden",
            f"shape {shapes[0]} with weight {shapes[1]} and labels {shapes[2]}",
            "[..., features], [classes, features] and [...]",
            "pass a label for each row",
        )
    if labels.dtype != torch.int64 or labels.device.type != "cpu":
        raise InvalidInput(
            "labels", f"{labels.dtype} on {labels.device}", "int64 on cpu", "call labels.long()"
        )
    if bias is not None and list(bias.shape) != [weight.shape[0]]:
        raise InvalidInput(
            "bias", f"shape {list(bias.shape)}", f"[{weight.shape[0]}]", "one for each class"
        )


def _view(tensor: Any) -> Any:
    """The same memory, as kernels take it; of a strided tensor a dense copy."""
    return tensor if tensor is None else kernels.Tensor.from_dlpack(tensor.detach().contiguous())
