"""Where a model's numbers live and how precise they are: one stream of one device, one dtype that
is computed in, and the formats of weights.

Models and tasks move everything through a Placement and never ask which device it is: on the CPU
its moves are views, elsewhere copies.
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
from fusewire.precision import Precision, check_kv_cache_dtype, check_skipped, skipped

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "uint8": 1}
_MIDDLE = 8  # the zero point of symmetric weights of 4 bits


class Placement:
    """One model's stream, element type and formats of weights."""

    def __init__(
        self,
        device: Any = "cpu",
        dtype: str = "auto",
        quantize: str = "none",
        quantize_skip: Collection[str] = (),
        kv_cache_dtype: str = "auto",
    ) -> None:
        """`device` is auto (the first GPU, else the CPU), cpu, cuda, cuda:<index> or a
        torch.device; `dtype` "auto" is float32 on the CPU and float16 elsewhere, or bfloat16 for
        models that outgrow that; bfloat16 on the CPU stores matrices so and computes in float32.
        `quantize`: how the layers' matrices are stored, and in int8 on the CPU those of the
        vocabulary, but for those that `quantize_skip` names (`formats`). `kv_cache_dtype`: of keys
        and values in a cache, auto (the dtype) or fp8. ConfigurationError when this build or
        machine has no such device, or no kernels for a dtype or format there."""
        try:
            self.stream = kernels.Stream(one_device(device))
        except kernels.Error as error:
            raise ConfigurationError(str(error)) from None
        self._any_dtype = dtype == "auto"
        self._quantize = quantize
        self._kv_cache_dtype = kv_cache_dtype
        self.precision = self._precision(dtype)
        self._quantize_skip = skipped(quantize_skip)
        self.formats: dict[str, str] = {}  # of the matrices so far that can be quantised, by name
        # By name, of those that a folder has quantised: whether they are computed as they are.
        self.as_stored: dict[str, bool] = {}

    @property
    def device(self) -> str:
        return self.stream.device

    @property
    def dtype(self) -> str:
        """The data type of the computation."""
        return self.precision.dtype

    @property
    def cache_dtype(self) -> str:
        """The data type of keys and values in a cache: that of the computation, or uint8 for codes
        of float8 e4m3."""
        return "uint8" if self._kv_cache_dtype == "fp8" else self.dtype

    @property
    def overlaps(self) -> bool:
        """Whether the device computes while the host goes on; a CPU computes in the thread that
        asks it to."""
        return self.device != "cpu"

    def without_float16(self) -> Placement:
        """The same stream, for a model whose numbers outgrow float16: bfloat16 in its stead where
        the dtype is auto; ConfigurationError where float16 was asked for."""
        if self.dtype != "float16":
            return self
        if not self._any_dtype:
            raise ConfigurationError(
                "dtype: got float16 for a model whose hidden states can be larger than 65504, "
                "wanted bfloat16 or float32; leave it out, or choose one of these"
            )
        other = copy(self)
        other.precision = self._precision("bfloat16")
        return other

    def _precision(self, dtype: str) -> Precision:
        """ConfigurationError also for what this very device has no kernels for."""
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
        """While a model loads: kernels that can be computed in several ways are timed when they are
        first seen. Never while a request waits."""
        before, self.stream.tuning = self.stream.tuning, True
        try:
            yield
        finally:
            self.stream.tuning = before

    def rows_to_tune(self, max_rows: int) -> list[int]:
        """The numbers of rows, largest first, that a model is to be run with while `tuning`, so
        that its kernels are chosen for every number up to `max_rows`; empty where there is no
        choice."""
        return kernels.rows_to_tune(max_rows, self.dtype, self.stream)[::-1]

    def floats(
        self, array: NDArray[Any], name: str = "tensor", tag: str = "weights"
    ) -> kernels.Tensor:
        """Values as `converted` takes them in the placement's dtype."""
        return self._upload(converted(array, self.dtype, name), tag)

    def write(self, to: kernels.Tensor, array: NDArray[Any], name: str = "tensor") -> None:
        """Values as `converted` takes them into memory that is here and stays where it is."""
        host = kernels.Tensor.from_numpy(converted(array, self.dtype, name))
        kernels.write(to, host, self.stream)

    def reserve(self, count: int, tag: str, quantized_bytes: int = 0) -> None:
        """Makes room in one piece for `count` numbers that are about to come, so that no ends of
        many pieces stay empty: of quantised layers what they take at least, and at most
        `quantized_bytes` of a checkpoint whose weights are quantised. Nothing on the CPU, which
        packs matrices anew."""
        if self.device != "cpu":
            allocator = kernels.default_allocator(self.device)
            nbytes = count * (BYTES[self.dtype] if self.precision.stores_exactly else 1)
            nbytes = min(nbytes, quantized_bytes or nbytes)
            allocator.allocate(nbytes, tag, self.stream).free()

    def exact(self, array: NDArray[Any], dtype: Any, tag: str = "input") -> kernels.Tensor:
        """The array as it is, in numpy's `dtype`: indices, and tables that stay fp32."""
        return self._upload(np.ascontiguousarray(array, dtype), tag)

    def end_to_end(
        self, arrays: Sequence[NDArray[np.float32]], tag: str = "input"
    ) -> kernels.Tensor:
        """The numbers of all arrays in one fp32 vector, which stay fp32."""
        packed = kernels.empty([sum(array.size for array in arrays)], "float32", tag, self.stream)
        begin = 0
        for array in arrays:
            host = kernels.Tensor.from_numpy(np.ascontiguousarray(array, np.float32))
            kernels.write(packed.section(begin, [array.size], "float32"), host, self.stream)
            begin += host.nbytes
        return packed

    def empty(self, *shape: int, dtype: str | None = None) -> kernels.Tensor:
        """A dense tensor, not initialised."""
        return kernels.empty(shape, dtype or self.dtype, stream=self.stream)

    def matrix(self, rows: int, cols: int) -> kernels.Tensor:
        """One whose rows lie apart as the kernels like them, not initialised."""
        return kernels.matrix(rows, cols, self.dtype, stream=self.stream)

    def sequences(self, cu_seqlens: NDArray[np.int32]) -> kernels.SequenceBatch:
        return kernels.SequenceBatch(
            kernels.Tensor.from_numpy(np.ascontiguousarray(cu_seqlens, np.int32)), self.stream
        )

    def linear(
        self, weight: NDArray[Any], bias: NDArray[Any] | None, name: str = "tensor"
    ) -> kernels.Linear:
        """A prepacked weight [out_features, in_features] with its bias; values as `converted` takes
        them."""
        return self._packed(weight, bias, name, self.precision.weights)

    def layer_linear(
        self, weight: NDArray[Any], bias: NDArray[Any] | None, name: str
    ) -> kernels.Linear:
        """As `linear`, of a layer: in the format that `quantize` asks for, unless it skips
        `name`."""
        stored = self._chosen(name, weight.shape, self.precision.layers)
        return self._packed(weight, bias, name, stored)

    def multiplies(self, name: str, shape: tuple[int, ...], stored: str) -> bool:
        """Whether a matrix that a checkpoint has in the format `stored` is to be a `codes_linear`:
        where the device has kernels for it, whatever `quantize` is."""
        if stored not in kernels.weight_formats(self.dtype, self.stream):
            return False
        return self._chosen(name, shape, stored) == stored

    def codes_linear(
        self,
        stored: str,
        codes: NDArray[np.uint8],
        scales: NDArray[np.float32],
        input_scale: float,
        bias: NDArray[Any] | None,
        name: str,
    ) -> kernels.Linear:
        """A weight of the bytes [out_features, in_features] of a format (int8, float8_e4m3 or
        float8_e4m3_blocks) and the scale of each row or block, both as they are. `input_scale`:
        that of what it is multiplied by; 0: found for each product."""
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

    @property
    def has_int4(self) -> bool:
        """Whether there are kernels for weights of 4 bits."""
        return "int4" in kernels.weight_formats(self.dtype, self.stream)

    def int4_format(self, name: str, shape: tuple[int, ...]) -> str:
        """The format of a matrix that a checkpoint has in 4 bits: int4, or w4a8 where a CPU is to
        multiply in int8, which rounds what it is multiplied by. A matrix that `quantize_skip` names
        is int4 where it would be w4a8, and is dequantised elsewhere."""
        if self.device == "cpu" and self.precision.layers == "int8":
            return self._chosen(name, shape, "w4a8", "int4")
        return self._chosen(name, shape, "int4")

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
        """A weight in the format `stored`, of codes [out_features, in_features / 2], the first of
        two in the low bits, and the scales and zero points [out_features, groups], all as they are;
        input i of the codes is input order[i] of what they are multiplied by. ConfigurationError if
        float16 cannot hold a number that they stand for."""
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

    def quantizes(self, name: str, shape: tuple[int, ...]) -> bool:
        """Whether a matrix of the vocabulary is to be a `vocabulary_linear`."""
        precision = self.precision
        if precision.vocabulary == precision.weights:
            if name in self._quantize_skip:  # as it was measured for a device that quantises it
                self.formats[name] = precision.weights
            return False
        return self._chosen(name, shape, precision.vocabulary) == precision.vocabulary

    def vocabulary_linear(
        self, weight: NDArray[Any], bias: NDArray[Any] | None, name: str
    ) -> kernels.Linear:
        """As `linear`, of a matrix with a row for each token, which may be the table of words."""
        return self._packed(weight, bias, name, self.precision.vocabulary)

    def _chosen(
        self, name: str, shape: tuple[int, ...], quantized: str, exact: str | None = None
    ) -> str:
        """The format of a matrix that is stored as `quantized` unless it is skipped, and then as
        `exact`, or as all weights are."""
        skipped = name in self._quantize_skip
        self.formats[name] = (exact or self.precision.weights) if skipped else quantized
        return self.formats[name]

    @property
    def described(self) -> str:
        """The precision, with the formats that matrices of loaded models, and keys and values, are
        stored in, and how many of a folder's quantised ones are dequantised beside others."""
        stored = [self.precision.weights, *self.formats.values()]
        count, kept = len(self.as_stored), sum(self.as_stored.values())
        rest = f"{count - kept} of {count} quantised matrices dequantised" if kept else ""
        return self.precision.with_weights(
            stored, self._kv_cache_dtype, rest if kept < count else ""
        )

    def check_skipped(self) -> None:
        """After models were loaded: ConfigurationError where quantize_skip names no matrix of
        theirs."""
        check_skipped(self._quantize_skip, self.formats)

    def linear_of(
        self,
        table: kernels.Tensor | kernels.Linear,
        bias: NDArray[Any] | None = None,
        name: str = "tensor",
    ) -> kernels.Linear:
        """A table that is here as a weight [out_features, in_features]: in the same memory where
        the kernels read it as it lies (GPUs, and what is packed), else packed from it. The bias is
        as `linear`'s."""
        there = None if bias is None else self.floats(bias, name)
        if isinstance(table, kernels.Linear):
            return table if there is None else table.with_bias(there, self.stream)
        return kernels.Linear(table, there, self.stream, format=self.precision.weights)

    def numpy(self, tensor: kernels.Tensor) -> NDArray[Any]:
        """The tensor's values on the host, 16-bit floats widened to fp32."""
        array: NDArray[Any] = kernels.download(tensor, self.stream).numpy()
        return widened(array, tensor.dtype)

    def readback(self, tensor: kernels.Tensor) -> kernels.Readback:
        """The tensor's values as they will be when the device has done all it was given so far;
        `wait` gives them."""
        return kernels.Readback(tensor, self.stream)

    def _packed(
        self, weight: NDArray[Any], bias: NDArray[Any] | None, name: str, stored: str
    ) -> kernels.Linear:
        # From the host: a copy on the device, freed at once, would leave a hole before the next.
        on_host = [
            None if each is None else kernels.Tensor.from_numpy(converted(each, self.dtype, name))
            for each in (weight, bias)
        ]
        return kernels.Linear(*on_host, self.stream, format=stored)

    def _upload(self, array: NDArray[Any], tag: str) -> kernels.Tensor:
        return kernels.upload(kernels.Tensor.from_numpy(array), tag, self.stream)
