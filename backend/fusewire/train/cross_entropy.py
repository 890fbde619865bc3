"""The projection to the vocabulary and the cross entropy of its logits, which never exist as a
whole.

Rows are processed in chunks: their logits, the loss and, where gradients are wanted, the gradients
of the logits in place, from which those of the rows and the weight follow (as in Liger Kernel, Hsu
et al. 2024, section 3.2). Rows without a label are skipped, so a masked language model computes
only 15 % of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fusewire.errors import ConfigurationError, InvalidInput
from fusewire.kernels import cuda_built
from fusewire.train.chunked_loss import ChunkedLoss, Criterion, Labelled
from fusewire.train.head_weight import HeadWeight
from fusewire.train.headed import head_inputs
from fusewire.train.packed import Rows, in_step, only, predicting
from fusewire.train.targets import NO_LABEL
from fusewire.train.torch_tensors import PARAMETER_DTYPES, computed_in

# Size of a chunk's logits. Each chunk reads and writes the weight's gradient once, which takes as
# long as the products of some 32 rows on a CPU and some 600 on a GPU. Chunks of a thousand rows
# (vocabulary of 32,000) hide it on a CPU, and chunks of some thousands on a GPU.
_LOGIT_BYTES = {"cpu": 128 << 20, "cuda": 512 << 20}
_TILE = 128  # rows; larger chunks are multiples of it


class CrossEntropy(nn.Module):
    """The loss of hidden states, a projection and labels, without logits in memory.

        criterion = CrossEntropy(label_smoothing=0.1)
        loss = criterion(hidden, head.weight, labels, head.bias)

    Keeps the packed weight between calls and packs it again when torch has counted a write to it.
    The settings are those of torch.nn.CrossEntropyLoss. Raises ConfigurationError for settings out
    of range.

    On a GPU it computes in the weight's dtype, or under autocast in autocast's dtype, as layers do;
    on a CPU in fp32. Loss, sums and the gradients of weight and bias are fp32 in any case.
    """

    def __init__(
        self,
        *,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        logit_bytes: int | None = None,
    ) -> None:
        """`logit_bytes`: bytes of the largest chunk of logits, which has at least one row. None:
        128 MiB on the CPU, 512 MiB on a GPU."""
        super().__init__()
        if not 0.0 <= label_smoothing <= 1.0:
            raise ConfigurationError(f"label_smoothing: got {label_smoothing}, wanted [0, 1]")
        if logit_bytes is not None and logit_bytes < 1:
            raise ConfigurationError(f"logit_bytes: got {logit_bytes}, wanted 1 or more")
        self.label_smoothing, self.ignore_index = label_smoothing, ignore_index
        self.logit_bytes = logit_bytes
        self._packed: HeadWeight | None = None

    def forward(
        self,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        bias: Tensor | None = None,
        *,
        num_items_in_batch: int | Tensor | None = None,
    ) -> Tensor:
        """Returns the loss, fp32 []: the mean over the rows whose label is not `ignore_index`, or
        their sum divided by `num_items_in_batch` (which Hugging Face's Trainer passes when it
        accumulates gradients). Without such a row the loss is 0, and so are all gradients.

        `hidden` [..., features] is fp32, or has the weight's or autocast's dtype; `weight` is fp32
        or bf16 [classes, features], `bias` [classes] of the same dtype and `labels` int64 [...], on
        the same device or on the CPU. For next tokens the caller shifts them. Raises InvalidInput
        for a label that is not a class, with its row.

        Labels on a GPU are synchronised once, to count and check them; those on the CPU are not. A
        `num_items_in_batch` on a GPU is not checked: 0 gives a loss and gradients that are not
        finite, with which `Adam` skips the step and counts it.

        In a `Step` on a GPU nothing is synchronised: rows without a label are computed too, and a
        label that is not a class makes loss and gradients NaN. For labels [batch, length] of the
        places of the batch's `labels`, those rows are its tokens. They are all places, padding too,
        where one of the batch's labels is at padding or right behind it (as that of the first token
        after padding on the left), where sources have the same shape (except in `of_model`), and
        for flattened labels. If you make the labels in the loss, one at padding makes it NaN.

        In a `Step` on any device it raises ConfigurationError for another `ignore_index` than -100.
        """
        if in_step() and self.ignore_index != NO_LABEL:
            raise ConfigurationError(
                f"ignore_index: got {self.ignore_index} in a Step, wanted {NO_LABEL}, with which "
                "it pads labels and which it does not count; give the batch such labels"
            )
        dtype = computed_in(hidden.device, weight.dtype)
        _check(hidden, weight, labels, bias, dtype)
        if _may_not_wait(labels):
            labelled = _uncounted(
                labels, predicting(labels.shape), self.ignore_index, num_items_in_batch
            )
        else:
            rows, count = self._labelled_rows(labels, weight.shape[0])
            of_rows = labels.reshape(-1) if rows is None else labels.reshape(-1)[rows]
            if rows is not None:
                there = rows.to(hidden.device, non_blocking=True)
            labelled = Labelled(
                None if rows is None else Rows(there, there),
                of_rows.to(hidden.device, non_blocking=True).contiguous(),
                _reciprocal(count, num_items_in_batch, hidden.device),
            )
        settings = Criterion(
            self.ignore_index,
            self.label_smoothing,
            self._rows_of_a_chunk(weight.shape[0], dtype, hidden.device),
            torch.is_grad_enabled(),
        )
        loss: Tensor = ChunkedLoss.apply(
            hidden.reshape(-1, hidden.shape[-1]).to(dtype),
            weight,
            bias,
            labelled,
            settings,
            self._packed_as_now(weight, bias, dtype),
        )
        return loss

    def of_model(
        self,
        model: nn.Module,
        batch: Mapping[str, Tensor],
        *,
        num_items_in_batch: int | Tensor | None = None,
    ) -> Tensor:
        """The loss of a transformers model with a language-model head: `model(**batch).loss` with
        the settings of this criterion. Pass it to `Step` as `loss`. `batch` has `labels`; those of
        causal models are shifted here. `num_items_in_batch` is as in `forward`. Raises Unsupported
        for a model whose logits are more than a projection, such as capped, InvalidInput for a
        batch without labels."""
        hidden, weight, labels, bias, side = head_inputs(model, batch, self.ignore_index)
        with only(side):
            loss: Tensor = self(hidden, weight, labels, bias, num_items_in_batch=num_items_in_batch)
        return loss

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_packed": None}

    def _packed_as_now(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> HeadWeight:
        if self._packed is None or not self._packed.is_of(weight, bias, dtype):
            self._packed = HeadWeight(weight, bias, dtype)
        self._packed.follow()
        return self._packed

    def _rows_of_a_chunk(self, classes: int, dtype: torch.dtype, device: torch.device) -> int:
        limit = self.logit_bytes or _LOGIT_BYTES[device.type]
        rows = max(1, limit // (dtype.itemsize * classes))
        return rows if rows < _TILE else rows // _TILE * _TILE

    def _labelled_rows(self, labels: Tensor, classes: int) -> tuple[Tensor | None, int]:
        """The indices of rows with a label, None where all have one, and their number."""
        given = labels != self.ignore_index
        wrong = given & ((labels < 0) | (labels >= classes))
        count, refused = torch.stack([given.sum(), wrong.sum()]).tolist()  # synchronises once
        if refused:
            at = tuple(wrong.nonzero()[0].tolist())
            raise InvalidInput(
                "labels",
                f"{int(labels[at])} in row {list(at)}",
                f"[0, {classes}), or {self.ignore_index} for rows without a label",
                "check the tokenizer against the model's vocabulary",
            )
        if count == labels.numel():
            return None, count
        return given.reshape(-1).nonzero_static(size=count).reshape(-1), count


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
    """A single call of CrossEntropy; packs the weight each time."""
    criterion = CrossEntropy(label_smoothing=label_smoothing, ignore_index=ignore_index)
    loss: Tensor = criterion(hidden, weight, labels, bias, num_items_in_batch=num_items_in_batch)
    return loss


def _may_not_wait(labels: Tensor) -> bool:
    return labels.device.type != "cpu" and in_step()


def _uncounted(
    labels: Tensor, rows: Rows | None, ignore_index: int, items: int | Tensor | None
) -> Labelled:
    """These rows, or all of them, however many have a label: without a synchronisation."""
    flat = labels.reshape(-1).contiguous()
    given = (flat != ignore_index).sum()
    if items is None:
        count = given.clamp(min=1)
    else:
        count = torch.as_tensor(items, device=flat.device).reshape(())
    scale = count.double().reciprocal()
    if rows is None:
        return Labelled(None, flat, scale)
    some = nn.functional.pad(flat, (0, 1), value=ignore_index).index_select(0, rows.places)
    # Never the loss of fewer labels than there are.
    scale = torch.where((some != ignore_index).sum() == given, scale, torch.nan)
    return Labelled(rows, some, scale)


def _reciprocal(count: int, items: int | Tensor | None, device: torch.device) -> Tensor:
    """fp64 []: the factor of the sum of the losses of `count` rows."""
    if count == 0:
        items = None
    if isinstance(items, Tensor) and items.device.type != "cpu":
        return items.to(device=device, dtype=torch.float64).reshape(()).reciprocal()
    number = count if items is None else items
    if count > 0 and not number > 0:
        raise InvalidInput(
            "num_items_in_batch", items, "the number of labelled rows, above 0", "count them"
        )
    return torch.full((), 1.0 / max(float(number), 1.0), dtype=torch.float64, device=device)


def _check(
    hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> None:
    device = hidden.device
    if device.type not in _LOGIT_BYTES or (device.type == "cuda" and not cuda_built()):
        raise InvalidInput(
            "hidden",
            f"it on {device}",
            " or ".join(_LOGIT_BYTES) if cuda_built() else "cpu, as this build has no CUDA kernels",
            "move it there, or train with transformers' own loss",
        )
    for name, tensor in (("hidden", hidden), ("weight", weight), ("bias", bias)):
        if tensor is None:
            continue
        dtypes = {*PARAMETER_DTYPES} if name == "weight" else {weight.dtype}
        if name == "hidden":
            dtypes = {torch.float32, weight.dtype, dtype}
        if tensor.dtype not in dtypes or tensor.device != device:
            wanted = " or ".join(sorted(_name(each) for each in dtypes))
            raise InvalidInput(
                name,
                f"{_name(tensor.dtype)} on {tensor.device}",
                f"{wanted} on {device}",
                "convert all to the weight's dtype, compute in 16 bits by torch.autocast on a GPU, "
                "or train with transformers' own loss",
            )
    shapes = list(hidden.shape), list(weight.shape), list(labels.shape)
    if weight.ndim != 2 or shapes[0] != [*labels.shape, weight.shape[1]]:
        raise InvalidInput(
            "hidden",
            f"shape {shapes[0]} with weight {shapes[1]} and labels {shapes[2]}",
            "[..., features], [classes, features] and [...]",
            "pass a label for each row",
        )
    if labels.dtype != torch.int64 or labels.device not in (device, torch.device("cpu")):
        raise InvalidInput(
            "labels",
            f"{labels.dtype} on {labels.device}",
            f"int64 on {device}{'' if device.type == 'cpu' else ' or cpu'}",
            "call labels.long()",
        )
    if bias is not None and list(bias.shape) != [weight.shape[0]]:
        raise InvalidInput(
            "bias", f"shape {list(bias.shape)}", f"[{weight.shape[0]}]", "one for each class"
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
