"""What GEMMs with 8-bit weights (float8_e4m3 by row and in blocks, int8) have in common on GPUs:
rows are quantised when they are written, and stored codes are multiplied unchanged."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fusewire import kernels as k
from fusewire.placement import Placement

from tests.ops.case import LAYOUTS, Operands, normal
from tests.ops.float8_rows import blocks_of
from tests.places import GPU_FP32, GPU_HALVES, rounded

ON_GPUS = pytest.mark.parametrize("place", GPU_HALVES, indirect=True)
STORED = pytest.mark.parametrize("stored", ["float8_e4m3", "float8_e4m3_blocks", "int8"])
BY_ROW = pytest.mark.parametrize("stored", ["float8_e4m3", "int8"])
# Widths whose rows a warp holds, a block holds, and neither; some are not multiples of a vector.
WIDTHS = [8, 40, 300, 513, 770, 1024, 2056, 4104, 8200, 16400]


@pytest.fixture(autouse=True)
def float8(request: pytest.FixtureRequest, place: Placement) -> None:
    stored = request.node.callspec.params.get("stored", "int8")
    if stored != "int8" and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("only GPUs of compute capability 9.0 have products of float8_e4m3")


def linear_of(
    place: Placement, stored: str, weight: np.ndarray, bias: np.ndarray | None = None
) -> k.Linear:
    if stored == "float8_e4m3_blocks":
        return place.codes_linear(stored, *blocks_of(weight), 0.0, bias, "weight")
    given = None if bias is None else place.floats(bias)
    return k.Linear(place.floats(weight), given, place.stream, format=stored)


def product(o: Operands, x: np.ndarray, linear: k.Linear, activation: str = "none") -> np.ndarray:
    return o.result(k.linear, (len(x), linear.out_features), o.rows(x), linear, activation)


def operands(place: Placement, m: int, inner: int, out: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    found = [normal(rng, m, inner), normal(rng, out, inner), normal(rng, out)]
    found[0] *= np.exp(normal(rng, m, 1))  # rows of different magnitudes
    return [rounded(each, place.dtype) for each in found]


@STORED
@ON_GPUS
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_norm_quantises_what_it_writes(width, centered, layout, stored, place: Placement):
    """The result is bitwise equal to that of two ops, whether registers hold a row or not."""
    rng, o = np.random.default_rng(width), Operands(place, layout)
    x = rounded(normal(rng, 9, width) * np.exp(normal(rng, 9, 1)), place.dtype)
    x[3, 0] = np.nan
    linear = linear_of(place, stored, rounded(normal(rng, 40, width), place.dtype))
    norm = place.floats(normal(rng, width)), place.floats(normal(rng, width)) if centered else None
    apart, together, out = (o.room(9, n) for n in (width, width, 40))
    if centered:
        k.layer_norm(apart, o.rows(x), *norm, 1e-5, place.stream)
    else:
        k.rms_norm(apart, o.rows(x), norm[0], 1e-5, place.stream)
    right = o.result(k.linear, (9, 40), apart, linear, "none")
    source = o.rows(x)
    k.norm_linear(out, together, source, *norm, 1e-5, centered, linear, "none", place.stream)
    np.testing.assert_array_equal(o.read(out), right)
    np.testing.assert_array_equal(o.read(together), o.read(apart))
    assert np.isnan(right[3]).all()
    assert np.isfinite(np.delete(right, 3, 0)).all()
    k.norm_linear(out, source, source, *norm, 1e-5, centered, linear, "none", place.stream)
    np.testing.assert_array_equal(o.read(out), right)
    np.testing.assert_array_equal(o.read(source), o.read(apart))


@STORED
@ON_GPUS
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("width", WIDTHS)
def test_an_activation_is_quantised_as_it_is_made(width, gated, layout, stored, place: Placement):
    rng, o = np.random.default_rng(width), Operands(place, layout)
    x = rounded(normal(rng, 9, 2 * width if gated else width) * 2, place.dtype)
    residual = rounded(normal(rng, 9, 40), place.dtype)
    linear = linear_of(place, stored, rounded(normal(rng, 40, width), place.dtype))
    for activation in ("none", "gelu_erf", "gelu_tanh", "relu", "silu", "tanh"):
        made = o.room(9, width)
        make = k.gate if gated else k.activate
        make(made, o.rows(x), activation, place.stream)
        for added in (None, o.rows(residual)):
            arguments = (activation, gated, linear, added)
            got = o.result(k.activated_linear, (9, 40), o.rows(x), *arguments)
            if added is None:
                right = o.result(k.linear, (9, 40), made, linear, "none")
            else:
                right = o.result(k.linear_add, (9, 40), made, linear, added)
            np.testing.assert_array_equal(got, right)


@STORED
@ON_GPUS
def test_what_is_no_number_stays_in_its_row(stored: str, place: Placement):
    for count in (4, 300):
        x, weight, bias = operands(place, count, 768, 256)
        o, linear = Operands(place, "dense"), linear_of(place, stored, weight, bias)
        right = product(o, x, linear)
        x[1, 5], x[2, 7], x[3] = np.nan, -np.inf, 0
        got = product(o, x, linear)
        assert np.isnan(got[1:3]).all()
        np.testing.assert_array_equal(got[3], bias)
        np.testing.assert_array_equal(np.delete(got, [1, 2, 3], 0), np.delete(right, [1, 2, 3], 0))


@BY_ROW
@ON_GPUS
@pytest.mark.parametrize("inner", [16, 45, 770])
def test_codes_may_be_given_themselves(inner: int, stored: str, place: Placement):
    """Codes in host or device memory, with and without a bias, give bitwise the results of the
    weight that they were quantised from."""
    rng, o, n = np.random.default_rng(inner), Operands(place, "dense"), 72
    codes = rng.integers(0, 256, (n, inner)).astype(np.uint8)
    if stored == "int8":
        codes[codes == 128] = 0  # -128
        codes[:, 0] = 127
        numbers = codes.view(np.int8).astype(np.float32)
    else:
        codes[codes & 127 == 127] = 1  # NaN
        codes[:, 0] = 0x7E  # 448
        numbers = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
    scales = np.exp2(rng.integers(-5, 3, n)).astype(np.float32)
    weight, x, bias = numbers * scales[:, None], normal(rng, 9, inner), normal(rng, n)
    right = product(o, x, linear_of(place, stored, weight, bias))
    host = [k.Tensor.from_numpy(each) for each in (codes, scales)]
    there = [place.exact(codes, np.uint8), place.exact(scales, np.float32)]
    from_host = place.codes_linear(stored, codes, scales, 0.0, bias, "weight")
    of_device = k.Linear(there[0], place.floats(bias), place.stream, format=stored, scales=there[1])
    bare = k.Linear(host[0], None, place.stream, format=stored, scales=host[1])
    np.testing.assert_array_equal(product(o, x, from_host), right)
    np.testing.assert_array_equal(product(o, x, of_device), right)
    without = product(o, x, linear_of(place, stored, weight))
    np.testing.assert_array_equal(product(o, x, bare), without)
    assert from_host.format == stored


@BY_ROW
@ON_GPUS
def test_a_transposed_weight_is_refused(stored: str, place: Placement):
    weight = place.floats(np.ones((32, 16), np.float32))
    with pytest.raises(k.Error, match=rf"got a {stored} weight \[in_features, out_features\]"):
        k.Linear(weight, None, place.stream, transposed=True, format=stored)


@BY_ROW
@pytest.mark.parametrize("place", [GPU_FP32], indirect=True)
def test_float32_refuses_them(stored: str, place: Placement):
    assert stored not in k.weight_formats(place.dtype, place.stream)
    with pytest.raises(k.Error, match=f"format: got {stored} of a float32 weight, for which"):
        linear_of(place, stored, np.ones((16, 32), np.float32))


@ON_GPUS
def test_words_are_not_looked_up_in_them(place: Placement):
    table = linear_of(place, "int8", np.ones((50, 16), np.float32))
    ids, out = place.exact(np.zeros(3), np.int64), place.empty(3, 16)
    with pytest.raises(k.Error, match="word: got an int8 Linear on cuda:0, wanted a matrix"):
        k.embed(out, ids, None, table, None, 1.0, place.stream)
