"""A stack that trains: its gradients against fp64 autograd, its memory, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fusewire import kernels as k
from fusewire.kernels import training as t
from fusewire.placement import Placement
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.held import settled
from tests.tolerance import PEAK_OVER_BOUND, TRAINED_GRADIENT
from tests.train.trained_layer import (
    DROPOUTS,
    RECOMPUTE,
    SHAPES,
    TRAINED_SPECS,
    Floats,
    TrainedLayer,
    expect_close,
    off,
)


def arrays(layer: TrainedLayer, seed: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """An input and the gradient of its output."""
    return layer.input(seed), layer.input(seed + 1)


@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("name", TRAINED_SPECS)
def test_gradients_are_those_of_fp64_autograd(name: str, recompute: str, place: Placement) -> None:
    if place.device != "cpu":
        pytest.skip("training is on the CPU so far")
    layer = TrainedLayer(TRAINED_SPECS[name])
    x, gradient = arrays(layer)
    dx, gradients = layer.gradients(x, gradient, recompute=recompute)
    true_dx, truth = layer.truth(x, gradient)
    assert off(dx, true_dx) <= TRAINED_GRADIENT
    expect_close(layer, gradients, truth)


@pytest.mark.parametrize("recompute", RECOMPUTE)
def test_the_gradient_of_a_bias_is_the_sum_over_the_layers_that_share_it(recompute: str) -> None:
    layer = TrainedLayer(TRAINED_SPECS["position_bias"], layers=3)
    x, gradient = arrays(layer)
    layer.gradients(x, gradient, recompute=recompute)
    leaves: dict[int, torch.Tensor] = {}
    layer.truth(x, gradient, leaves)
    truth = leaves[id(layer.bias)].grad
    assert truth is not None
    assert off(layer.dbias, truth.numpy()) <= TRAINED_GRADIENT


def test_the_gradient_of_a_bias_is_added_to_what_is_there_or_left_out() -> None:
    layer = TrainedLayer(TRAINED_SPECS["position_bias"], layers=2)
    x, gradient = arrays(layer)
    dx, gradients = layer.gradients(x, gradient)
    alone, there = layer.dbias, np.full_like(layer.bias, 3)
    for sums in ([k.Tensor.from_numpy(there)], [None], []):
        _, activations = layer.forward_pass(x)
        assert activations is not None
        got = layer.backward_pass(activations, gradient, bias_gradients=sums)
        assert np.array_equal(got[0], dx)
        assert np.array_equal(got[1], gradients)
    np.testing.assert_allclose(there, alone + 3, rtol=1e-5)


@pytest.mark.parametrize("name", ["post_norm", "rms_norm_silu_gated"])
def test_a_forward_that_saves_computes_what_one_that_serves_does(name: str) -> None:
    layer = TrainedLayer(TRAINED_SPECS[name])
    x, _ = arrays(layer)
    served = k.Tensor.from_numpy(x.copy())
    layer.forward(layer.built(), served, k.Workspace(k.CachingAllocator()))
    saving, activations = layer.forward_pass(x)
    alone, none = layer.forward_pass(x, first_trained=1)
    assert activations is not None
    assert none is None
    assert np.array_equal(alone, served.numpy())
    assert off(saving, served.numpy()) <= TRAINED_GRADIENT


@pytest.mark.parametrize("name", ["post_norm", "pre_norm_rotary_gated_window", "parallel"])
def test_dropout_is_replayed_in_the_backward(name: str) -> None:
    """By differences along a random direction of x and of the parameters."""
    layer = TrainedLayer(TRAINED_SPECS[name], layers=2, **DROPOUTS)
    x, gradient = arrays(layer)
    dx, gradients = layer.gradients(x, gradient, dropout_seed=3)
    rng = np.random.default_rng(1)
    along_x = rng.standard_normal(x.shape).astype(np.float32)
    along = (rng.standard_normal(layer.values.shape) * np.abs(layer.values)).astype(np.float32)

    def value(step: float, version: int) -> float:
        values = layer.values + np.float32(step) * along
        out, _ = layer.forward_pass(
            x + np.float32(step) * along_x, values, dropout_seed=3, version=version
        )
        return float((out.astype(np.float64) * gradient).sum())

    step = 2.0**-9
    slope = (value(step, 1) - value(-step, 2)) / (2 * step)
    found = float((dx * along_x).sum(dtype=np.float64) + (gradients * along).sum(dtype=np.float64))
    other = layer.gradients(x, gradient, dropout_seed=4, version=3)[1]
    assert found == pytest.approx(slope, rel=0.01)
    assert off(other, gradients) > 0.1


@pytest.mark.parametrize(
    "name", ["post_norm", "rms_norm_silu_gated", "head_norms_rotary", "position_bias", "parallel"]
)
def test_recomputing_saves_memory_and_changes_no_bit(name: str) -> None:
    peaks, results = [], []
    for recompute in RECOMPUTE:
        layer = TrainedLayer(TRAINED_SPECS[name], layers=4, **DROPOUTS)
        x, gradient = arrays(layer)
        results.append(layer.gradients(x, gradient, recompute=recompute, dropout_seed=7))
        peaks.append(layer.stack.stats()["peak_bytes"])
    for dx, gradients in results[1:]:
        assert np.array_equal(dx, results[0][0])
        assert np.array_equal(gradients, results[0][1])
    assert peaks[0] > peaks[1] > peaks[2] > peaks[3]


def test_of_relu_only_the_result_is_kept() -> None:
    def step(activation: str, recompute: str) -> tuple[int, Floats]:
        layer = TrainedLayer({"activation": activation}, layers=4, **DROPOUTS)
        x, gradient = arrays(layer)
        _, gradients = layer.gradients(x, gradient, recompute=recompute, dropout_seed=7)
        return layer.stack.stats()["peak_bytes"], gradients

    (relu, plain), (without_norms, _), (less, again) = (
        step("relu", recompute) for recompute in ("none", "norm", "activation")
    )
    gelu, _ = step("gelu_erf", "none")
    width, tokens = 128, 1 + 17 + 40
    assert gelu - relu >= 3 * 4 * width * tokens
    assert less == without_norms
    assert np.array_equal(plain, again)


def test_gradients_are_bit_equal_whatever_the_number_of_threads() -> None:
    layer = TrainedLayer(TRAINED_SPECS["post_norm"], lengths=(3, 70, 200), layers=2, **DROPOUTS)
    x, gradient = arrays(layer)
    threads = k.num_threads()
    first = layer.gradients(x, gradient, dropout_seed=1)
    try:
        for count in (1, 3, 2):
            k.set_num_threads(count)
            again = layer.gradients(x, gradient, dropout_seed=1)
            assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    finally:
        k.set_num_threads(threads)


def test_two_forwards_may_be_in_flight() -> None:
    layer = TrainedLayer(TRAINED_SPECS["post_norm"], layers=2, **DROPOUTS)
    x, gradient = arrays(layer)
    y, _ = arrays(layer, seed=50)
    alone = [layer.gradients(each, gradient, dropout_seed=2) for each in (x, y)]
    flying = [layer.forward_pass(each, dropout_seed=2)[1] for each in (x, y)]
    for activations, (dx, gradients) in zip(flying, alone, strict=True):
        assert activations is not None
        got = layer.backward_pass(activations, gradient)
        assert np.array_equal(got[0], dx)
        assert np.array_equal(got[1], gradients)


@pytest.mark.parametrize("name", ["pre_norm", "post_norm", "post_norm_odd"])
def test_accumulated_gradients_are_sums(name: str) -> None:
    layer = TrainedLayer(TRAINED_SPECS[name], **DROPOUTS)
    x, gradient = arrays(layer)
    _, once = layer.gradients(x, gradient, dropout_seed=7)
    _, activations = layer.forward_pass(x, dropout_seed=7)
    assert activations is not None
    start = np.full_like(once, 2.0)
    _, total = layer.backward_pass(activations, gradient, start, accumulate=True)
    assert off(total, once + 2) <= TRAINED_GRADIENT


def test_layers_below_the_first_trained_one_save_nothing() -> None:
    layer = TrainedLayer(TRAINED_SPECS["post_norm"], layers=4)
    x, gradient = arrays(layer)
    _, whole = layer.gradients(x, gradient)
    peak = layer.stack.stats()["peak_bytes"]
    other = TrainedLayer(TRAINED_SPECS["post_norm"], layers=4)
    _, part = other.gradients(x, gradient, first_trained=3)
    begin = other.offsets[3]["qkv.weight"]
    assert np.array_equal(part[begin:], whole[begin:])
    assert np.isnan(part[:begin]).all()
    assert other.stack.stats()["peak_bytes"] < peak / 2


def test_no_gradient_of_a_frozen_weight_is_computed() -> None:
    layer = TrainedLayer(TRAINED_SPECS["post_norm"])
    x, gradient = arrays(layer)
    _, whole = layer.gradients(x, gradient)
    _, activations = layer.forward_pass(x)
    assert activations is not None
    frozen = layer.offsets[0]["qkv.weight"]
    _, part = layer.backward_pass(activations, gradient, frozen={frozen})
    size = layer.linears["qkv"][0].size
    assert np.isnan(part[frozen : frozen + size]).all()
    rest = np.delete(np.arange(part.size), np.s_[frozen : frozen + size])
    assert np.array_equal(part[rest], whole[rest])


@given(
    options=SHAPES,
    tokens=st.integers(1, 300),
    layers=st.integers(1, 12),
    recompute=st.sampled_from(RECOMPUTE),
    dropout=st.booleans(),
)
@settings(max_examples=60)
def test_the_peak_is_within_5_percent_of_the_bound(
    options: dict[str, Any], tokens: int, layers: int, recompute: str, dropout: bool
) -> None:
    layer = TrainedLayer(options, lengths=(tokens,), layers=layers, **DROPOUTS)
    x, _ = arrays(layer)
    layer.forward_pass(x, recompute=recompute, dropout_seed=1 if dropout else None)
    stats = layer.stack.stats()
    assert 0 < stats["lower_bound_bytes"] <= stats["peak_bytes"]
    assert stats["worst_ratio"] <= PEAK_OVER_BOUND


def test_nothing_is_allocated_after_warm_up() -> None:
    allocator = settled()
    of_others = allocator.stats()["holders"].get("training")
    layers = [
        TrainedLayer(TRAINED_SPECS["post_norm"], lengths=(n, 5), layers=3) for n in (9, 90, 40)
    ]
    steps = [(layer, *arrays(layer)) for layer in layers]
    for layer, x, gradient in steps:
        layer.gradients(x, gradient)
    before = allocator.stats()
    for layer, x, gradient in steps * 3:
        layer.gradients(x, gradient)
    after = allocator.stats()
    assert after["raw_allocations"] == before["raw_allocations"]
    assert after["allocated_bytes"] == before["allocated_bytes"]
    assert after["holders"].get("training") == of_others
    assert after["cache_hits"] > before["cache_hits"]


def test_panels_follow_the_version_alone() -> None:
    layer = TrainedLayer(TRAINED_SPECS["post_norm"])
    x, gradient = arrays(layer)
    before = layer.gradients(x, gradient, version=1)
    layer.values *= np.float32(0.5)
    stale, _ = layer.forward_pass(x, first_trained=1, version=1)
    fresh, _ = layer.forward_pass(x, first_trained=1, version=2)
    assert not np.array_equal(stale, fresh)
    _, activations = layer.forward_pass(x, version=2)
    assert activations is not None
    dx, _ = layer.backward_pass(activations, gradient, version=2)
    assert not np.array_equal(dx, before[0])


class TestRefusals:
    layer = TrainedLayer(TRAINED_SPECS["post_norm"])

    def test_a_second_backward(self) -> None:
        x, gradient = arrays(self.layer)
        _, activations = self.layer.forward_pass(x)
        assert activations is not None
        self.layer.backward_pass(activations, gradient)
        assert activations.spent
        with pytest.raises(k.Error, match=r"used up.*retain_graph is not supported"):
            self.layer.backward_pass(activations, gradient)

    def test_parameters_that_were_written_in_between(self) -> None:
        x, gradient = arrays(self.layer)
        _, activations = self.layer.forward_pass(x, version=5)
        assert activations is not None
        with pytest.raises(k.Error, match=r"written since the forward.*optimizer\.step"):
            self.layer.backward_pass(activations, gradient, version=6)

    def test_a_buffer_that_is_too_small(self) -> None:
        x, _ = arrays(self.layer)
        with pytest.raises(k.Error, match=r"parameters: got float32.*wanted room for"):
            self.layer.forward_pass(x, self.layer.values[:-1].copy())

    def test_a_gradient_of_another_shape(self) -> None:
        x, gradient = arrays(self.layer)
        _, activations = self.layer.forward_pass(x)
        assert activations is not None
        with pytest.raises(k.Error, match="gradient: got"):
            self.layer.backward_pass(activations, gradient[:-1].copy())

    @pytest.mark.parametrize("probability", [-0.1, 1.0, float("nan")])
    def test_a_probability_that_is_none(self, probability: float) -> None:
        with pytest.raises(k.Error, match=r"dropout: got.*wanted a probability"):
            TrainedLayer(TRAINED_SPECS["post_norm"], residual=probability)

    def test_a_norm_of_an_output_that_is_dropped_or_is_no_rms_norm(self) -> None:
        with pytest.raises(k.Error, match=r"dropout: got 0.1 with an output_norm, wanted 0"):
            TrainedLayer(TRAINED_SPECS["sandwich_one_plus"], residual=0.1)
        linear = t.Linear(t.Parameter(0, [8, 8]))
        sublayer = t.FeedForward(intermediate=linear, output=linear)
        norm = t.Norm(t.Parameter(64, [8]))
        with pytest.raises(k.Error, match="output_norm: got a layer_norm, wanted an rms_norm"):
            t.Block(sublayer, output_norm=norm)

    def test_a_parallel_layer_that_norms_its_sum(self) -> None:
        with pytest.raises(k.Error, match="parallel: got a block with a residual_norm"):
            TrainedLayer({"parallel": True})

    def test_rows_of_another_number_or_of_a_transposed_weight(self) -> None:
        place, rows = t.Parameter(0, [6, 4]), k.Tensor.from_numpy(np.arange(6))
        with pytest.raises(k.Error, match=r"rows: got int64\[6\], wanted int64\[4\], of a weight"):
            t.Linear(place, transposed=True, rows=rows)
        with pytest.raises(k.Error, match=r"rows: got int64\[5\], wanted int64\[6\]"):
            t.Linear(place, rows=k.Tensor.from_numpy(np.arange(5)))

    def test_a_soft_cap_below_zero(self) -> None:
        qkv, output = (t.Linear(t.Parameter(0, [rows, 8])) for rows in (24, 8))
        with pytest.raises(k.Error, match="soft_cap: got -1, wanted 0"):
            t.Attention(qkv=qkv, output=output, heads=2, soft_cap=-1.0)

    def test_an_unknown_recomputation(self) -> None:
        x, _ = arrays(self.layer)
        with pytest.raises(k.Error, match="recompute: got 'all', wanted none, norm"):
            self.layer.forward_pass(x, recompute="all")

    def test_rotary_angles_without_positions(self) -> None:
        layer = TrainedLayer(TRAINED_SPECS["head_norms_rotary"])
        x, _ = arrays(layer)
        tensor = k.Tensor.from_numpy
        with pytest.raises(k.Error, match="positions: got none"):
            layer.stack.forward(tensor(x.copy()), tensor(x), tensor(layer.values), layer.batch())

    def test_biases_that_are_not_those_of_the_layers(self) -> None:
        layer = TrainedLayer(TRAINED_SPECS["position_bias"])
        x, gradient = arrays(layer)
        _, activations = layer.forward_pass(x)
        assert activations is not None
        for sums, message in (
            ([None, None], "bias_gradients: got 2, wanted one for each of 1 biases, or none"),
            ([k.Tensor.from_numpy(layer.bias[:, 2:].copy())], r"bias_gradients: got .*2 L - 1"),
        ):
            with pytest.raises(k.Error, match=message):
                layer.backward_pass(activations, gradient, bias_gradients=sums)
        layer.biases = [layer.bias[:1].copy()]
        with pytest.raises(k.Error, match=r"bias: got .*wanted .*heads="):
            layer.forward_pass(x)
        layer.biases = []
        with pytest.raises(k.Error, match="biases: got 0, wanted one for position_bias 0"):
            layer.forward_pass(x)

    def test_no_layers(self) -> None:
        with pytest.raises(k.Error, match="layers: got none"):
            t.Stack([])
