"""GEMMs with float8_e4m3 weights on GPUs that support them: rows and channels are rounded as by
torch, sums are compared with fp64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fusewire import kernels as k
from fusewire.placement import Placement

from tests.ops.case import LAYOUTS, Operands, normal
from tests.ops.float8_rows import exactly, rounded_rows, rounded_with
from tests.places import CPU, GPU_HALVES, TORCH_DTYPES, rounded
from tests.tolerance import Allowed, allowed_error, float8_sums

FLOAT8_GPU = pytest.mark.parametrize("place", GPU_HALVES, indirect=True)
# (tokens, in_features, out_features): one row to many; k and n that no tile divides and that all
# divide.
SHAPES = [
    (1, 768, 768),
    (1, 4096, 1000),
    (5, 33, 31),
    (8, 14336, 64),
    (16, 768, 2304),
    (17, 770, 97),
    (64, 1024, 3072),
    (100, 4096, 256),
    (200, 768, 3072),
    (300, 24, 1000),
    (1000, 3072, 768),
    (1500, 1000, 776),
]
# Widths whose rows a warp holds, a block holds, and neither; some are not multiples of a vector.
WIDTHS = [8, 40, 300, 513, 770, 1024, 2056, 4104, 8200, 16400]


@pytest.fixture(autouse=True)
def float8(place: Placement) -> None:
    if place.device != "cpu" and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("only GPUs of compute capability 9.0 have products of float8_e4m3")


def linear_of(place: Placement, weight: np.ndarray, bias: np.ndarray | None = None) -> k.Linear:
    given = None if bias is None else place.floats(bias)
    return k.Linear(place.floats(weight), given, place.stream, format="float8_e4m3")


def product(o: Operands, x: np.ndarray, linear: k.Linear, activation: str = "none") -> np.ndarray:
    return o.result(k.linear, (len(x), linear.out_features), o.rows(x), linear, activation)


def operands(place: Placement, shape: tuple[int, int, int]) -> list[np.ndarray]:
    rng, (m, inner, out) = np.random.default_rng(0), shape
    found = [normal(rng, m, inner), normal(rng, out, inner), normal(rng, out), normal(rng, m, out)]
    found[0] *= np.exp(normal(rng, m, 1))  # rows of different magnitudes
    return [rounded(each, place.dtype) for each in found]


def allowed(
    place: Placement, truth: np.ndarray, once: torch.Tensor, sums: np.ndarray, terms: int
) -> Allowed:
    """Returns the allowed error. `once`: the result in fp32, which is then rounded to the element
    type; `sums`: without bias, activation and residual."""
    usual = once.to(TORCH_DTYPES[place.dtype]).double().numpy()
    single = allowed_error(truth, usual, place.dtype, terms)
    return single.plus(*float8_sums(sums))


@FLOAT8_GPU
@pytest.mark.parametrize("width", WIDTHS)
def test_rows_are_rounded_as_torch_rounds_them(place: Placement, width: int):
    """Observed through a GEMM with the identity, whose ones have code 448 and scale 1/448: a 16-bit
    result shows every bit of a value with three mantissa bits."""
    rng = np.random.default_rng(width)
    x = rounded(normal(rng, 5, width) * np.exp2(rng.integers(-4, 5, (5, 1))), place.dtype)
    x[1] *= np.exp2(rng.integers(-9, 1, width))  # down to the smallest value of e4m3
    x[2] = np.round(x[2] * 4) / 4  # with ties
    x = rounded(x.astype(np.float32), place.dtype)
    got = product(Operands(place, "dense"), x, linear_of(place, np.eye(width, dtype=np.float32)))
    numbers, scales = rounded_rows(x)
    seen = (torch.from_numpy(got).double() / scales).to(torch.float8_e4m3fn)
    np.testing.assert_array_equal(seen.float().numpy(), numbers.float().numpy())


@FLOAT8_GPU
def test_rounding_toward_zero_would_be_seen(place: Placement):
    x = rounded(normal(np.random.default_rng(0), 5, 64), place.dtype)
    got = product(Operands(place, "dense"), x, linear_of(place, np.eye(64, dtype=np.float32)))
    scales = rounded_rows(x)[1]
    cut = (torch.from_numpy(x) / scales * (1 - 1 / 32)).to(torch.float8_e4m3fn)
    seen = (torch.from_numpy(got).double() / scales).to(torch.float8_e4m3fn)
    assert (seen.float() != cut.float()).any()


@FLOAT8_GPU
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_is_that_of_rounded_rows(shape: tuple, place: Placement, layout: str):
    o, (x, weight, bias, residual) = Operands(place, layout), operands(place, shape)
    exact = [torch.from_numpy(exactly(rounded_rows(each))) for each in (x, weight)]
    b, r = (torch.from_numpy(each) for each in (bias, residual))
    bare, linear = linear_of(place, weight), linear_of(place, weight, bias)
    sums = F.linear(*exact).numpy()

    def expect(got: np.ndarray, act=None, add=False, biased=True, in_place=False) -> None:
        def result(dtype: torch.dtype, rounded_first: bool = False) -> torch.Tensor:
            y = F.linear(*(e.to(dtype) for e in exact), b.to(dtype) if biased else None)
            y = act(y) if act else y
            y = y.to(TORCH_DTYPES[place.dtype]).to(dtype) if rounded_first else y
            return y + r.to(dtype) if add else y

        # In place torch rounds twice, and so do the library's kernels (cuda/gemm/gemm_choice.h).
        truth, usual = result(torch.float64).numpy(), result(torch.float32, in_place)
        assert not allowed(place, truth, usual, sums, shape[1]).excess(got)

    expect(product(o, x, bare), biased=False)
    expect(product(o, x, linear))
    expect(product(o, x, linear, "gelu_erf"), F.gelu)
    expect(product(o, x, linear, "relu"), F.relu)
    added = o.result(k.linear_add, residual.shape, o.rows(x), linear, o.rows(residual))
    expect(added, add=True)
    in_place = o.rows(residual)
    k.linear_add(in_place, o.rows(x), linear, in_place, place.stream)
    expect(o.read(in_place), add=True, in_place=True)


@FLOAT8_GPU
@pytest.mark.parametrize("shape", [(1, 4096, 256), (17, 770, 96), (300, 1024, 768)])
def test_a_given_scale_is_that_of_all_rows(shape: tuple, place: Placement):
    """Larger values saturate; norms and activations use the scale too."""
    o, (x, weight, bias, _) = Operands(place, "dense"), operands(place, shape)
    scale = float(np.float32(np.abs(x).max() / 2 / 448))
    codes, scales = rounded_rows(weight)
    linear = place.codes_linear(
        "float8_e4m3", codes.view(torch.uint8).numpy(), scales[:, 0].numpy(), scale, bias, "weight"
    )

    def expect(got: np.ndarray, rows: np.ndarray) -> None:
        exact = [torch.from_numpy(exactly(e)) for e in (rounded_with(rows, scale), (codes, scales))]
        sums = F.linear(*exact)
        once = F.linear(*(e.float() for e in exact), torch.from_numpy(bias))
        truth = (sums + torch.from_numpy(bias).double()).numpy()
        assert not allowed(place, truth, once, sums.numpy(), shape[1]).excess(got)
        found = exactly(rounded_with(rows, scale))
        assert (np.abs(found) <= 448 * scale).all()

    assert (np.abs(x) > 448 * scale).any()
    expect(product(o, x, linear), x)
    ones, made = place.floats(np.ones(shape[1], np.float32)), o.room(*x.shape)
    out = o.room(len(x), shape[2])
    k.norm_linear(out, made, o.rows(x), ones, None, 1e-5, False, linear, "none", place.stream)
    expect(o.read(out), o.read(made))
    got = o.result(k.activated_linear, out.shape, o.rows(x), "relu", False, linear, None)
    expect(got, np.maximum(x, 0))
    x[0, 0] = np.nan
    got = product(o, x, linear)
    assert np.isnan(got[0]).all()
    assert np.isfinite(got[1:]).all()


@FLOAT8_GPU
def test_a_scale_of_inputs_that_cannot_be_is_refused(place: Placement):
    weight = place.floats(np.ones((32, 16), np.float32))
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(k.Error, match=r"input_scale: got .*, wanted a finite number greater"):
            k.Linear(weight, None, place.stream, False, "float8_e4m3", None, wrong)
    with pytest.raises(k.Error, match=r"input_scale: got one for an? int8 weight, wanted none"):
        k.Linear(weight, None, place.stream, False, "int8", None, 0.5)


@FLOAT8_GPU
def test_rows_of_a_bucket_have_the_same_bits(place: Placement):
    for most, fewer in ((40, (33, 36)), (320, (289, 300))):
        x, weight, bias, _ = operands(place, (most, 4096, 512))
        o, linear = Operands(place, "dense"), linear_of(place, weight, bias)
        whole = product(o, x, linear)
        for count in fewer:
            np.testing.assert_array_equal(product(o, x[:count], linear), whole[:count])


@FLOAT8_GPU
def test_weights_come_from_the_host_and_the_device_alike_with_scales_given_or_not(place: Placement):
    x, weight, bias, _ = operands(place, (9, 776, 100))
    o, there = Operands(place, "dense"), linear_of(place, weight, bias)
    right = product(o, x, there)
    assert there.format == "float8_e4m3"
    assert there.nbytes == 100 * 784 + 100 * 4 + 100 * 2
    host = place.linear(weight, bias)
    assert host.format == place.dtype
    scales = np.abs(weight).max(1) / np.float32(448)
    given = k.Linear(
        place.floats(weight), place.floats(bias), place.stream, False, "float8_e4m3",
        place.exact(scales, np.float32),
    )  # fmt: skip
    seen = product(o, x, given)
    # They differ by roundings of 448 / top.
    assert np.abs(seen - right).max() <= np.abs(right).max() / 64
    there.refresh(place.floats(-weight), place.floats(-bias), place.stream)
    np.testing.assert_array_equal(product(o, x, there), -right)
    quantizing = Placement(place.device, place.dtype, "fp8")
    from_host = quantizing.layer_linear(weight, bias, "weight")
    assert from_host.format == "float8_e4m3"
    quantizing.stream.synchronize()
    np.testing.assert_array_equal(product(o, x, from_host), right)


@pytest.mark.parametrize("place", [CPU], indirect=True)
def test_a_device_without_it_refuses_it(place: Placement):
    assert "float8_e4m3" not in k.weight_formats(place.dtype, place.stream)
    with pytest.raises(k.Error, match="format: got float8_e4m3 of a float32 weight, for which"):
        linear_of(place, np.ones((16, 32), np.float32))
