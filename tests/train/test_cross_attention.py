"""Layers of decoders that train: the gradients of their source too, against fp64 autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fusewire import kernels as k
from fusewire.kernels import training as t
from fusewire.placement import Placement
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.tolerance import PEAK_OVER_BOUND, TRAINED_GRADIENT
from tests.train.trained_decoder_layer import SPECS, TrainedDecoderLayer
from tests.train.trained_layer import DROPOUTS, RECOMPUTE, SHAPES, Floats, expect_close, off


def arrays(layer: TrainedDecoderLayer) -> tuple[Floats, Floats]:
    """An input and the gradient of its output."""
    return layer.input(5), layer.input(6)


def source_truth(layer: TrainedDecoderLayer, leaves: dict[int, torch.Tensor]) -> np.ndarray:
    grad = leaves[id(layer.source)].grad
    assert grad is not None
    return grad.numpy()


@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("name", SPECS)
def test_gradients_are_those_of_fp64_autograd(name: str, recompute: str, place: Placement) -> None:
    if place.device != "cpu":
        pytest.skip("training is on the CPU so far")
    layer = TrainedDecoderLayer(SPECS[name])
    x, gradient = arrays(layer)
    dx, gradients, dsource = layer.all_gradients(x, gradient, recompute=recompute)
    leaves: dict[int, torch.Tensor] = {}
    true_dx, truth = layer.truth(x, gradient, leaves)
    assert off(dx, true_dx) <= TRAINED_GRADIENT
    assert off(dsource, source_truth(layer, leaves)) <= TRAINED_GRADIENT
    expect_close(layer, gradients, truth)


@pytest.mark.parametrize("recompute", RECOMPUTE)
def test_the_gradient_of_the_source_is_the_sum_over_layers(recompute: str) -> None:
    layer = TrainedDecoderLayer(SPECS["post_norm"], layers=3)
    x, gradient = arrays(layer)
    start = np.full_like(layer.source, 2.0)
    dx, _, dsource = layer.all_gradients(x, gradient, start, recompute=recompute)
    leaves: dict[int, torch.Tensor] = {}
    true_dx, _ = layer.truth(x, gradient, leaves)
    assert off(dx, true_dx) <= TRAINED_GRADIENT
    assert off(dsource, source_truth(layer, leaves) + 2) <= TRAINED_GRADIENT


def test_a_sources_gradient_that_nobody_wants_is_not_computed() -> None:
    layer = TrainedDecoderLayer(SPECS["pre_norm"], layers=2)
    x, gradient = arrays(layer)
    dx, gradients, _ = layer.all_gradients(x, gradient)
    without = layer.gradients(x, gradient)
    assert np.array_equal(without[0], dx)
    assert np.array_equal(without[1], gradients)


def test_layers_below_the_first_trained_one_add_nothing_to_the_source() -> None:
    layer = TrainedDecoderLayer(SPECS["post_norm"], layers=3)
    x, gradient = arrays(layer)
    _, whole, dsource = layer.all_gradients(x, gradient)
    _, part, of_last = layer.all_gradients(x, gradient, first_trained=2)
    begin = layer.offsets[2]["qkv.weight"]
    assert np.array_equal(part[begin:], whole[begin:])
    assert np.isnan(part[:begin]).all()
    assert of_last.any()
    assert off(of_last, dsource) > 0.1


def test_dropout_is_replayed_in_the_backward() -> None:
    """By differences along a random direction of x, of the source and of the parameters."""
    layer = TrainedDecoderLayer(SPECS["pre_norm"], layers=2, **DROPOUTS)
    x, gradient = arrays(layer)
    dx, gradients, dsource = layer.all_gradients(x, gradient, dropout_seed=3)
    rng = np.random.default_rng(1)
    along_x, along_source = (
        rng.standard_normal(each.shape).astype(np.float32) for each in (x, layer.source)
    )
    along = (rng.standard_normal(layer.values.shape) * np.abs(layer.values)).astype(np.float32)
    source = layer.source

    def value(step: float, version: int) -> float:
        moved = np.float32(step)
        layer.source = source + moved * along_source
        out, _ = layer.forward_pass(
            x + moved * along_x, layer.values + moved * along, dropout_seed=3, version=version
        )
        return float((out.astype(np.float64) * gradient).sum())

    step = 2.0**-9
    slope = (value(step, 1) - value(-step, 2)) / (2 * step)
    layer.source = source
    parts = ((dx, along_x), (dsource, along_source), (gradients, along))
    found = sum(float((a * b).sum(dtype=np.float64)) for a, b in parts)
    assert found == pytest.approx(slope, rel=0.01)
    other = layer.all_gradients(x, gradient, dropout_seed=4, version=3)
    assert off(other[2], dsource) > 0.1


@pytest.mark.parametrize("recompute", RECOMPUTE)
def test_gradients_are_bit_equal_on_any_number_of_threads(recompute: str) -> None:
    layer = TrainedDecoderLayer(
        SPECS["post_norm"], lengths=(3, 70, 40), source_lengths=(90, 5, 33), layers=2, **DROPOUTS
    )
    x, gradient = arrays(layer)
    threads = k.num_threads()
    first = layer.all_gradients(x, gradient, dropout_seed=1)
    try:
        for count in (1, 3, 2):
            k.set_num_threads(count)
            again = layer.all_gradients(x, gradient, dropout_seed=1, recompute=recompute)
            assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    finally:
        k.set_num_threads(threads)


POST_NORM = {"hidden": 32, "intermediate": 100, "pre_norm": False, "gated": False}


@given(
    options=SHAPES,
    tokens=st.integers(1, 300),
    source_tokens=st.integers(1, 300),
    layers=st.integers(1, 12),
    recompute=st.sampled_from(RECOMPUTE),
    dropout=st.booleans(),
)
@example(POST_NORM, 24, 47, 1, "none", False)  # from large to small it is 1.051
@settings(max_examples=60)
def test_the_peak_is_within_5_percent_of_the_bound(
    options: dict[str, Any],
    tokens: int,
    source_tokens: int,
    layers: int,
    recompute: str,
    dropout: bool,
) -> None:
    layer = TrainedDecoderLayer(
        options, (source_tokens,), lengths=(tokens,), layers=layers, **DROPOUTS
    )
    x, _ = arrays(layer)
    layer.forward_pass(x, recompute=recompute, dropout_seed=1 if dropout else None)
    stats = layer.stack.stats()
    assert 0 < stats["lower_bound_bytes"] <= stats["peak_bytes"]
    assert stats["worst_ratio"] <= PEAK_OVER_BOUND


def test_plans_are_of_the_sources_length_too() -> None:
    layer = TrainedDecoderLayer(SPECS["post_norm"])
    x, gradient = arrays(layer)
    for _ in range(2):
        for count in (9, 40):
            layer.source_lengths = (count, 2, 3)
            layer.source = np.ones((count + 5, 64), np.float32)
            layer.all_gradients(x, gradient)
    assert layer.stack.stats()["plans_recorded"] == 2


class TestRefusals:
    layer = TrainedDecoderLayer(SPECS["post_norm"])

    def test_no_source(self) -> None:
        x, _ = arrays(self.layer)
        with pytest.raises(k.Error, match="CrossAttention: source: got none, wanted the encoder's"):
            self.layer.forward_pass(x, source=None)

    def test_a_source_of_other_sequences(self) -> None:
        x, _ = arrays(self.layer)
        offsets = k.Tensor.from_numpy(np.array([0, 33], np.int32))
        source = k.Tensor.from_numpy(self.layer.source), k.SequenceBatch(offsets)
        with pytest.raises(k.Error, match="source: got 1 sequences, wanted 3"):
            self.layer.forward_pass(x, source=source)

    def test_a_source_of_another_shape(self) -> None:
        x, _ = arrays(self.layer)
        for wrong, match in (
            (self.layer.source[:-1], r"source: got float32\[32, 64\].*source tokens=33"),
            (self.layer.source[:, :-1], r"got float32\[33, 63\].*in_features=64"),
        ):
            given = k.Tensor.from_numpy(wrong.copy()), self.layer.source_batch()
            with pytest.raises(k.Error, match=match):
                self.layer.forward_pass(x, source=given)

    def test_a_gradient_of_the_source_of_another_shape(self) -> None:
        x, gradient = arrays(self.layer)
        with pytest.raises(k.Error, match="source_gradient: got"):
            self.layer.all_gradients(x, gradient, np.zeros((3, 64), np.float32))

    def test_weights_that_do_not_fit(self) -> None:
        def linear(rows: int) -> t.Linear:
            return t.Linear(t.Parameter(0, [rows, 8]))

        with pytest.raises(k.Error, match="kv: got 8 rows, wanted 16"):
            t.CrossAttention(q=linear(8), kv=linear(8), output=linear(8), heads=2)
        with pytest.raises(k.Error, match="heads: got 3, wanted a divisor of the 8 rows"):
            t.CrossAttention(q=linear(8), kv=linear(16), output=linear(8), heads=3)
        with pytest.raises(k.Error, match=r"CrossAttention: output: got Linear\[9, 8\]"):
            t.CrossAttention(q=linear(8), kv=linear(16), output=linear(9), heads=2)
        with pytest.raises(k.Error, match="dropout: got 1, wanted a probability"):
            t.CrossAttention(q=linear(8), kv=linear(16), output=linear(8), heads=2, dropout=1.0)
