"""One fused encoder layer equals the same layer written out in fp64, on every instruction set, and
takes its memory from a plan that is as small as lifetimes allow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fusewire import kernels as k
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import tolerance
from tests.ops.cases import ACTIVATIONS, attend, dense, rotate

SPECS: dict[str, dict[str, Any]] = {
    "post_norm": {},
    "post_norm_odd": {"hidden": 60, "heads": 3, "intermediate": 77, "activation": "relu"},
    "wide_heads": {"head_dim": 40, "activation": "gelu_tanh"},
    "position_bias": {"biased": True},
    "pre_norm": {"pre_norm": True},
    "pre_norm_rotary_gated_window": {
        "pre_norm": True,
        "gated": True,
        "rotary": True,
        "window": 5,
        "first_norm": False,
    },
    "rms_norm_silu_gated": {
        "pre_norm": True,
        "gated": True,
        "norm": "rms_norm",
        "activation": "silu",
    },
}
DEFAULTS = {"hidden": 64, "heads": 2, "intermediate": 128, "activation": "gelu_erf"}
LENGTHS = (1, 17, 40)


class Layer:
    """Random weights for one specification: as the library takes them and as torch does."""

    def __init__(self, options: dict[str, Any]) -> None:
        o = {**DEFAULTS, **options}
        self.o = o
        self.dim = o.get("head_dim") or o["hidden"] // o["heads"]
        self.width = self.dim * o["heads"]
        rng = np.random.default_rng(3)

        def matrix(out: int, into: int) -> tuple[np.ndarray, np.ndarray]:
            weight = rng.standard_normal((out, into), dtype=np.float32) / np.float32(into**0.5)
            return weight, rng.standard_normal(out, dtype=np.float32) * np.float32(0.1)

        hidden, inner = o["hidden"], o["intermediate"]
        self.linears = {
            "qkv": matrix(3 * self.width, hidden),
            "attention_output": matrix(hidden, self.width),
            "intermediate": matrix(inner * (2 if o.get("gated") else 1), hidden),
            "output": matrix(hidden, inner),
        }
        self.norms = {
            name: matrix(hidden, 1)[1] * 5 + 1 for name in ("attention_norm", "output_norm")
        }
        if not o.get("first_norm", True):
            del self.norms["attention_norm"]
        span = max(LENGTHS)
        self.bias = rng.standard_normal((o["heads"], 2 * span - 1), dtype=np.float32)
        angles = np.outer(np.arange(span), 10.0 ** -np.arange(self.dim // 2))
        self.cos, self.sin = np.cos(angles, dtype=np.float32), np.sin(angles, dtype=np.float32)
        self.positions = np.concatenate([np.arange(n, dtype=np.int32) for n in LENGTHS])

    def built(self) -> k.EncoderLayer:
        names = ("hidden", "intermediate", "heads", "activation", "gated", "norm", "pre_norm")
        spec = k.LayerSpec(
            **{name: self.o[name] for name in names if name in self.o},
            head_dim=self.dim,
            window=self.o.get("window", 0),
            norm_eps=1e-6,
        )
        weights: dict[str, Any] = {
            name: k.Linear(dense(w), dense(b)) for name, (w, b) in self.linears.items()
        }
        weights |= {name: (dense(w), None) for name, w in self.norms.items()}
        return k.EncoderLayer(spec, weights)

    def reference(self, x: np.ndarray, lengths: tuple[int, ...], dtype: torch.dtype) -> np.ndarray:
        def norm(h: torch.Tensor, name: str) -> torch.Tensor:
            if name not in self.norms:
                return h
            weight = torch.from_numpy(self.norms[name]).to(dtype)
            if self.o.get("norm") == "rms_norm":
                return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * weight
            return torch.nn.functional.layer_norm(h, h.shape[1:], weight, None, 1e-6)

        def linear(h: torch.Tensor, name: str) -> torch.Tensor:
            weight, bias = (torch.from_numpy(a).to(dtype) for a in self.linears[name])
            return torch.nn.functional.linear(h, weight, bias)

        def attention(h: torch.Tensor) -> torch.Tensor:
            qkv = linear(h, "qkv")
            if self.o.get("rotary"):
                tables = {
                    "qkv": qkv,
                    "positions": torch.from_numpy(self.positions),
                    "cos": torch.from_numpy(self.cos).to(dtype),
                    "sin": torch.from_numpy(self.sin).to(dtype),
                }
                qkv = rotate(tables, (len(h), self.o["heads"], self.dim))
            biased = bool(self.o.get("biased"))
            shape = (lengths, self.o["heads"], self.dim, self.o.get("window", 0), biased)
            context = attend({"qkv": qkv, "bias": torch.from_numpy(self.bias).to(dtype)}, shape)
            return linear(context, "attention_output")

        def feed_forward(h: torch.Tensor) -> torch.Tensor:
            h = linear(h, "intermediate")
            activation = ACTIVATIONS[self.o["activation"]]
            if self.o.get("gated"):
                a, b = h.chunk(2, -1)
                return linear(activation(a) * b, "output")
            return linear(activation(h), "output")

        h = torch.from_numpy(x).to(dtype)
        if self.o.get("pre_norm"):
            h = h + attention(norm(h, "attention_norm"))
            return (h + feed_forward(norm(h, "output_norm"))).numpy()
        h = norm(h + attention(h), "attention_norm")
        return norm(h + feed_forward(h), "output_norm").numpy()

    def forward(self, layer: k.EncoderLayer, x: k.Tensor, workspace: k.Workspace) -> None:
        batch = k.SequenceBatch(dense(np.cumsum([0, *LENGTHS]).astype(np.int32)))
        bias = dense(self.bias) if self.o.get("biased") else None
        rotary = (dense(self.cos), dense(self.sin), dense(self.positions))
        layer.forward(x, batch, workspace, bias, rotary if self.o.get("rotary") else None)


@pytest.mark.parametrize("target", k.cpu_targets())
@pytest.mark.parametrize("name", SPECS)
def test_a_layer_equals_its_fp64_reference(name: str, target: str) -> None:
    before = k.cpu_target()
    k.set_cpu_target(target)
    try:
        layer = Layer(SPECS[name])
        x = np.random.default_rng(4).standard_normal((sum(LENGTHS), layer.o["hidden"]))
        x = x.astype(np.float32)
        got = k.matrix(*x.shape)
        got.numpy()[...] = x
        layer.forward(layer.built(), got, k.Workspace())
        truth = layer.reference(x, LENGTHS, torch.float64)
        torch_error = np.abs(layer.reference(x, LENGTHS, torch.float32) - truth).max()
        granted = tolerance.OP_VERSUS_TORCH * torch_error
        granted += tolerance.ROUNDING_ULPS * np.spacing(np.float32(np.abs(truth).max()))
        assert np.abs(got.numpy() - truth).max() <= granted
    finally:
        k.set_cpu_target(before)


def shaped(hidden: int, heads: int, intermediate: int, **options: Any) -> k.EncoderLayer:
    """A layer whose weights do not matter: only what memory it plans."""
    gated = 2 if options.get("gated") else 1

    def linear(out: int, into: int) -> k.Linear:
        return k.Linear(dense(np.zeros((out, into), np.float32)), None)

    norm = (dense(np.ones(hidden, np.float32)), None)
    spec = k.LayerSpec(hidden=hidden, heads=heads, intermediate=intermediate, **options)
    weights = {
        "qkv": linear(3 * hidden, hidden),
        "attention_output": linear(hidden, hidden),
        "attention_norm": norm,
        "intermediate": linear(gated * intermediate, hidden),
        "output": linear(hidden, intermediate),
        "output_norm": norm,
    }
    return k.EncoderLayer(spec, weights)


def run(layer: k.EncoderLayer, workspace: k.Workspace, lengths: list[int]) -> None:
    batch = k.SequenceBatch(dense(np.cumsum([0, *lengths]).astype(np.int32)))
    x = k.matrix(sum(lengths), layer_width(layer))
    x.numpy()[...] = 0.5
    layer.forward(x, batch, workspace)


def layer_width(layer: k.EncoderLayer) -> int:
    return layer.spec.hidden


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    heads=st.integers(1, 4),
    head_dim=st.integers(1, 40),
    intermediate=st.integers(1, 300),
    gated=st.booleans(),
    pre_norm=st.booleans(),
)
def test_the_planned_peak_is_the_liveness_bound_within_5_percent(
    lengths: list[int],
    heads: int,
    head_dim: int,
    intermediate: int,
    gated: bool,
    pre_norm: bool,
) -> None:
    workspace = k.Workspace()
    layer = shaped(heads * head_dim, heads, intermediate, gated=gated, pre_norm=pre_norm)
    run(layer, workspace, lengths)
    stats = workspace.stats()
    assert stats["plans_recorded"] == 1
    assert stats["lower_bound_bytes"] <= stats["peak_bytes"]
    assert stats["peak_bytes"] <= tolerance.PEAK_OVER_BOUND * stats["lower_bound_bytes"]


@settings(max_examples=10, deadline=None)
@given(st.lists(st.lists(st.integers(1, 80), min_size=1, max_size=4), min_size=2, max_size=6))
def test_after_warm_up_a_layer_allocates_nothing(batches: list[list[int]]) -> None:
    allocator = k.CachingAllocator()
    workspace = k.Workspace(allocator)
    layer = shaped(64, 4, 256)
    for lengths in batches:
        run(layer, workspace, lengths)
    warm = allocator.stats()["raw_allocations"]
    for lengths in batches:
        run(layer, workspace, lengths)
    assert allocator.stats()["raw_allocations"] == warm
    assert warm >= 1


def test_layers_of_one_kind_share_their_plans() -> None:
    workspace = k.Workspace()
    for layer in (shaped(64, 4, 256), shaped(64, 4, 256), shaped(64, 2, 256)):
        run(layer, workspace, [5, 6])
    assert workspace.stats()["plans_recorded"] == 1
    run(shaped(64, 4, 128), workspace, [5, 6])
    assert workspace.stats()["plans_recorded"] == 2


def test_a_weight_that_does_not_fit_the_specification_is_named() -> None:
    layer = Layer({})
    layer.linears["output"] = layer.linears["qkv"]
    with pytest.raises(k.Error, match=r"output: got Linear\[192, 64\], wanted \[64, 128\]"):
        layer.built()


def test_a_missing_or_unknown_weight_is_named() -> None:
    spec = k.LayerSpec(hidden=8, heads=2, intermediate=8)
    with pytest.raises(k.Error, match="output_norm: got none"):
        k.EncoderLayer(spec, {})
    with pytest.raises(k.Error, match="got 'query', wanted qkv"):
        k.EncoderLayer(spec, {"query": None})
    with pytest.raises(k.Error, match="heads: got 3, wanted a divisor of hidden 8"):
        k.LayerSpec(hidden=8, heads=3, intermediate=8)


def test_threads_share_a_loop_without_changing_the_answer() -> None:
    layer = Layer({"hidden": 128, "intermediate": 512, "heads": 4})
    built = layer.built()
    x = np.random.default_rng(5).standard_normal((sum(LENGTHS), 128)).astype(np.float32)
    before, answers = k.num_threads(), []
    try:
        for threads in (1, 2, 3):
            k.set_num_threads(threads)
            assert k.num_threads() == threads
            got = k.matrix(*x.shape)
            got.numpy()[...] = x
            layer.forward(built, got, k.Workspace())
            answers.append(got.numpy().copy())
    finally:
        k.set_num_threads(before)
    assert np.array_equal(answers[0], answers[1])
    assert np.array_equal(answers[0], answers[2])
