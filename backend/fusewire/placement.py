"""Where a model's tensors are, and how precise they are: one stream of one device, one compute
dtype, and the formats of weights (matrix_formats.py).

Models and tasks move all data through a Placement and never ask which device it is: on the CPU its
transfers are views, on GPUs they are copies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.devices import one_device
from fusewire.errors import ConfigurationError
from fusewire.float_types import converted, widened
from fusewire.matrix_formats import MatrixFormats
from fusewire.precision import Precision, check_kv_cache_dtype

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "uint8": 1}
_MIDDLE = 8  # the zero point of symmetric 4-bit weights


class Placement:
    """The stream, the compute dtype and the weight formats of one model."""

    def __init__(
        self,
        device: Any = "cpu",
        dtype: str = "auto",
        quantize: str = "none",
        quantize_skip: Collection[str] = (),
        kv_cache_dtype: str = "auto",
    ) -> None:
        """`device` is auto (the first GPU, else the CPU), cpu, cuda, cuda:<index> or a
        torch.device. `dtype` "auto" is float32 on the CPU and float16 on GPUs, or bfloat16 for
        models whose hidden states overflow float16; bfloat16 on the CPU is the storage format of
        the matrices, and the computation is in float32. `quantize`: format of the layers' weight
        matrices, and for int8 on the CPU also of token embeddings and language-model heads, except
        for those that `quantize_skip` names (`formats`). `kv_cache_dtype`: format of keys and
        values in a cache, auto (the dtype) or fp8. Raises ConfigurationError when this build or
        machine lacks the device, or kernels for the dtype or format there."""
        try:
            self.stream = kernels.Stream(one_device(device))
        except kernels.Error as error:
            raise ConfigurationError(str(error)) from None
        self._any_dtype = dtype == "auto"
        self._quantize = quantize
        self._kv_cache_dtype = kv_cache_dtype
        self.precision = self._precision(dtype)
        self.matrices = MatrixFormats(self.precision, self.stream, quantize_skip)

    @property
    def device(self) -> str:
        return self.stream.device

    @property
    def dtype(self) -> str:
        """The data type of the computation."""
        return self.precision.dtype

    @property
    def cache_dtype(self) -> str:
        """The data type of keys and values in a cache: that of the computation, or uint8 for float8
        e4m3 codes."""
        return "uint8" if self._kv_cache_dtype == "fp8" else self.dtype

    @property
    def formats(self) -> dict[str, str]:
        """The formats of loaded matrices that can be quantised, by name."""
        return self.matrices.chosen

    @property
    def overlaps(self) -> bool:
        """Whether the device computes asynchronously to the host. The CPU computes in the calling
        thread."""
        return self.device != "cpu"

    def without_float16(self) -> Placement:
        """Returns a placement on the same stream for a model whose hidden states overflow float16:
        with bfloat16 in place of float16 if the dtype is auto. Raises ConfigurationError if float16
        was asked for."""
        if self.dtype != "float16":
            return self
        if not self._any_dtype:
            raise ConfigurationError(
                "dtype: got float16 for a model whose hidden states can be larger than 65504, "
                "wanted bfloat16 or float32; leave it out, or choose one of these"
            )
        other = copy(self)
        other.precision = self._precision("bfloat16")
        other.matrices = self.matrices.in_precision(other.precision)
        return other

    def _precision(self, dtype: str) -> Precision:
        """Returns the precision. Raises ConfigurationError also for a format without kernels on
        this particular device."""
        precision = Precision.of(self.device, dtype, self._quantize)
        check_kv_cache_dtype(self.device, precision.dtype, self._kv_cache_dtype)
        known = kernels.weight_formats(precision.dtype, self.stream)
        if precision.layers not in known:
            raise ConfigurationError(
                f"quantize: got {self._quantize!r} on {self.device}, which has kernels for "
                f"{', '.join(known)} weights alone, wanted one with {precision.layers} (GPUs: of "
                "compute capability 9.0); leave it out, or choose another device"
            )
        return precision

    @contextmanager
    def tuning(self) -> Iterator[None]:
        """A context for loading models: kernels that have several implementations are timed on
        their first call. Must not be used while a request waits."""
        before, self.stream.tuning = self.stream.tuning, True
        try:
            yield
        finally:
            self.stream.tuning = before

    def rows_to_tune(self, max_rows: int) -> list[int]:
        """Returns the numbers of rows, largest first, that a model has to be run with in `tuning`
        to choose its kernels for every number of rows up to `max_rows`; empty if there is no
        choice."""
        return kernels.rows_to_tune(max_rows, self.dtype, self.stream)[::-1]

    def floats(
        self, array: NDArray[Any], name: str = "tensor", tag: str = "weights"
    ) -> kernels.Tensor:
        """Uploads values, converted to the placement's dtype as by `converted`."""
        return self._upload(converted(array, self.dtype, name), tag)

    def write(self, to: kernels.Tensor, array: NDArray[Any], name: str = "tensor") -> None:
        """Writes values, converted as by `converted`, into an existing tensor; its address does not
        change."""
        host = kernels.Tensor.from_numpy(converted(array, self.dtype, name))
        kernels.write(to, host, self.stream)

    def reserve(self, count: int, tag: str, quantized_bytes: int = 0) -> None:
        """Reserves room in one block for `count` elements that will follow, so that the allocator
        does not leave unused ends in many blocks. For quantised layers it reserves their minimum,
        and at most `quantized_bytes` for a checkpoint with quantised weights. Does nothing on the
        CPU, where matrices are repacked."""
        if self.device != "cpu":
            allocator = kernels.default_allocator(self.device)
            nbytes = count * (BYTES[self.dtype] if self.precision.stores_exactly else 1)
            nbytes = min(nbytes, quantized_bytes or nbytes)
            allocator.allocate(nbytes, tag, self.stream).free()

    def trim(self) -> None:
        """Gives memory that is free in this process back to the device, for other processes and for
        models that measure what is free."""
        kernels.default_allocator(self.device).trim()

    def exact(self, array: NDArray[Any], dtype: Any, tag: str = "input") -> kernels.Tensor:
        """Uploads the array in numpy's `dtype`, not converted to the placement's: indices, and
        tables that stay in fp32."""
        return self._upload(np.ascontiguousarray(array, dtype), tag)

    def end_to_end(
        self, arrays: Sequence[NDArray[np.float32]], tag: str = "input"
    ) -> kernels.Tensor:
        """Concatenates the elements of all arrays in one fp32 vector, which stays in fp32."""
        packed = kernels.empty([sum(array.size for array in arrays)], "float32", tag, self.stream)
        begin = 0
        for array in arrays:
            host = kernels.Tensor.from_numpy(np.ascontiguousarray(array, np.float32))
            kernels.write(packed.section(begin, [array.size], "float32"), host, self.stream)
            begin += host.nbytes
        return packed

    def empty(self, *shape: int, dtype: str | None = None) -> kernels.Tensor:
        """Returns a dense tensor, not initialised."""
        return kernels.empty(shape, dtype or self.dtype, stream=self.stream)

    def matrix(self, rows: int, cols: int) -> kernels.Tensor:
        """Returns a matrix with the leading dimension that the kernels prefer, not initialised."""
        return kernels.matrix(rows, cols, self.dtype, stream=self.stream)

    def sequences(self, cu_seqlens: NDArray[np.int32]) -> kernels.SequenceBatch:
        return kernels.SequenceBatch(
            kernels.Tensor.from_numpy(np.ascontiguousarray(cu_seqlens, np.int32)), self.stream
        )

    def linear(
        self, weight: NDArray[Any], bias: NDArray[Any] | None, name: str = "tensor"
    ) -> kernels.Linear:
        """Returns a prepacked weight [out_features, in_features] with its bias; values are
        converted as by `converted`."""
        return self._packed(weight, bias, name, self.precision.weights)

    def layer_linear(
        self, weight: NDArray[Any], bias: NDArray[Any] | None, name: str
    ) -> kernels.Linear:
        """As `linear`, for a layer: in the format that `quantize` asks for, unless `quantize_skip`
        has `name`."""
        return self._packed(weight, bias, name, self.matrices.layer(name, weight.shape))

    def codes_linear(
        self,
        stored: str,
        codes: NDArray[np.uint8],
        scales: NDArray[np.float32],
        input_scale: float,
        bias: NDArray[Any] | None,
        name: str,
    ) -> kernels.Linear:
        """Returns a weight of codes [out_features, in_features] in a format (int8, float8_e4m3 or
        float8_e4m3_blocks) and the scale of each row or block, both unchanged. `input_scale`: the
        scale of the input; 0: computed for each product."""
        on_host = [
            kernels.Tensor.from_numpy(np.ascontiguousarray(each)) for each in (codes, scales)
        ]
        biases = None
        if bias is not None:
            biases = kernels.Tensor.from_numpy(converted(bias, self.dtype, name))
        return kernels.Linear(
            on_host[0],
            biases,
            self.stream,
            format=stored,
            scales=on_host[1],
            input_scale=input_scale,
        )

    def int4_linear(
        self,
        nibbles: NDArray[np.uint8],
        scales: NDArray[np.float32],
        zeros: NDArray[np.uint8],
        bias: NDArray[Any] | None,
        name: str,
        stored: str = "int4",
        order: NDArray[np.int32] | None = None,
    ) -> kernels.Linear:
        """Returns a weight in the format `stored`, of codes [out_features, in_features / 2], the
        first of two in the low bits, and the scales and zero points [out_features, groups], all
        unchanged. Column i of the codes multiplies element order[i] of the input. Raises
        ConfigurationError if a dequantised value overflows float16."""
        if self.dtype == "float16":
            converted(scales * np.maximum(zeros, 15 - zeros), self.dtype, name)
        on_host = [
            None if each is None else kernels.Tensor.from_numpy(np.ascontiguousarray(each))
            for each in (
                nibbles,
                scales,
                zeros if (zeros != _MIDDLE).any() else None,
                None if bias is None else converted(bias, self.dtype, name),
                order,
            )
        ]
        return kernels.Linear.of_int4(*on_host[:4], self.stream, format=stored, order=on_host[4])

    def vocabulary_linear(
        self, weight: NDArray[Any], bias: NDArray[Any] | None, name: str
    ) -> kernels.Linear:
        """As `linear`, for a matrix with a row for each token, which may be the token
        embeddings."""
        return self._packed(weight, bias, name, self.precision.vocabulary)

    @property
    def described(self) -> str:
        """Describes the precision, and the formats of the loaded models' matrices and of keys and
        values."""
        return self.matrices.described(self._kv_cache_dtype)

    def check_skipped(self) -> None:
        """To be called after models were loaded: raises ConfigurationError if quantize_skip names
        no matrix of theirs."""
        self.matrices.check_skipped()

    def linear_of(
        self,
        table: kernels.Tensor | kernels.Linear,
        bias: NDArray[Any] | None = None,
        name: str = "tensor",
    ) -> kernels.Linear:
        """Returns an uploaded table as a weight [out_features, in_features]. It shares the table's
        memory if the kernels read it as it is (on GPUs, and if it is packed); otherwise it is
        packed from it. The bias is converted as in `linear`."""
        there = None if bias is None else self.floats(bias, name)
        if isinstance(table, kernels.Linear):
            return table if there is None else table.with_bias(there, self.stream)
        return kernels.Linear(table, there, self.stream, format=self.precision.weights)

    def numpy(self, tensor: kernels.Tensor) -> NDArray[Any]:
        """Returns the tensor's values on the host, 16-bit floats widened to fp32."""
        array: NDArray[Any] = kernels.download(tensor, self.stream).numpy()
        return widened(array, tensor.dtype)

    def readback(self, tensor: kernels.Tensor) -> kernels.Readback:
        """Starts an asynchronous copy of the tensor's values to the host, behind all work enqueued
        so far; `wait` returns them."""
        return kernels.Readback(tensor, self.stream)

    def _packed(
        self, weight: NDArray[Any], bias: NDArray[Any] | None, name: str, stored: str
    ) -> kernels.Linear:
        # Packs from host memory: a device copy that is freed at once would fragment the memory.
        on_host = [
            None if each is None else kernels.Tensor.from_numpy(converted(each, self.dtype, name))
            for each in (weight, bias)
        ]
        return kernels.Linear(*on_host, self.stream, format=stored)

    def _upload(self, array: NDArray[Any], tag: str) -> kernels.Tensor:
        return kernels.upload(kernels.Tensor.from_numpy(array), tag, self.stream)
