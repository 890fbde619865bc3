"""Every op equals its fp64 reference, on every instruction set that this machine supports, and on
its GPU in every precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fusewire import kernels as k
from fusewire.placement import Placement

from tests import tolerance
from tests.ops.activations import ACTIVATIONS
from tests.ops.attention import LONG_ATTENTION, Attention, Operation, attend
from tests.ops.case import Operands, normal
from tests.ops.cases import CASES
from tests.ops.check import check, tensors
from tests.places import CPU, CPU_TARGETS, GPU_FP32, TORCH_DTYPES, on_gpu, rounded, settle


def test_every_op_of_the_table_has_a_reference_and_nothing_else():
    assert set(CASES) == set(k.OPS)


@pytest.mark.parametrize("name", CASES)
def test_an_op_equals_its_fp64_reference(name: str, place: Placement):
    case = CASES[name]
    for shape in [*case.shapes, *(case.gpu_shapes if on_gpu(place) else ())]:
        check(case, shape, place)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("place", [CPU], indirect=True)
@pytest.mark.parametrize("name", CASES)
def test_one_rounding_to_16_bits_is_allowed(name: str, place: Placement, dtype: str):
    for shape in CASES[name].shapes:
        check(CASES[name], shape, place, layouts=("dense",), rounding=dtype)


def test_attention_reaches_8192_tokens(place: Placement):
    check(CASES["attention"], LONG_ATTENTION, place, layouts=("strided",))


@pytest.mark.parametrize("place", [*CPU_TARGETS, GPU_FP32], indirect=True)
def test_norms_survive_a_large_mean_with_a_small_variance(place: Placement):
    rng = np.random.default_rng(1)
    x = (1e4 + rng.standard_normal((8, 768)) * 1e-1).astype(np.float32)
    ones, zeros = place.floats(np.ones(768)), place.floats(np.zeros(768))
    out = place.empty(*x.shape)
    k.layer_norm(out, place.floats(x), ones, zeros, 1e-12, place.stream)
    wide = x.astype(np.float64)
    truth = (wide - wide.mean(1, keepdims=True)) / wide.std(1, keepdims=True)
    # fp32 represents x to 1e-3 of its deviation; E[x^2] - E[x]^2 in fp32 would lose all digits.
    torch_norm = torch.nn.functional.layer_norm(torch.from_numpy(x).to(place.device), (768,))
    torch_error = np.abs(torch_norm.cpu().numpy() - truth).max()
    allowed = tolerance.OP_VERSUS_TORCH * torch_error + tolerance.LARGE_MEAN
    assert np.abs(place.numpy(out) - truth).max() <= allowed


def test_an_answer_does_not_depend_on_what_it_was_batched_with(place: Placement):
    rng = np.random.default_rng(2)
    lengths, heads, dim = (9, 130, 31), 2, 32
    width = heads * dim
    q, kv = (rounded(normal(rng, sum(lengths), n), place.dtype) for n in (width, 2 * width))
    weight = rounded(normal(rng, 50, width) / np.float32(width**0.5), place.dtype)
    linear = place.linear(weight, None)

    def run(rows: slice, lengths: tuple[int, ...]) -> np.ndarray:
        arrays = {"q": q[rows], "kv": kv[rows]}
        context, out = place.empty(sum(lengths), width), place.empty(sum(lengths), 50)
        Operation(Operands(place, "dense"), arrays, Attention(lengths, heads, dim))(context)
        k.linear(out, context, linear, "gelu_erf", place.stream)
        return place.numpy(out).copy()

    def reference(dtype: torch.dtype) -> np.ndarray:
        t = tensors({"q": q, "kv": kv, "weight": weight}, dtype, place.device)
        context = attend(t, Attention(lengths, heads, dim))
        return torch.nn.functional.gelu(context @ t["weight"].T).double().cpu().numpy()

    together = run(slice(None), lengths)
    parts = (slice(0, 9), slice(9, 139), slice(139, 170))
    alone = np.concatenate([run(rows, (rows.stop - rows.start,)) for rows in parts])
    if place.dtype == "float32":
        on_cpu, on_gpus = tolerance.BATCHED_VERSUS_ALONE, tolerance.GPU_BATCHED_VERSUS_ALONE
        assert np.abs(alone - together).max() <= (on_gpus if on_gpu(place) else on_cpu)
    else:
        truth, same = reference(torch.float64), reference(TORCH_DTYPES[place.dtype])
        assert not tolerance.allowed_error(truth, same, place.dtype, width).excess(alone)


@pytest.mark.parametrize("place", CPU_TARGETS, indirect=True)
def test_a_row_of_a_product_does_not_depend_on_how_many_there_are(place: Placement):
    o, rng = Operands(place, "dense"), np.random.default_rng(10)
    for n, inner in [(97, 100), (768, 3072), (2304, 768)]:
        linear, x = place.linear(normal(rng, n, inner), normal(rng, n)), normal(rng, 70, inner)

        def run(rows: int, linear: k.Linear = linear, x: np.ndarray = x) -> np.ndarray:
            out = o.room(rows, linear.out_features)
            k.linear(out, o.rows(x[:rows]), linear, "none", place.stream)
            return o.read(out)

        whole = run(70)
        for rows in (1, 2, 3, 4, 5, 6, 7, 8, 13, 14, 15, 29, 57):  # sizes around a block and a task
            np.testing.assert_array_equal(run(rows), whole[:rows])


def test_a_broken_sequence_does_not_break_its_neighbours(place: Placement):
    shape = Attention((17, 40, 64, 1), 2, 64)
    qkv = normal(np.random.default_rng(9), sum(shape.lengths), 3 * shape.kv_width)
    o = Operands(place, "dense")

    def run(rows: np.ndarray) -> np.ndarray:
        out = o.room(len(rows), shape.kv_width)
        q, kv = rows[:, : shape.kv_width], rows[:, shape.kv_width :]
        Operation(o, {"q": q, "kv": kv}, shape)(out)
        return o.read(out)

    whole = run(qkv.copy())
    qkv[17:57] = np.nan
    broken = run(qkv)
    assert np.isnan(broken[17:57]).all()
    np.testing.assert_array_equal(
        np.delete(broken, np.s_[17:57], 0), np.delete(whole, np.s_[17:57], 0)
    )


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_nan_passes_through_every_activation(activation: str, place: Placement):
    rng = np.random.default_rng(6)
    x = normal(rng, 9, 64)
    x[4, 7] = np.nan
    o = Operands(place, "dense")
    linear = place.linear(normal(rng, 32, 64), normal(rng, 32))
    for got in (
        o.result(k.linear, (9, 32), o.rows(x), linear, activation),
        o.result(k.activate, x.shape, o.rows(x), activation),
    ):
        assert np.isnan(got[4]).any()
        assert np.isfinite(np.delete(got, 4, axis=0)).all()


def test_a_weight_may_be_used_as_soon_as_it_is_packed(place: Placement):
    rng = np.random.default_rng(10)
    x, at_once, later = (place.floats(normal(rng, 5, n)) for n in (768, 512, 512))
    for _ in range(8):
        linear = place.linear(normal(rng, 512, 768), None)
        k.linear(at_once, x, linear, "none", place.stream)
        settle(place)
        k.linear(later, x, linear, "none", place.stream)
        np.testing.assert_array_equal(place.numpy(at_once), place.numpy(later))


def test_a_weight_comes_from_the_device_or_the_host(place: Placement):
    rng = np.random.default_rng(11)
    weight, bias, x = normal(rng, 5, 64), normal(rng, 5), place.floats(normal(rng, 3, 64))
    answers = [place.empty(3, 5) for _ in range(2)]
    of_device = k.Linear(place.floats(weight), place.floats(bias), place.stream)
    for linear, out in zip((of_device, place.linear(weight, bias)), answers, strict=True):
        k.linear(out, x, linear, "none", place.stream)
    np.testing.assert_array_equal(*map(place.numpy, answers))
