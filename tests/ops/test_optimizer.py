"""Guarantees of adam, adam_factors and gradient_norm beyond their reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fusewire import kernels as k
from fusewire.placement import Placement

from tests.ops.case import Operands, normal
from tests.ops.optimizer import (
    Factors,
    Step,
    casted,
    factors_made,
    factors_of,
    make_factors,
    make_step,
    norm,
    stepped,
)
from tests.places import CPU_TARGETS, GPU, GPU_FP32, rounded
from tests.tolerance import allowed_error

EVERY_TARGET = pytest.mark.parametrize("place", CPU_TARGETS, indirect=True)
AND_GPU = pytest.mark.parametrize("place", [*CPU_TARGETS, GPU_FP32], indirect=True)


@AND_GPU
@pytest.mark.parametrize("decoupled", [True, False])
def test_many_steps_follow_torch(decoupled: bool, place: Placement):
    rng, count, steps = np.random.default_rng(0), 1000, 30
    start, gradients = normal(rng, count), normal(rng, steps, count)
    tensor = Operands(place, "dense").fp32
    ours, *state = (tensor(a) for a in (start.copy(), *np.zeros((2, count), np.float32)))
    segments = place.exact(np.array([0, 400, count]), np.int64)
    rates, decays = np.float32([1e-2, 1e-3]), np.float32([0.1, 0.0])

    def of_torch(dtype: torch.dtype) -> np.ndarray:
        parts = [torch.from_numpy(a.copy()).to(dtype) for a in (start[:400], start[400:])]
        kind = torch.optim.AdamW if decoupled else torch.optim.Adam
        optimizer = kind(
            [
                {"params": [part], "lr": float(rate), "weight_decay": float(decay)}
                for part, rate, decay in zip(parts, rates, decays, strict=True)
            ],
            foreach=False,
        )
        for gradient in torch.from_numpy(gradients).to(dtype):
            parts[0].grad, parts[1].grad = gradient[:400], gradient[400:]
            optimizer.step()
        return torch.cat(parts).double().numpy()

    for step, gradient in enumerate(gradients, 1):
        k.adam(
            ours, tensor(gradient), *state, segments, tensor(rates), tensor(decays),
            0.9, 0.999, 1e-8, tensor(factors_of(Step((), step))), decoupled, None, 0, place.stream,
        )  # fmt: skip
    allowed = allowed_error(of_torch(torch.float64), of_torch(torch.float32), "float32", 1)
    excess = allowed.excess(place.numpy(ours))
    assert not excess, excess


@AND_GPU
def test_a_step_whose_scale_is_nan_writes_nothing(place: Placement):
    o, step = Operands(place, "dense"), Step((50_000, 3), step=2, gradient_scale=np.nan)
    arrays = make_step(np.random.default_rng(1), step._replace(shadow=False))
    found = stepped(o, arrays, step._replace(shadow=False))
    for got, name in zip(found, ("parameters", "exp_avg", "exp_avg_sq"), strict=True):
        np.testing.assert_array_equal(got, arrays[name])


@AND_GPU
@pytest.mark.parametrize("broken", [(1.0, 1.0), (np.inf, 0.0), (np.nan, 0.0)])
def test_factors_of_gradients_that_are_not_finite_skip_the_step(broken, place: Placement):
    """They were counted as not finite, or their squares exceed fp32."""
    factors = Factors((2, 1), (0, 4), parts=3)
    arrays = make_factors(np.random.default_rng(1), factors)
    arrays["sums"][1] = broken
    found = factors_made(Operands(place, "dense"), arrays, factors)
    assert np.isnan(found[[0, 4]]).all()
    assert found[9] == 3  # one more skipped step
    np.testing.assert_array_equal(found[10:], arrays["steps"])


@AND_GPU
def test_factors_of_gradients_that_are_all_zero_skip_the_step(place: Placement):
    factors = Factors((2, 1), (0, 4), parts=3, max_norm=1.0)
    arrays = make_factors(np.random.default_rng(1), factors)
    arrays["sums"][:] = 0
    found = factors_made(Operands(place, "dense"), arrays, factors)
    assert np.isnan(found[[0, 4]]).all()
    assert list(found[8:10]) == [0, 3]  # the norm, and one more skipped step
    np.testing.assert_array_equal(found[10:], arrays["steps"])


@EVERY_TARGET
def test_bits_do_not_depend_on_threads(place: Placement):
    o, before = Operands(place, "dense"), k.num_threads()
    step = Step((70_000, 3, 50_000), step=7)
    arrays = make_step(np.random.default_rng(1), step)
    found = []
    try:
        for threads in (1, 2, 3, 7):
            k.set_num_threads(threads)
            found.append((stepped(o, arrays, step), norm(o, arrays, 0)))
    finally:
        k.set_num_threads(before)
    for one in found[1:]:
        for got, wanted in zip(one, found[0], strict=True):
            np.testing.assert_array_equal(got, wanted)


@AND_GPU
def test_numbers_that_are_not_finite_are_counted(place: Placement):
    o, x = Operands(place, "dense"), normal(np.random.default_rng(2), 40_000)
    x[[0, 17, 16384, 39_999]] = np.nan, np.inf, -np.inf, np.nan
    assert list(norm(o, {"gradients": x}, 0)[:, 1]) == [4, 4]
    finite, infinite = np.float32([3e38, 1.0]), np.float32([np.inf, 1.0])
    for values, count in ((finite, 0), (infinite, 1)):
        got = norm(o, {"gradients": values}, 0)
        assert (
            got.tolist() == [[np.inf, count]] * 2
        )  # the squares exceed fp32 though the values do not


@AND_GPU
def test_a_norm_of_many_numbers_keeps_its_precision(place: Placement):
    x = np.full(3_000_000, 0.1, np.float32)
    squares = x.size * float(x[0]) ** 2
    whole, of_parts = norm(Operands(place, "dense"), {"gradients": x}, 0)[:, 0]
    assert whole == np.float32(squares)
    assert of_parts == pytest.approx(squares, rel=2**-22)


@pytest.mark.parametrize("place", GPU, indirect=True)
def test_a_cast_rounds_as_torch_does(place: Placement):
    rng = np.random.default_rng(4)
    for count in (1, 7, 4096, 100_003):
        x = (normal(rng, count) * 10.0 ** rng.integers(-6, 4, count)).astype(np.float32)
        np.testing.assert_array_equal(casted(Operands(place, "dense"), x), rounded(x, place.dtype))


def test_arguments_that_make_no_sense_are_refused():
    five, rates = np.zeros(5, np.float32), np.float32([1e-3, 1e-3])
    tensor = k.Tensor.from_numpy

    def adam(
        segments=(0, 2, 5), beta1=0.9, beta2=0.999, eps=1e-8, factors=(1, 10, 30, 1),
        gradients=five, parameters=five, shadow=None, first=0,
    ):  # fmt: skip
        k.adam(
            tensor(parameters), tensor(gradients), tensor(five.copy()), tensor(five.copy()),
            tensor(np.array(segments)), tensor(rates), tensor(rates), beta1, beta2, eps,
            tensor(np.float32(factors)), True, shadow, first,
        )  # fmt: skip

    adam()
    for wrong, message in (
        ({"segments": (0, 5)}, r"segments: got int64\[2\], wanted int64\[3\], a border more"),
        ({"segments": (0, 4, 3)}, r"segments\[2\]: got 3, wanted at least segments\[1\], 4"),
        ({"segments": (0, 2, 6)}, "segments: got 0 to 6, wanted 0 to 5"),
        ({"segments": (1, 2, 5)}, "segments: got 1 to 5, wanted 0 to 5"),
        ({"beta1": 1.0}, "beta1: got 1, wanted 0 or more, and less than 1"),
        ({"beta2": -0.5}, "beta2: got -0.5, wanted 0 or more, and less than 1"),
        ({"eps": -1.0}, "eps: got -1, wanted 0 or more"),
        ({"factors": (1, 10)}, r"factors: got float32\[2\] on cpu, wanted float32\[factors=4\]"),
        ({"first": -1}, "first: got -1, wanted 0 or more"),
        ({"gradients": five[:4]}, r"gradients: got float32\[4\] on cpu, wanted .*n=5"),
    ):
        with pytest.raises(k.Error, match=f"adam: {message}"):
            adam(**wrong)
    one, rows = np.float32([1]), np.ones((1, 4), np.float32)

    def factors(first=0, max_norm=1.0, sums=(1, 2)):
        k.adam_factors(
            *map(tensor, (rows, one, one, one, np.ones(sums, np.float32), np.array([first]))),
            tensor(np.float32([[-1, -1]])), max_norm, None,
        )  # fmt: skip

    factors()
    for wrong, message in (
        ({"first": 1}, r"firsts\[0\]: got 1, wanted 0 to 0"),
        ({"max_norm": 0.0}, "max_norm: got 0, wanted more than 0"),
        ({"sums": (1, 3)}, r"sums: got float32\[1, 3\] on cpu, wanted"),
    ):
        with pytest.raises(k.Error, match=f"adam_factors: {message}"):
            factors(**wrong)
    with pytest.raises(k.Error, match=r"gradient_norm: out: got float32\[1, 3\] on cpu, wanted"):
        k.gradient_norm(tensor(np.ones((1, 3), np.float32)), tensor(five))
