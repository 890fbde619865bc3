"""Converts a checkpoint's tensors to tensors, norms and matrices of the kernel library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.models.blueprint import Attention, Embeddings
from fusewire.models.stored_weights import Dense, Norm, Table
from fusewire.placement import Placement
from fusewire.weights import Checkpoint
from fusewire.weights.quantized import BLOCKS, StoredCodes, joined


class Weights:
    """A checkpoint's tensors in the shapes that the kernels take, uploaded to a placement."""

    def __init__(self, checkpoint: Checkpoint, place: Placement) -> None:
        self._checkpoint = checkpoint
        self._place = place
        # Tables that are unchanged tensors, by the names of these.
        self._tables: dict[str | None, kernels.Tensor] = {}
        self._token_embeddings: dict[str | None, kernels.Tensor | kernels.Linear] = {}

    def table(self, table: Table) -> kernels.Tensor:
        """Returns an embedding table. Tied tables share their memory."""
        origin = self._checkpoint.origin(table.name)
        if not table.skipped and origin in self._tables:
            return self._tables[origin]
        tensor = self._place.floats(self._stored(table.name)[table.skipped :], table.name)
        if not table.skipped:
            self._tables[origin] = tensor
        return tensor

    def token_embeddings(self, embeddings: Embeddings) -> kernels.Tensor | kernels.Linear:
        """Returns the token embeddings. Projections and norms of their rows are applied once, here.
        They are packed where the placement quantises them. Tied tables share their memory."""
        table, place = embeddings.word, self._place
        origin = self._checkpoint.origin(table.name)
        as_stored = embeddings.word_as_stored
        if as_stored and origin in self._token_embeddings:
            return self._token_embeddings[origin]
        self._note([table.name.removesuffix(".weight")], as_stored=False)
        rows = self._stored(table.name) if as_stored else self._changed_embeddings(embeddings)
        built: kernels.Tensor | kernels.Linear
        if place.matrices.quantizes(name := table.name.removesuffix(".weight"), rows.shape):
            built = place.vocabulary_linear(rows, None, name)
        else:
            built = place.floats(rows, table.name)
        if as_stored:
            self._token_embeddings[origin] = built
        return built

    def _changed_embeddings(self, embeddings: Embeddings) -> NDArray[Any]:
        table, norm = embeddings.word, embeddings.word_norm
        if embeddings.word_projection is not None:
            projection = self._stacked(embeddings.word_projection, "weight", "float32")
            return self._checkpoint.take(table.name)[table.skipped :] @ projection.T
        if norm is None:
            return self._stored(table.name)[table.skipped :]
        rows = self._checkpoint.take(table.name).astype(np.float64)
        rows -= rows.mean(axis=1, keepdims=True)
        rows /= np.sqrt(rows.var(axis=1, keepdims=True) + norm.eps)
        weight, bias = (self.fp32(f"{norm.name}.{kind}") for kind in ("weight", "bias"))
        return (rows * weight + bias).astype(np.float32)

    def norm(self, norm: Norm) -> tuple[kernels.Tensor, kernels.Tensor | None]:
        bias = self._vector(f"{norm.name}.bias") if norm.bias else None
        name = f"{norm.name}.weight"
        if norm.one_plus or norm.scale != 1:
            stored = self._checkpoint.take(name)
            weight = (stored + np.float32(norm.one_plus)) * np.float32(norm.scale)
        else:
            weight = self._stored(name)
        return self._place.floats(weight, name), bias

    def built_norm(self, norm: Norm | None) -> kernels.Norm | None:
        return None if norm is None else kernels.Norm(*self.norm(norm), norm.eps, norm.kind)

    def fp32(self, name: str) -> NDArray[np.float32]:
        return self._checkpoint.take(name)

    def matrix(self, dense: Dense) -> NDArray[Any]:
        """Returns the weight [outputs, inputs] that `linear` packs, in fp32."""
        return self._stacked(dense, "weight", "float32")

    def linear(self, dense: Dense) -> kernels.Linear:
        """Returns a prepacked matrix. Several names become one matrix, for a single product. A head
        whose weight is a table (tied embeddings) is a `vocabulary_linear`."""
        if self._origin(dense) in self._token_embeddings:
            return self.vocabulary_linear(dense)
        self._note(dense.names, as_stored=False)
        weight = self._stacked(dense, "weight", self._place.dtype)
        return self._place.linear(weight, self._bias(dense), dense.names[0])

    def vocabulary_linear(self, dense: Dense) -> kernels.Linear:
        """As `linear`, for a head with one output per token, in the placement's format for such
        matrices. A head whose weight is a table (tied embeddings) shares its memory if it can;
        codes of a head's own quantised weight are kept as in `layer_linear`."""
        tied = self._token_embeddings.get(self._origin(dense))
        if tied is None and (own := self._own(dense)) is not None:
            return own
        place, bias, name = self._place, self._bias(dense), dense.names[0]
        quantized = place.matrices.quantizes(name, (dense.outputs, dense.inputs))
        if tied is not None and isinstance(tied, kernels.Linear) == quantized:
            return place.linear_of(tied, bias, name)
        weight = self._stacked(dense, "weight", place.dtype)
        return (place.vocabulary_linear if quantized else place.linear)(weight, bias, name)

    def layer_linear(self, dense: Dense) -> kernels.Linear:
        """As `linear`, for a layer: in the placement's format for layers, by the first of its
        names. A checkpoint's 8-bit or 4-bit codes are kept where the placement has kernels for
        them."""
        own = self._own(dense)
        if own is not None:
            return own
        weight = self._stacked(dense, "weight", self._place.dtype)
        return self._place.layer_linear(weight, self._bias(dense), dense.names[0])

    def cache_scales(self, attention: Attention) -> dict[str, float]:
        """Returns the checkpoint's scales of keys and values by name if the placement's cache is
        float8, else none."""
        if self._place.cache_dtype == self._place.dtype:
            return {}
        module = attention.qkv.names[0].rpartition(".")[0]
        k_scale, v_scale = self._checkpoint.cache_scales.of(module)
        return {"k_scale": k_scale, "v_scale": v_scale}

    def _own(self, dense: Dense) -> kernels.Linear | None:
        """Returns the matrix with the checkpoint's own codes; None if it is not quantised, or has
        to be dequantised."""
        own = self._of_codes(dense)
        if own is None:
            own = self._of_int4(dense)
        self._note(dense.names, as_stored=own is not None)
        return own

    def _note(self, names: Sequence[str], *, as_stored: bool) -> None:
        if any(self._checkpoint.is_quantized(f"{name}.weight") for name in names):
            self._place.matrices.as_stored[names[0]] = as_stored

    def _of_codes(self, dense: Dense) -> kernels.Linear | None:
        """Returns the weight with the checkpoint's 8-bit codes; None if it has none, or if the
        placement has no kernels for their format."""
        stored, name = self._codes(dense), dense.names[0]
        if stored is None or not self._place.matrices.multiplies(
            name, stored.codes.shape, stored.format
        ):
            return None
        return self._place.codes_linear(*stored, self._bias(dense), name)

    def _codes(self, dense: Dense) -> StoredCodes | None:
        """Returns the codes and scales of all names stacked; None if one of them has none or has
        another format, or if factors of the weight do not fit its scales."""
        stored = [self._checkpoint.codes(f"{name}.weight") for name in dense.names]
        parts = [part for part in stored if part is not None]
        whole = joined(parts) if len(parts) == len(stored) else None
        if whole is None or dense.averaged:
            return None
        if whole.format == BLOCKS:  # scales of blocks, not of rows
            changed = dense.by_head or dense.row_scale or dense.weight_scale != 1
            return None if changed else whole
        if whole.input_scale and dense.weight_scale != 1:
            return None  # the factor may undo one of the input, which its scale does not know of
        codes, scales = (_regrouped(each, dense) for each in (whole.codes, whole.scales))
        return _with_signs_in_float8(
            whole._replace(codes=codes, scales=self._scaled(scales, dense, dense.weight_scale))
        )

    def _of_int4(self, dense: Dense) -> kernels.Linear | None:
        """Returns the weight with the checkpoint's 4-bit codes; None if not all names have such
        codes with equal groups and order of inputs, or if the placement does not take 4-bit
        codes."""
        if dense.averaged or not self._place.matrices.has_int4:
            return None
        stored = [self._checkpoint.int4(f"{name}.weight") for name in dense.names]
        parts = [part for part in stored if part is not None]
        orders = {None if part.order is None else part.order.tobytes() for part in parts}
        groups = {part.scales.shape[1] for part in parts}
        if len(parts) < len(stored) or len(groups) > 1 or len(orders) > 1:
            return None
        name = dense.names[0]
        stored_so = self._place.matrices.int4(name, (dense.outputs, dense.inputs))
        if stored_so not in ("int4", "w4a8"):
            return None
        nibbles, scales, zeros = (
            _regrouped(np.concatenate(each) if len(each) > 1 else each[0], dense)
            for each in zip(*((p.nibbles, p.scales, p.zeros) for p in parts), strict=True)
        )
        scales = self._scaled(scales, dense, dense.weight_scale)
        return self._place.int4_linear(
            nibbles, scales, zeros, self._bias(dense), name, stored_so, parts[0].order
        )

    def _origin(self, dense: Dense) -> str | None:
        return self._checkpoint.origin(f"{dense.names[0]}.weight")

    def _bias(self, dense: Dense) -> NDArray[Any] | None:
        if dense.bias_row:
            return self._stored(dense.bias_row)[0]
        return self._stacked(dense, "bias", self._place.dtype) if dense.bias else None

    def _stored(self, name: str) -> NDArray[Any]:
        """Returns the tensor unconverted if it has the placement's precision, else in fp32, so that
        nothing is rounded twice or read more often than necessary."""
        return self._checkpoint.take(name, self._place.dtype)

    def _stacked(self, dense: Dense, kind: str, dtype: str) -> NDArray[Any]:
        factor = dense.weight_scale if kind == "weight" else dense.bias_scale
        if dense.averaged or dense.row_scale or factor != 1:
            dtype = "float32"  # rounded once, after the changes below
        without = dense.unbiased if kind == "bias" else ()
        stored = [name for name in dense.names if name not in without]
        parts = [self._checkpoint.take(f"{name}.{kind}", dtype) for name in stored]
        if len({part.dtype for part in parts}) > 1:
            parts = [self._checkpoint.take(f"{name}.{kind}") for name in stored]
        if without:
            biases = dict(zip(stored, parts, strict=True))
            none = np.zeros(dense.outputs // len(dense.names), parts[0].dtype)
            parts = [biases.get(name, none) for name in dense.names]
        if dense.averaged and kind == "weight":
            whole = np.concatenate(parts, axis=1) / np.float32(len(parts))
        elif dense.averaged:
            whole = np.mean(parts, axis=0)
        else:
            whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if dense.transposed and kind == "weight":
            whole = whole.T
        return self._scaled(_regrouped(whole, dense), dense, factor)

    def _scaled(self, by_output: NDArray[Any], dense: Dense, factor: float) -> NDArray[Any]:
        """Returns values of the outputs, [outputs, ...], times the factors of these."""
        if dense.row_scale:
            by_output = (by_output.T * self.fp32(dense.row_scale)).T
        return by_output if factor == 1 else by_output * np.float32(factor)

    def _vector(self, name: str) -> kernels.Tensor:
        return self._place.floats(self._stored(name), name)


def _with_signs_in_float8(weight: StoredCodes) -> StoredCodes:
    """Returns the weight with the signs of its rows' scales in the codes of float8, which have a
    bit for them. int8 keeps negative scales: its -128 has no opposite."""
    negative = weight.scales < 0
    if weight.format == "int8" or not negative.any():
        return weight
    codes = weight.codes.copy()
    codes[negative] ^= 128
    return weight._replace(codes=codes, scales=np.abs(weight.scales))


def _regrouped(whole: NDArray[Any], dense: Dense) -> NDArray[Any]:
    """Returns the rows in the order q | k | v, whatever their stored order is."""
    if not dense.by_head:
        return whole
    split = whole.reshape(dense.by_head, 3, -1, *whole.shape[1:])
    return split.swapaxes(0, 1).reshape(whole.shape)


def in_stored_order(rows: NDArray[Any], dense: Dense) -> NDArray[Any]:
    """Returns values of the outputs q | k | v in the order in which these outputs are stored."""
    if not dense.by_head:
        return rows
    return rows.reshape(3, dense.by_head, -1).swapaxes(0, 1).reshape(rows.shape)
