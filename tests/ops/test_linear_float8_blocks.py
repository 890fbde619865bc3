"""GEMMs of float8_e4m3 in blocks on GPUs that support them: each block of a row is rounded as by
torch, weights are given as codes and scales, sums are compared with fp64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fusewire import kernels as k
from fusewire.placement import Placement

from tests.ops.case import LAYOUTS, Operands, normal
from tests.ops.float8_rows import BLOCK, blocks_of, exactly, of_blocks, rounded_blocks
from tests.places import CPU, GPU_HALVES, TORCH_DTYPES, rounded
from tests.tolerance import Allowed, allowed_error, float8_sums

ON_GPUS = pytest.mark.parametrize("place", GPU_HALVES, indirect=True)
BLOCKS = "float8_e4m3_blocks"
# (tokens, in_features, out_features): one row to many; k and n of whole blocks and of partial ones,
# and k so long that a block's scales are read in several turns. For the last shapes cuBLASLt is
# fastest, which leaves some rows to our kernels.
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
    (700, 5000, 136),
    (1001, 2048, 3072),
    (1603, 4096, 1024),
]
# Widths whose rows a warp holds, a block holds, and neither; some are not multiples of a vector.
WIDTHS = [8, 40, 128, 300, 513, 770, 1024, 2056, 4104, 8200, 16400]


@pytest.fixture(autouse=True)
def hopper(place: Placement) -> None:
    if place.device != "cpu" and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("only GPUs of compute capability 9.0 have products of float8_e4m3")


def linear_of(
    place: Placement, codes: np.ndarray, scales: np.ndarray, bias: np.ndarray | None = None
) -> k.Linear:
    return place.codes_linear(BLOCKS, codes, scales, 0.0, bias, "weight")


def product(o: Operands, x: np.ndarray, linear: k.Linear, activation: str = "none") -> np.ndarray:
    return o.result(k.linear, (len(x), linear.out_features), o.rows(x), linear, activation)


def operands(place: Placement, shape: tuple[int, int, int]) -> list[np.ndarray]:
    """Returns operands whose blocks have different magnitudes."""
    rng, (m, inner, out) = np.random.default_rng(0), shape
    found = [normal(rng, m, inner), normal(rng, out, inner), normal(rng, out), normal(rng, m, out)]
    of_x, of_weight = (
        np.exp2(rng.integers(-2, 3, (-(-size // BLOCK), -(-inner // BLOCK)))).repeat(BLOCK, 1)
        for size in (BLOCK, out)
    )
    found[0] *= np.exp(normal(rng, m, 1)) * of_x[:, :inner]
    found[1] *= of_weight[:, :inner].repeat(BLOCK, 0)[:out] * inner**-0.5
    return [rounded(each.astype(np.float32), place.dtype) for each in found]


def allowed(
    place: Placement, truth: np.ndarray, once: torch.Tensor, sums: np.ndarray, terms: int
) -> Allowed:
    """Returns the allowed error. `once`: the result in fp32, which is then rounded to the element
    type; `sums`: without bias, activation and residual."""
    usual = once.to(TORCH_DTYPES[place.dtype]).double().numpy()
    single = allowed_error(truth, usual, place.dtype, terms)
    return single.plus(*float8_sums(sums))


@ON_GPUS
@pytest.mark.parametrize("width", WIDTHS)
def test_blocks_of_rows_are_rounded_as_torch_rounds_them(place: Placement, width: int):
    """Observed through a GEMM with the identity."""
    rng = np.random.default_rng(width)
    x = rounded(normal(rng, 5, width) * np.exp2(rng.integers(-4, 5, (5, 1))), place.dtype)
    x[1] *= np.exp2(rng.integers(-9, 1, width))  # down to the smallest value of e4m3
    x[2] = np.round(x[2] * 4) / 4  # with ties
    x = rounded(x.astype(np.float32), place.dtype)
    codes, scales = blocks_of(np.eye(width, dtype=np.float32))
    scales[scales < 1e-6] = 1  # blocks of zeros
    numbers, tops = rounded_blocks(x)
    for layout in LAYOUTS:
        got = product(Operands(place, layout), x, linear_of(place, codes, scales))
        seen = (torch.from_numpy(got).double() / tops).to(torch.float8_e4m3fn)
        np.testing.assert_array_equal(seen.float().numpy(), numbers.float().numpy())


@ON_GPUS
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_is_that_of_rounded_blocks(shape: tuple, place: Placement, layout: str):
    o, (x, weight, bias, residual) = Operands(place, layout), operands(place, shape)
    codes, scales = blocks_of(weight)
    exact = [torch.from_numpy(e) for e in (exactly(rounded_blocks(x)), of_blocks(codes, scales))]
    b, r = (torch.from_numpy(each) for each in (bias, residual))
    bare, linear = linear_of(place, codes, scales), linear_of(place, codes, scales, bias)
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


@ON_GPUS
def test_scales_of_other_blocks_would_be_seen(place: Placement):
    for m in (9, 300):
        x, weight, _, _ = operands(place, (m, 384, 384))
        codes, scales = blocks_of(weight)
        rows = exactly(rounded_blocks(x))
        got = product(Operands(place, "dense"), x, linear_of(place, codes, scales))
        for other in (scales[::-1], scales[:, ::-1], scales.T):
            sums = rows @ of_blocks(codes, np.ascontiguousarray(other)).T
            assert np.linalg.norm(got - sums) > 0.1 * np.linalg.norm(sums)


@ON_GPUS
def test_rows_that_the_library_leaves_are_quantised_as_all_others(place: Placement):
    """This includes rows quantised by a norm and by an activation."""
    rng, o, rows = np.random.default_rng(0), Operands(place, "dense"), 1003
    x = rounded(normal(rng, rows, 1024) * np.exp(normal(rng, rows, 1)), place.dtype)
    linear = linear_of(place, *blocks_of(normal(rng, 1536, 1024)))
    norm = [place.floats(normal(rng, 1024)) for _ in range(2)]
    apart, together, out = o.room(rows, 1024), o.room(rows, 1024), o.room(rows, 1536)
    k.layer_norm(apart, o.rows(x), *norm, 1e-5, place.stream)
    k.norm_linear(out, together, o.rows(x), *norm, 1e-5, True, linear, "none", place.stream)
    np.testing.assert_array_equal(
        o.read(out), o.result(k.linear, (rows, 1536), apart, linear, "none")
    )
    k.activate(apart, o.rows(x), "silu", place.stream)
    np.testing.assert_array_equal(
        o.result(k.activated_linear, (rows, 1536), o.rows(x), "silu", False, linear, None),
        o.result(k.linear, (rows, 1536), apart, linear, "none"),
    )


@ON_GPUS
def test_rows_of_a_bucket_have_the_same_bits(place: Placement):
    """Except for at most three rows, which another kernel computes."""
    for most, fewer in ((40, (33, 36)), (320, (289, 300))):
        x, weight, bias, _ = operands(place, (most, 4096, 512))
        o, linear = Operands(place, "dense"), linear_of(place, *blocks_of(weight), bias)
        whole = product(o, x, linear)
        for count in fewer:
            alike = slice(count - count % 4)
            np.testing.assert_array_equal(product(o, x[:count], linear)[alike], whole[alike])


@ON_GPUS
def test_a_weight_takes_a_byte_a_number_and_its_blocks_scales(place: Placement):
    linear = linear_of(place, *blocks_of(np.ones((200, 770), np.float32)), np.ones(200))
    assert linear.format == BLOCKS
    assert linear.nbytes == 200 * 784 + 2 * 7 * 4 + 200 * 2


@ON_GPUS
def test_what_is_refused(place: Placement):
    codes, scales = blocks_of(np.ones((200, 770), np.float32))
    floats = place.floats(np.ones((200, 770), np.float32))
    with pytest.raises(k.Error, match=r"weight: got \w*float\d+ in float8_e4m3_blocks, wanted its"):
        k.Linear(floats, None, place.stream, format=BLOCKS)
    for wrong in (scales.T, scales[:1], scales[:, :6], scales.reshape(-1), np.ones(200, "f")):
        with pytest.raises(k.Error, match=r"scales: got .*, wanted float32\[.*=2, .*=7\]"):
            linear_of(place, codes, np.ascontiguousarray(wrong))
    linear = linear_of(place, codes, scales)
    with pytest.raises(k.Error, match="got floats for a Linear of float8_e4m3_blocks"):
        linear.refresh(floats, None, place.stream)
    given = [k.Tensor.from_numpy(each) for each in (codes, np.ascontiguousarray(scales))]
    with pytest.raises(k.Error, match="input_scale: got one for a float8_e4m3_blocks weight"):
        k.Linear(given[0], None, place.stream, False, BLOCKS, given[1], 0.5)


@pytest.mark.parametrize("place", [CPU], indirect=True)
def test_a_device_without_it_refuses_it(place: Placement):
    assert BLOCKS not in k.weight_formats(place.dtype, place.stream)
    with pytest.raises(k.Error, match="format: got float8_e4m3_blocks of a float32 weight, for"):
        linear_of(place, *blocks_of(np.ones((16, 32), np.float32)))
