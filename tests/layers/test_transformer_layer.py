"""One fused encoder layer equals the same layer written out in fp64, on every instruction set and
on a GPU in every precision. Its memory plan is as small as lifetimes allow."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire import kernels as k
from fusewire.placement import Placement
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import tolerance
from tests.layers.layer import GPU_LENGTHS, GPU_SPECS, LENGTHS, SPECS, Layer
from tests.ops.case import Operands
from tests.places import GPU


def workspace_at(place: Placement) -> k.Workspace:
    return k.Workspace(k.default_allocator(place.device))


def check(layer: Layer) -> None:
    x = layer.input(seed=4)
    operands = Operands(layer.place, "strided")
    got = operands.rows(x)
    layer.forward(layer.built(), got, workspace_at(layer.place))
    assert not layer.allowed_error(x).excess(operands.read(got))


@pytest.mark.parametrize("name", SPECS)
def test_a_layer_equals_its_fp64_reference(name: str, place: Placement) -> None:
    check(Layer(SPECS[name], place))


@pytest.mark.parametrize("place", GPU, indirect=True)
@pytest.mark.parametrize("name", GPU_SPECS)
def test_a_layer_of_a_published_size_equals_its_fp64_reference(name: str, place: Placement) -> None:
    check(Layer(GPU_SPECS[name], place, GPU_LENGTHS))


@pytest.mark.parametrize("place", GPU, indirect=True)
@pytest.mark.parametrize("name", [*SPECS, "bert_base", "modernbert_base"])
def test_a_layer_over_a_bucket_sees_the_batch_alone(name: str, place: Placement) -> None:
    layer = Layer((SPECS | GPU_SPECS)[name], place)
    tokens, sequences = sum(LENGTHS) + 6, 8
    offsets = np.full(sequences + 1, sum(LENGTHS), np.int32)
    offsets[: len(LENGTHS) + 1] = np.cumsum([0, *LENGTHS])
    batch = k.SequenceBatch.bucket(place.exact(offsets, np.int32), tokens, max(LENGTHS))
    x = layer.input(seed=6)
    padding = np.full((tokens - len(x), x.shape[1]), np.nan, np.float32)
    got = place.floats(np.concatenate([x, padding]))
    layer.forward(layer.built(), got, workspace_at(place), batch)
    assert not layer.allowed_error(x).excess(place.numpy(got)[: len(x)])


def shaped(hidden: int, heads: int, intermediate: int, **options: bool) -> Layer:
    """Returns a layer with arbitrary weights, for tests of its memory plan."""
    sizes = {"hidden": hidden, "heads": heads, "intermediate": intermediate}
    return Layer({**sizes, **options}, lengths=(1,))


def run(layer: Layer, workspace: k.Workspace, lengths: list[int]) -> None:
    batch = Placement().sequences(np.cumsum([0, *lengths]))
    x = k.matrix(sum(lengths), layer.o["hidden"])
    x.numpy()[...] = 0.5
    layer.built().forward(x, batch, workspace)


@settings(max_examples=40)
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


@settings(max_examples=10)
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


def test_a_norm_that_no_kernel_has_is_refused() -> None:
    layer = Layer({"pre_norm": True})
    weight = k.Tensor.from_numpy(np.ones(64, np.float32))
    part = k.FeedForward(
        intermediate=layer.place.linear(*layer.linears["intermediate"]),
        output=layer.place.linear(*layer.linears["output"]),
    )
    with pytest.raises(k.Error, match="output_norm: got a layer_norm, wanted an rms_norm"):
        k.Layer([k.Block(part, output_norm=k.Norm(weight))])
    with pytest.raises(k.Error, match="blocks: got none"):
        k.Layer([])
    with pytest.raises(k.Error, match="bias: got one for an rms_norm"):
        k.Norm(weight, weight, kind="rms_norm")
    with pytest.raises(k.Error, match="kind: got 'batch_norm', wanted layer_norm or rms_norm"):
        k.Norm(weight, kind="batch_norm")


def test_an_attention_with_angles_needs_positions() -> None:
    layer = Layer({"rotary": True})
    x = layer.place.floats(layer.input(seed=1))
    offsets = layer.place.sequences(np.cumsum([0, *layer.lengths]))
    with pytest.raises(k.Error, match="positions: got none"):
        layer.built().forward(x, offsets, k.Workspace())


def test_a_stack_is_its_layers_and_its_norm() -> None:
    layer = Layer({"pre_norm": True})
    one = k.Layer(layer.blocks())
    norm = k.Norm(layer.place.floats(layer.norms["output_norm"]), kind="rms_norm")
    step_by_step, at_once = (layer.place.floats(layer.input(seed=2)) for _ in range(2))
    for _ in range(2):
        layer.forward(k.Stack([one]), step_by_step, k.Workspace())
    norm.apply(step_by_step, step_by_step)
    layer.forward(k.Stack([one, one], norm), at_once, k.Workspace())
    assert np.array_equal(at_once.numpy(), step_by_step.numpy())


def test_threads_share_a_loop_without_changing_the_answer() -> None:
    layer = Layer({"hidden": 128, "intermediate": 512, "heads": 4})
    built = layer.built()
    x = layer.input(seed=5)
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
