"""Guarantees of backward kernels beyond their references: determinism, in-place outputs, bad
input."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from fusewire import kernels as k
from fusewire.placement import Placement

from tests.ops.activations import ACTIVATIONS
from tests.ops.case import LAYOUTS, Operands, normal
from tests.ops.cases import CASES
from tests.ops.check import inputs
from tests.ops.dropout import kept
from tests.ops.rows import POOLINGS
from tests.places import CPU_TARGETS, EVERYWHERE, GPU, GPU_FP32
from tests.tolerance import TRAINED_GRADIENT

TRAINING = [name for name, case in CASES.items() if case.training]
THREADS = (1, 2, 5)


@pytest.fixture
def threads():
    usual = k.num_threads()
    yield k.set_num_threads
    k.set_num_threads(usual)


@pytest.mark.parametrize("place", CPU_TARGETS, indirect=True)
@pytest.mark.parametrize("name", TRAINING)
def test_the_number_of_threads_changes_no_bit(name: str, place: Placement, threads: Callable):
    case, o = CASES[name], Operands(place, "strided")
    for shape in case.shapes:
        results = []
        for count in (*THREADS, THREADS[-1]):
            threads(count)
            results.append(case.ours(o, inputs(case, shape, "float32"), shape))
        for result in results[1:]:
            np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("place", GPU, indirect=True)
@pytest.mark.parametrize("name", TRAINING)
def test_ten_runs_on_a_gpu_give_the_same_bits(name: str, place: Placement):
    case, o = CASES[name], Operands(place, "dense")
    for shape in case.gpu_shapes or case.shapes:
        arrays = inputs(case, shape, place.dtype)
        first = case.ours(o, arrays, shape)
        for _ in range(9):
            np.testing.assert_array_equal(case.ours(o, arrays, shape), first)


# Each writes to `out`, which may be one of its inputs x and y [rows, cols].
Call = Callable[[k.Tensor, k.Tensor, k.Tensor, Placement], None]


def norm_parameters(cols: int, place: Placement) -> tuple[k.Tensor, k.Tensor, k.Tensor]:
    """Returns a weight, and buffers for the gradients of it and of a bias."""
    ones = np.ones(cols, np.float32)
    return place.floats(ones), place.exact(ones.copy(), np.float32), place.exact(ones, np.float32)


def layer_norm(out: k.Tensor, dy: k.Tensor, dresidual: k.Tensor, place: Placement) -> None:
    x = place.floats(normal(np.random.default_rng(5), *out.shape))
    weight, dweight, dbias = norm_parameters(out.shape[1], place)
    k.layer_norm_backward(out, dweight, dbias, dy, x, weight, dresidual, 1e-5, False, place.stream)


def rms_norm(out: k.Tensor, dy: k.Tensor, dresidual: k.Tensor, place: Placement) -> None:
    x = place.floats(normal(np.random.default_rng(5), *out.shape))
    weight, dweight, _ = norm_parameters(out.shape[1], place)
    k.rms_norm_backward(out, dweight, dy, x, weight, dresidual, 1e-5, False, place.stream)


def dropped_norm(out: k.Tensor, x: k.Tensor, residual: k.Tensor, place: Placement) -> None:
    normed, (weight, *_) = place.empty(*out.shape), norm_parameters(out.shape[1], place)
    k.dropout_add_layer_norm(
        normed, out, x, residual, weight, None, 1e-5, 0.3, 1, 2, stream=place.stream
    )


def norm_that_drops(out: k.Tensor, x: k.Tensor, dy: k.Tensor, place: Placement) -> None:
    dx, (weight, dweight, dbias) = place.empty(*out.shape), norm_parameters(out.shape[1], place)
    parameters = dweight, dbias, None, dy, x, weight
    k.layer_norm_dropout_backward(
        dx, out, *parameters, 1e-5, 0.3, 1, 2, accumulate=False, stream=place.stream
    )


IN_PLACE: dict[str, Call] = {
    "dropout_add_layer_norm": dropped_norm,
    "layer_norm_dropout_backward": norm_that_drops,
    "layer_norm_backward": layer_norm,
    "rms_norm_backward": rms_norm,
    "activate_backward": lambda out, x, y, place: k.activate_backward(
        out, None, x, y, "gelu_erf", False, place.stream
    ),
    "dropout_add": lambda out, x, y, place: k.dropout_add(
        out, None, x, y, 0.3, 1, 2, False, place.stream
    ),
}


@pytest.mark.parametrize("place", EVERYWHERE, indirect=True)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", IN_PLACE)
def test_a_gradient_may_take_the_place_of_an_input(name: str, layout: str, place: Placement):
    o, call = Operands(place, layout), IN_PLACE[name]
    for shape in [(1, 7), (5, 384), (130, 769)]:
        rng = np.random.default_rng(3)
        x, y = normal(rng, *shape), normal(rng, *shape)
        apart = o.room(*shape)
        call(apart, o.rows(x), o.rows(y), place)
        for which in range(2):
            given = [o.rows(x.copy()), o.rows(y.copy())]
            call(given[which], *given, place)
            np.testing.assert_array_equal(o.read(given[which]), o.read(apart))


@pytest.mark.parametrize("place", EVERYWHERE, indirect=True)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(5, 7), (9, 384), (130, 769), (70, 1024), (3, 9000)])
def test_a_norm_that_drops_has_the_bits_of_two_ops(
    shape: tuple[int, int], layout: str, place: Placement
):
    o, rng, stream = Operands(place, layout), np.random.default_rng(3), place.stream
    x, y = o.rows(normal(rng, *shape)), o.rows(normal(rng, *shape))
    weight, bias = (place.floats(normal(rng, shape[1])) for _ in range(2))
    dropout = (0.3, 2**33 + 1, 5)
    sums, outs, inputs, inner = ([o.room(*shape) for _ in range(2)] for _ in range(4))
    parameters = [
        [place.exact(np.ones(shape[1], np.float32), np.float32) for _ in range(3)] for _ in range(2)
    ]
    k.dropout_add_layer_norm(outs[0], sums[0], x, y, weight, bias, 1e-5, *dropout, stream)
    k.dropout_add(sums[1], None, x, y, *dropout, False, stream)
    k.layer_norm(outs[1], sums[1], weight, bias, 1e-5, stream)
    k.layer_norm_dropout_backward(
        inputs[0], inner[0], *parameters[0], y, sums[0], weight, 1e-5, *dropout, False, stream
    )
    dweight, dbias, of_inner = parameters[1]
    k.layer_norm_backward(inputs[1], dweight, dbias, y, sums[1], weight, None, 1e-5, False, stream)
    k.dropout_add(inner[1], of_inner, inputs[1], None, *dropout, False, stream)
    for together, apart in (sums, outs, inputs, inner):
        np.testing.assert_array_equal(o.read(together), o.read(apart))
    for together, apart in zip(*(p[:2] for p in parameters), strict=True):
        np.testing.assert_array_equal(place.numpy(together), place.numpy(apart))
    # The rows that were written are added, each kernel's in an order of its own.
    together, apart = (place.numpy(p[2]).astype(np.float64) for p in parameters)
    assert np.linalg.norm(together - apart) <= TRAINED_GRADIENT * np.linalg.norm(apart)


@pytest.mark.parametrize("place", EVERYWHERE, indirect=True)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(5, 7), (9, 384), (130, 769), (2000, 1024)])
def test_sums_of_an_activations_gradient_have_the_bits_of_those_of_its_columns(
    shape: tuple[int, int], layout: str, place: Placement
):
    o, rng = Operands(place, layout), np.random.default_rng(3)
    x, dy, dx = o.rows(normal(rng, *shape)), o.rows(normal(rng, *shape)), o.room(*shape)
    together, apart = (place.exact(np.ones(shape[1], np.float32), np.float32) for _ in range(2))
    k.activate_backward(dx, together, dy, x, "gelu_erf", True, place.stream)
    k.column_sums(apart, dx, True, place.stream)
    np.testing.assert_array_equal(place.numpy(together), place.numpy(apart))


@pytest.mark.parametrize("place", EVERYWHERE, indirect=True)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_gradient_of_relu_may_be_read_from_its_result(layout: str, place: Placement):
    o, rng = Operands(place, layout), np.random.default_rng(3)
    x, dy = normal(rng, 9, 77), o.rows(normal(rng, 9, 77))
    x[0, :4] = 0, -0.0, 1e-30, np.nan
    outs = [o.room(9, 77) for _ in range(2)]
    for out, read in zip(outs, (x, np.where(x <= 0, 0, x)), strict=True):
        k.activate_backward(out, None, dy, o.rows(read), "relu", False, place.stream)
    np.testing.assert_array_equal(*(o.read(out) for out in outs))


@pytest.mark.parametrize("place", EVERYWHERE, indirect=True)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_gradient_of_a_gate_may_take_the_place_of_its_input(layout: str, place: Placement):
    o, rng = Operands(place, layout), np.random.default_rng(3)
    x, dy = normal(rng, 9, 2 * 77), normal(rng, 9, 77)
    apart, together = o.room(*x.shape), o.rows(x.copy())
    k.gate_backward(apart, o.rows(dy), o.rows(x), "silu", place.stream)
    k.gate_backward(together, o.rows(dy), together, "silu", place.stream)
    np.testing.assert_array_equal(o.read(together), o.read(apart))


@pytest.mark.parametrize("place", EVERYWHERE, indirect=True)
@pytest.mark.parametrize("activation", [a for a in ACTIVATIONS if a not in ("none", "relu")])
def test_a_derivative_keeps_nan_and_has_none_of_its_own(activation: str, place: Placement):
    o = Operands(place, "dense")
    x = np.float32([[np.nan, 6e4, -6e4, 500.0, -500.0, 40.0, -40.0, 0.0]])
    dy = o.rows(np.ones_like(x))
    got = o.result(k.activate_backward, x.shape, None, dy, o.rows(x), activation, False)
    assert np.isnan(got[0, 0])
    wanted = [0, 0] if activation == "tanh" else [1, 0]
    np.testing.assert_array_equal(got[0, 1:7].round(6), wanted * 3)


def dropped(o: Operands, x: np.ndarray, *dropout: float) -> np.ndarray:
    return o.result(
        lambda out, stream: k.dropout_add(out, None, o.rows(x), None, *dropout, False, stream),
        x.shape,
    )


@pytest.mark.parametrize("place", EVERYWHERE, indirect=True)
def test_dropout_keeps_its_share_and_its_expectation(place: Placement):
    o, ones = Operands(place, "dense"), np.ones((400, 1000), np.float32)
    for probability in (0.1, 0.5):
        kept = [dropped(o, ones, probability, seed, 0) != 0 for seed in (1, 2)]
        spread = (probability * (1 - probability) / ones.size) ** 0.5
        for mask in kept:
            assert abs(mask.mean() - (1 - probability)) < 5 * spread + 2.0**-17
            # Neighbours in a row and a column, and masks of two seeds, are uncorrelated.
            for a, b in ((mask[:, 1:], mask[:, :-1]), (mask[1:], mask[:-1]), kept):
                assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5 * ones.size**-0.5


@pytest.mark.parametrize("place", EVERYWHERE, indirect=True)
def test_the_gradient_of_dropout_is_the_same_mask(place: Placement):
    o, rng = Operands(place, "dense"), np.random.default_rng(4)
    x, dy = normal(rng, 9, 100), normal(rng, 9, 100)
    out, dx = (dropped(o, a, 0.4, 7, 9) for a in (x, dy))
    np.testing.assert_array_equal(out == 0, dx == 0)


@pytest.mark.parametrize("place", EVERYWHERE, indirect=True)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_mask_is_the_same_everywhere(layout: str, place: Placement):
    o = Operands(place, layout)
    for rows, cols, seed, offset in [(1, 1, 0, 0), (33, 771, 2**40 + 5, 3), (300, 64, -1, 2**33)]:
        got = dropped(o, np.ones((rows, cols), np.float32), 0.3, seed, offset)
        np.testing.assert_array_equal(got != 0, kept(rows, cols, 0.3, seed, offset))


@pytest.mark.parametrize("place", GPU, indirect=True)
@pytest.mark.parametrize("cols", [40, 5000, 33_000])
def test_a_bad_label_on_a_gpu_gives_nan_in_its_own_row(cols: int, place: Placement):
    o = Operands(place, "strided")
    logits = o.rows(normal(np.random.default_rng(8), 4, cols))
    losses = o.fp32(np.zeros(4, np.float32))
    labels = o.int64(np.array([cols, 3, -1, 2**40]))
    k.cross_entropy(losses, logits, labels, -100, 0.1, None, True, place.stream)
    for got in (place.numpy(losses)[:, None], o.read(logits)):
        assert np.isnan(got[[0, 2, 3]]).all()
        assert np.isfinite(got[1]).all()


@pytest.mark.parametrize("place", GPU, indirect=True)
def test_a_bad_id_on_a_gpu_has_no_gradient(place: Placement):
    o = Operands(place, "dense")
    dy = normal(np.random.default_rng(8), 100, 24)
    ids = np.arange(100) % 7
    found = []
    for bad in (7, -1, 2**40):
        wrong = np.where(ids == 5, bad, ids)
        # A table of 7 rows, and the memory after it.
        room = o.fp32(np.full((9, 24), 3.0, np.float32))
        k.embed_backward(room.first(7), o.int64(wrong), o.rows(dy), 1.0, False, place.stream)
        found.append(place.numpy(room).copy())
        assert (found[-1][5] == 0).all()
        assert (found[-1][7:] == 3).all()
        assert (found[-1][[0, 1, 2, 3, 4, 6]] != 0).all()
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize("place", GPU, indirect=True)
@pytest.mark.parametrize("kind", POOLINGS)
def test_the_gradient_of_pooling_is_zero_in_rows_of_a_bucket_that_no_sequence_has(
    kind: str, place: Placement
):
    o, rng, lengths = Operands(place, "strided"), np.random.default_rng(5), (3, 40, 1)
    x, dy = normal(rng, 64, 48), normal(rng, 8, 48)
    exact = o.room(44, 48)
    batch = o.sequences(lengths)
    k.pool_backward(exact, o.rows(dy[:3]), o.rows(x[:44]), batch, kind, place.stream)
    offsets = place.exact(np.array([0, 3, 43, *[44] * 6]), np.int32)
    bucket = k.SequenceBatch.bucket(offsets, 64, 64)
    got = o.result(k.pool_backward, (64, 48), o.rows(dy), o.rows(x), bucket, kind)
    np.testing.assert_array_equal(got[:44], o.read(exact))
    assert (got[44:] == 0).all()


@pytest.mark.parametrize("place", [*CPU_TARGETS, GPU_FP32], indirect=True)
def test_the_gradient_of_rows_with_a_large_mean(place: Placement):
    rng = np.random.default_rng(1)
    x = (1e4 + normal(rng, 8, 768)).astype(np.float32)
    dy, ones = normal(rng, 8, 768), np.ones(768, np.float32)
    dx, dweight = place.empty(8, 768), place.floats(ones)
    k.layer_norm_backward(
        dx,
        dweight,
        None,
        place.floats(dy),
        place.floats(x),
        place.floats(ones),
        None,
        1e-5,
        False,
        place.stream,
    )
    got = [place.numpy(dx), place.numpy(dweight)]

    def gradients(dtype: torch.dtype) -> list[np.ndarray]:
        wide, weight = torch.from_numpy(x).to(dtype).requires_grad_(), torch.ones(768, dtype=dtype)
        weight.requires_grad_()
        out = torch.nn.functional.layer_norm(wide, (768,), weight, None, 1e-5)
        out.backward(torch.from_numpy(dy).to(dtype))
        return [wide.grad.numpy(), weight.grad.numpy()]

    for ours, truth, torchs in zip(
        got, gradients(torch.float64), gradients(torch.float32), strict=True
    ):
        error, its_error = (np.abs(a - truth).max() for a in (ours, torchs))
        assert error <= 2 * its_error + 1e-3 * np.abs(truth).max()


def dense(*shape: int) -> k.Tensor:
    return k.Tensor.from_numpy(np.zeros(shape, np.float32))


def indices(*values: int) -> k.Tensor:
    return k.Tensor.from_numpy(np.array(values, np.int64))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: k.cross_entropy(dense(2), dense(2, 5), indices(4, 5), -100, 0.0, None, True),
            r"cross_entropy: labels\[1\]: got 5, wanted 0 to 4 or -100, which is ignored",
        ),
        (
            lambda: k.cross_entropy(dense(1), dense(1, 5), indices(0), -100, 1.5, None, True),
            "cross_entropy: smoothing: got 1.5, wanted 0 to 1",
        ),
        (
            lambda: k.embed_backward(dense(3, 4), indices(0, -1), dense(2, 4), 1.0, False),
            r"embed_backward: ids\[1\]: got -1, wanted 0 to 2",
        ),
        (
            lambda: k.embed_backward(dense(3, 4), indices(0, 3), dense(2, 4), 1.0, False),
            r"embed_backward: ids\[1\]: got 3, wanted 0 to 2",
        ),
        (
            lambda: k.dropout_add(dense(1, 4), None, dense(1, 4), None, 1.0, 0, 0, False),
            "dropout_add: probability: got 1, wanted at least 0 and less than 1",
        ),
        (
            lambda: k.linear_backward_weight(dense(3, 4), dense(2, 3), dense(1, 4), False),
            r"linear_backward_weight: x: got float32\[1, 4\] .* wanted float32\[rows=2, in\]",
        ),
    ],
)
def test_bad_input_is_refused_by_name(call, message: str):
    with pytest.raises(k.Error, match=message):
        call()


def test_a_bad_label_leaves_the_logits_as_they_are():
    logits = np.ones((2, 5), np.float32)
    with pytest.raises(k.Error):
        k.cross_entropy(dense(2), k.Tensor.from_numpy(logits), indices(0, 9), -100, 0.0, None, True)
    assert (logits == 1).all()


@pytest.mark.parametrize("place", EVERYWHERE, indirect=True)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_broken_row_of_logits_breaks_its_own_loss_and_gradient(bad: float, place: Placement):
    rng = np.random.default_rng(8)
    z = normal(rng, 3, 40)
    z[1, 5] = bad
    logits, losses = place.floats(z), place.exact(np.zeros(3), np.float32)
    labels = place.exact(np.array([1, 2, 3]), np.int64)
    k.cross_entropy(losses, logits, labels, -100, 0.1, None, True, place.stream)
    for got in (place.numpy(losses)[:, None], place.numpy(logits)):
        assert np.isnan(got[1]).any()
        assert np.isfinite(got[[0, 2]]).all()
