"""Every op equals its fp64 reference, on every instruction set that this machine can run, and on
its GPU in every precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fusewire import kernels as k
from fusewire.placement import Placement

from tests import tolerance
from tests.ops.activations import ACTIVATIONS
from tests.ops.attention import LONG_ATTENTION, attend
from tests.ops.case import LAYOUTS, Arrays, Case, Operands, Tensors, normal
from tests.ops.cases import CASES
from tests.places import CPU_TARGETS, GPU_FP32, TORCH_DTYPES, on_gpu, rounded, settle


def tensors(arrays: Arrays, dtype: torch.dtype, place: Placement) -> Tensors:
    moved = {name: torch.from_numpy(a).to(place.device) for name, a in arrays.items()}
    return {n: t.to(dtype) if t.is_floating_point() else t for n, t in moved.items()}


def check(case: Case, shape: tuple, place: Placement, layouts: tuple[str, ...] = LAYOUTS) -> None:
    arrays = {
        name: array if name in case.fp32 else rounded(array, place.dtype)
        for name, array in case.make(np.random.default_rng(0), shape).items()
    }
    truth = case.reference(tensors(arrays, torch.float64, place), shape).cpu().numpy()
    allowed = 0.0
    if truth.size and not case.exact:
        same = case.reference(tensors(arrays, TORCH_DTYPES[place.dtype], place), shape)
        torch_error = np.abs(same.double().cpu().numpy() - truth).max()
        allowed = tolerance.granted(torch_error, np.abs(truth).max(), place.dtype)
    for layout in layouts:
        got = case.ours(Operands(place, layout), arrays, shape)
        assert got.shape == truth.shape
        if truth.size:
            assert np.abs(got - truth).max() <= allowed, f"{layout} {shape}"


def test_every_op_of_the_table_has_a_reference_and_nothing_else():
    assert set(CASES) == set(k.OPS)


@pytest.mark.parametrize("name", CASES)
def test_an_op_equals_its_fp64_reference(name: str, place: Placement):
    case = CASES[name]
    for shape in [*case.shapes, *(case.gpu_shapes if on_gpu(place) else ())]:
        check(case, shape, place)


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
    # fp32 holds x to 1e-3 of its deviation; E[x^2] - E[x]^2 in fp32 would leave nothing at all.
    torch_norm = torch.nn.functional.layer_norm(torch.from_numpy(x).to(place.device), (768,))
    torch_error = np.abs(torch_norm.cpu().numpy() - truth).max()
    granted = tolerance.OP_VERSUS_TORCH * torch_error + tolerance.LARGE_MEAN
    assert np.abs(place.numpy(out) - truth).max() <= granted


def test_an_answer_does_not_depend_on_what_it_was_batched_with(place: Placement):
    rng = np.random.default_rng(2)
    lengths, heads, dim = (9, 130, 31), 2, 32
    width = heads * dim
    qkv = rounded(normal(rng, sum(lengths), 3 * width), place.dtype)
    weight = rounded(normal(rng, 50, width) / np.float32(width**0.5), place.dtype)
    linear = place.linear(weight, None)

    def run(rows: np.ndarray, lengths: tuple[int, ...]) -> np.ndarray:
        batch = Operands(place, "dense").sequences(lengths)
        context, out = place.empty(len(rows), width), place.empty(len(rows), 50)
        x = place.floats(rows)
        k.attention(context, x, batch, heads, dim**-0.5, 0, None, place.stream)
        k.linear(out, context, linear, "gelu_erf", place.stream)
        return place.numpy(out).copy()

    def reference(dtype: torch.dtype) -> np.ndarray:
        t = tensors({"qkv": qkv, "weight": weight, "bias": qkv[:1]}, dtype, place)
        context = attend(t, (lengths, heads, dim, 0, False))
        return torch.nn.functional.gelu(context @ t["weight"].T).double().cpu().numpy()

    allowed = tolerance.BATCHED_VERSUS_ALONE
    if on_gpu(place):
        allowed = tolerance.GPU_BATCHED_VERSUS_ALONE
    if place.dtype != "float32":
        truth = reference(torch.float64)
        torch_error = np.abs(reference(TORCH_DTYPES[place.dtype]) - truth).max()
        allowed = tolerance.granted(torch_error, np.abs(truth).max(), place.dtype)
    together = run(qkv, lengths)
    for begin, end in ((0, 9), (9, 139), (139, 170)):
        alone = run(qkv[begin:end].copy(), (end - begin,))
        assert np.abs(alone - together[begin:end]).max() <= allowed


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
        for rows in (1, 2, 3, 4, 5, 6, 7, 8, 13, 14, 15, 29, 57):  # around a block, and a task
            np.testing.assert_array_equal(run(rows), whole[:rows])


def test_a_broken_sequence_does_not_break_its_neighbours(place: Placement):
    heads, dim, lengths = 2, 64, (17, 40, 64, 1)
    qkv = normal(np.random.default_rng(9), sum(lengths), 3 * heads * dim)
    o = Operands(place, "dense")

    def run(rows: np.ndarray) -> np.ndarray:
        out, batch = o.room(len(rows), heads * dim), o.sequences(lengths)
        k.attention(out, o.rows(rows), batch, heads, dim**-0.5, 0, None, place.stream)
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
