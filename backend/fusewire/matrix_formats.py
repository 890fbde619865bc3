"""Which format each matrix of a model is stored in: what `quantize` asks for, or what a quantised
folder has, and the format of all weights for those that `quantize_skip` names."""

from __future__ import annotations

from collections.abc import Collection
from copy import copy

from fusewire import kernels
from fusewire.precision import Precision, check_skipped, skipped


class MatrixFormats:
    """Chooses formats on one stream in one precision, and records what it chose for all models that
    are loaded with it. The methods that choose take a matrix's name and shape."""

    def __init__(
        self, precision: Precision, stream: kernels.Stream, skip: Collection[str] = ()
    ) -> None:
        """`skip`: quantize_skip."""
        self._precision = precision
        self._stream = stream
        self._skip = skipped(skip)
        self.chosen: dict[str, str] = {}  # by name, of matrices that can be quantised
        # By name, of a folder's quantised matrices: whether they are computed as they are stored.
        self.as_stored: dict[str, bool] = {}

    def in_precision(self, precision: Precision) -> MatrixFormats:
        """Returns the same in another precision, with the same record."""
        other = copy(self)
        other._precision = precision
        return other

    def layer(self, name: str, shape: tuple[int, ...]) -> str:
        """Returns the format of a layer's matrix: the one that `quantize` asks for, unless
        `quantize_skip` has `name`."""
        return self._choose(name, shape, self._precision.layers)

    def multiplies(self, name: str, shape: tuple[int, ...], stored: str) -> bool:
        """Whether a matrix that a checkpoint has in the format `stored` is to be a `codes_linear`:
        if the device has kernels for the format, whatever `quantize` is, and `quantize_skip` does
        not name it."""
        return self._has(stored) and self._choose(name, shape, stored) == stored

    @property
    def has_int4(self) -> bool:
        """Whether there are kernels for 4-bit weights."""
        return self._has("int4")

    def int4(self, name: str, shape: tuple[int, ...]) -> str:
        """Returns the format of a matrix that a checkpoint has in 4 bits: int4, or w4a8 where a CPU
        is to multiply in int8, which also rounds the input. A matrix that `quantize_skip` names is
        int4 where it would be w4a8, and is dequantised otherwise."""
        if self._stream.device == "cpu" and self._precision.layers == "int8":
            return self._choose(name, shape, "w4a8", "int4")
        return self._choose(name, shape, "int4")

    def quantizes(self, name: str, shape: tuple[int, ...]) -> bool:
        """Whether a matrix of the vocabulary is to be a quantised `vocabulary_linear`."""
        precision = self._precision
        if precision.vocabulary == precision.weights:
            if name in self._skip:  # measured for a device that would quantise it
                self.chosen[name] = precision.weights
            return False
        return self._choose(name, shape, precision.vocabulary) == precision.vocabulary

    def described(self, kv_cache_dtype: str) -> str:
        """Describes the precision, with the formats of the matrices and of keys and values; and
        where only some of a folder's quantised matrices are dequantised, how many."""
        stored = [self._precision.weights, *self.chosen.values()]
        count, kept = len(self.as_stored), sum(self.as_stored.values())
        rest = f"{count - kept} of {count} quantised matrices dequantised" if kept else ""
        return self._precision.with_weights(stored, kv_cache_dtype, rest if kept < count else "")

    def check_skipped(self) -> None:
        """Raises ConfigurationError if quantize_skip names no matrix of the models."""
        check_skipped(self._skip, self.chosen)

    def _has(self, stored: str) -> bool:
        return stored in kernels.weight_formats(self._precision.dtype, self._stream)

    def _choose(
        self, name: str, shape: tuple[int, ...], quantized: str, exact: str | None = None
    ) -> str:
        """Returns and records the format of a matrix: `quantized`, or if `quantize_skip` names it
        `exact`, by default the format of all weights."""
        self.chosen[name] = (exact or self._precision.weights) if name in self._skip else quantized
        return self.chosen[name]
