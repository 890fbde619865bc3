"""The data type a model computes in and the formats of its weights, checked in one place."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from fusewire.errors import ConfigurationError, shown

DTYPES = ("auto", "float32", "float16", "bfloat16")
QUANTIZATIONS = ("none", "int8", "fp8")
KV_CACHE_DTYPES = ("auto", "fp8")
_FORMATS = {"int8": "int8", "fp8": "float8_e4m3"}
_NUMBER = re.compile(r"\b\d+\b")


@dataclass(frozen=True)
class Precision:
    """`dtype`: data type of hidden states and of every sum. `weights`: format of matrices.
    `layers`: format of the layers' matrices, except for those that are left out of `quantize`.
    `vocabulary`: format of matrices with a row for each token, token embeddings and language-model
    heads; only CPUs read these in int8."""

    dtype: str
    weights: str
    layers: str
    vocabulary: str

    @staticmethod
    def of(device: str, dtype: str = "auto", quantize: str = "none") -> Precision:
        """Returns the precision on `device`, cpu or a GPU. "auto" is float32 on the CPU and float16
        on GPUs. A CPU always computes in float32; there bfloat16 is the format of its weights.
        Raises ConfigurationError for formats that the device has no kernels for."""
        _check("dtype", dtype, DTYPES)
        _check("quantize", quantize, QUANTIZATIONS)
        on_cpu = device == "cpu"
        if on_cpu and dtype == "float16":
            raise ConfigurationError(
                "dtype: got 'float16' on cpu, wanted float32 or bfloat16; leave it out, or choose "
                "a GPU"
            )
        if quantize == "fp8" and on_cpu:
            raise ConfigurationError(
                "quantize: got 'fp8' on cpu, wanted none or int8, as only GPUs have kernels for "
                "it; leave it out, or choose one of these"
            )
        if quantize != "none" and not on_cpu and dtype == "float32":
            raise ConfigurationError(
                f"quantize: got {quantize!r} on {device} with dtype float32, wanted none, as GPUs "
                "have kernels for it that compute in float16 or bfloat16; leave out one of both"
            )
        if dtype == "auto":
            dtype = "float32" if on_cpu else "float16"
        layers = _FORMATS.get(quantize, dtype)
        vocabulary = layers if quantize == "int8" and on_cpu else dtype
        return Precision("float32" if on_cpu else dtype, dtype, layers, vocabulary)

    @property
    def stores_exactly(self) -> bool:
        """Whether all weights are stored in the compute dtype."""
        return self.weights == self.layers == self.dtype

    @property
    def described(self) -> str:
        """The precision as `serve` prints it: `float32`, or with the formats of weights that differ
        from it."""
        return self.with_weights([self.weights, self.layers])

    def with_weights(
        self, formats: Iterable[str], kv_cache_dtype: str = "auto", remark: str = ""
    ) -> str:
        """As `described`, for weights stored in `formats`, and keys and values in
        `kv_cache_dtype`."""
        stored = " and ".join(each for each in dict.fromkeys(formats) if each != self.dtype)
        parts = [f"{stored} weights"] if stored else []
        if kv_cache_dtype != "auto":
            parts.append(f"{kv_cache_dtype} KV cache")
        if remark:
            parts.append(remark)
        return f"{self.dtype} ({', '.join(parts)})" if parts else self.dtype


def check_kv_cache_dtype(device: str, dtype: str, kv_cache_dtype: str) -> None:
    """Raises ConfigurationError for a cache format without kernels on `device`, cpu or a GPU, for a
    model of this `dtype`."""
    _check("kv_cache_dtype", kv_cache_dtype, KV_CACHE_DTYPES)
    on_cpu = device == "cpu"
    if kv_cache_dtype == "fp8" and (on_cpu or dtype == "float32"):
        where = "cpu" if on_cpu else f"{device} with dtype float32"
        raise ConfigurationError(
            f"kv_cache_dtype: got 'fp8' on {where}, wanted auto, as only GPUs have kernels for it, "
            "that compute in float16 or bfloat16; leave it out, or choose these"
        )


def skipped(given: Any) -> frozenset[str]:
    """Returns the names of a quantize_skip, which is a list or a string separated by commas. Raises
    ConfigurationError for anything else."""
    listed = given.split(",") if isinstance(given, str) else given
    names = [*listed] if isinstance(listed, Iterable) else [listed]
    wrong = [each for each in names if not isinstance(each, str)]
    if wrong:
        raise ConfigurationError(
            f"quantize_skip: got {shown(wrong[0])}, wanted a list of names of matrices; write "
            "['NAME', …], or leave it out"
        )
    return frozenset(filter(None, map(str.strip, names)))


def check_skipped(skipped: Collection[str], known: Iterable[str]) -> None:
    """Raises ConfigurationError if quantize_skip has a name that is not a matrix of the model. The
    message lists matrices of layers once, with N for the index."""
    known = dict.fromkeys(known)
    unknown = sorted(name for name in skipped if name not in known)
    if unknown:
        names = dict.fromkeys(_NUMBER.sub("N", name) for name in known)
        raise ConfigurationError(
            f"quantize_skip: got {unknown[0][:120]!r}, wanted names of matrices of the model: "
            f"{', '.join(names) or 'none'}; correct or remove it"
        )


def _check(name: str, got: str, known: tuple[str, ...]) -> None:
    if got not in known:
        raise ConfigurationError(
            f"{name}: got {got!r}, wanted one of {', '.join(known)}; choose one of these"
        )
