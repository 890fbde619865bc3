"""The memory plan of an encoder layer, at the shapes of real models up to 8192 tokens.

Computing such shapes would take minutes, but a plan only needs sizes: `scratch_of` has the
allocations and releases of a layer, the first test shows that they are those of the real layer, and
the other tests plan from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from fusewire import kernels as k
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tolerance import PEAK_OVER_BOUND


@dataclass(frozen=True)
class Spec:
    hidden: int
    intermediate: int
    heads: int
    gated: bool = False
    pre_norm: bool = False
    first_norm: bool = True  # a pre-norm layer may have none


REAL = {
    "MiniLM-L6": Spec(384, 1536, 12),
    "BERT-base": Spec(768, 3072, 12),
    "BERT-large, XLM-R-large": Spec(1024, 4096, 16),
    "ELECTRA-small": Spec(256, 1024, 4),
    "ALBERT-xxlarge": Spec(4096, 16384, 64),
    "ModernBERT-base, first layer": Spec(
        768, 1152, 12, gated=True, pre_norm=True, first_norm=False
    ),
    "ModernBERT-large": Spec(1024, 2624, 16, gated=True, pre_norm=True),
}


def scratch_of(spec: Spec, tokens: int) -> Callable[[object], None]:
    """Returns the temporaries of a layer in their order, with the row strides of the library."""

    def forward(scratch: object) -> None:
        def matrix(cols: int) -> object:
            stride = k.matrix(2, cols).numpy().strides[0] // 4
            return scratch.tensor([tokens, stride])

        context = matrix(spec.hidden)
        qkv = matrix(3 * spec.hidden)
        if spec.pre_norm and spec.first_norm:
            matrix(spec.hidden).release()
        qkv.release()
        context.release()

        inner = matrix(spec.intermediate)
        both = matrix(2 * spec.intermediate) if spec.gated else None
        if spec.pre_norm:
            matrix(spec.hidden).release()
        if both:
            both.release()
        inner.release()

    return forward


def stack_of(spec: Spec, layers: int = 1) -> k.Stack:
    def linear(out: int, into: int) -> k.Linear:
        return k.Linear(k.Tensor.from_numpy(np.zeros((out, into), np.float32)), None)

    norm = k.Norm(k.Tensor.from_numpy(np.ones(spec.hidden, np.float32)))
    where = "input_norm" if spec.pre_norm else "residual_norm"
    attention = k.Attention(
        qkv=linear(3 * spec.hidden, spec.hidden),
        output=linear(spec.hidden, spec.hidden),
        heads=spec.heads,
    )
    feed_forward = k.FeedForward(
        intermediate=linear((2 if spec.gated else 1) * spec.intermediate, spec.hidden),
        output=linear(spec.hidden, spec.intermediate),
        gated=spec.gated,
    )
    blocks = [
        k.Block(attention, **({where: norm} if spec.first_norm else {})),
        k.Block(feed_forward, **{where: norm}),
    ]
    return k.Stack([k.Layer(blocks) for _ in range(layers)])


@pytest.mark.parametrize(
    "spec",
    [
        Spec(64, 256, 2),
        Spec(60, 77, 3),
        Spec(64, 96, 2, gated=True),
        Spec(128, 96, 2, gated=True, pre_norm=True),
        Spec(128, 96, 2, gated=True, pre_norm=True, first_norm=False),
    ],
    ids=str,
)
@pytest.mark.parametrize("lengths", [[1], [7, 30], [64, 64, 1]], ids=str)
def test_the_layer_creates_and_releases_just_this(spec: Spec, lengths: list[int]) -> None:
    tokens = sum(lengths)
    real, written = k.Workspace(k.CachingAllocator()), k.Workspace(k.CachingAllocator())
    x = k.matrix(tokens, spec.hidden)
    x.numpy()[...] = 0.5
    boundaries = np.cumsum([0, *lengths]).astype(np.int32)
    stack_of(spec).forward(x, k.SequenceBatch(k.Tensor.from_numpy(boundaries)), real)
    written.run((1, tokens, 0, 0), scratch_of(spec, tokens))
    (of_layer,), (of_text,) = real.programs(), written.programs()
    assert of_layer["records"] == of_text["records"]
    assert of_layer["offsets"] == of_text["offsets"]


@pytest.mark.parametrize("name", REAL)
@given(tokens=st.integers(1, 8192))
@settings(max_examples=30)
def test_the_peak_is_within_5_percent_of_the_bound(name: str, tokens: int) -> None:
    workspace = k.Workspace(k.CachingAllocator())
    workspace.run((1, tokens, 0, 0), scratch_of(REAL[name], tokens))
    stats = workspace.stats()
    assert 0 < stats["lower_bound_bytes"] <= stats["peak_bytes"]
    assert stats["peak_bytes"] <= PEAK_OVER_BOUND * stats["lower_bound_bytes"]


@given(
    hidden=st.integers(1, 5000),
    intermediate=st.integers(1, 20000),
    tokens=st.integers(1, 8192),
    gated=st.booleans(),
    pre_norm=st.booleans(),
)
@settings(max_examples=100)
def test_so_it_is_for_any_specification(
    hidden: int, intermediate: int, tokens: int, gated: bool, pre_norm: bool
) -> None:
    workspace = k.Workspace(k.CachingAllocator())
    spec = Spec(hidden, intermediate, 1, gated=gated, pre_norm=pre_norm)
    workspace.run((1, tokens, 0, 0), scratch_of(spec, tokens))
    assert workspace.stats()["worst_ratio"] <= PEAK_OVER_BOUND


def test_a_whole_model_uses_one_plan_a_token_count_and_one_arena() -> None:
    allocator = k.CachingAllocator()
    workspace = k.Workspace(allocator)
    stack = stack_of(Spec(64, 256, 2), layers=6)
    lengths = [5, 90, 17, 90, 5, 17, 90]

    def encode(length: int) -> None:
        x = k.matrix(length, 64)
        x.numpy()[...] = 0.5
        boundaries = k.Tensor.from_numpy(np.array([0, length], np.int32))
        stack.forward(x, k.SequenceBatch(boundaries), workspace)

    for length in lengths[:3]:
        encode(length)
    before = allocator.stats()
    for length in lengths:
        encode(length)
    assert allocator.stats() == before
    assert before["live_blocks"] == 1
    assert workspace.stats()["plans_recorded"] == 3
    assert workspace.stats()["runs"] == 6 * (3 + 7)
