"""Every op equals its fp64 reference, on every instruction set that this machine can run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fusewire import kernels

from tests import tolerance
from tests.ops.cases import CASES, LONG_ATTENTION, Case

pytestmark = pytest.mark.usefixtures("target")


@pytest.fixture(params=kernels.cpu_targets())
def target(request: pytest.FixtureRequest):
    before = kernels.cpu_target()
    kernels.set_cpu_target(request.param)
    yield request.param
    kernels.set_cpu_target(before)


def as_torch(arrays: dict[str, np.ndarray], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    tensors = {name: torch.from_numpy(a) for name, a in arrays.items()}
    return {n: t.to(dtype) if t.is_floating_point() else t for n, t in tensors.items()}


def check(case: Case, shape: tuple, strided: bool) -> None:
    arrays = case.make(np.random.default_rng(0), shape)
    truth = case.reference(as_torch(arrays, torch.float64), shape).numpy()
    got = case.ours(arrays, shape, strided)
    assert got.shape == truth.shape
    if not truth.size:
        return
    if case.exact:
        assert np.array_equal(got, truth)
        return
    torch_fp32 = case.reference(as_torch(arrays, torch.float32), shape).numpy()
    granted = tolerance.OP_VERSUS_TORCH * np.abs(torch_fp32 - truth).max()
    granted += tolerance.ROUNDING_ULPS * np.spacing(np.float32(np.abs(truth).max()))
    assert np.abs(got - truth).max() <= granted


def test_every_op_of_the_table_has_a_reference_and_nothing_else():
    assert set(CASES) == set(kernels.OPS)


@pytest.mark.parametrize("strided", [False, True], ids=["dense", "strided"])
@pytest.mark.parametrize("name", CASES)
def test_an_op_equals_its_fp64_reference(name: str, strided: bool):
    for shape in CASES[name].shapes:
        check(CASES[name], shape, strided)


def test_attention_reaches_8192_tokens():
    check(CASES["attention"], LONG_ATTENTION, strided=True)


def test_norms_survive_a_large_mean_with_a_small_variance():
    rng = np.random.default_rng(1)
    x = (1e4 + rng.standard_normal((8, 768)) * 1e-1).astype(np.float32)
    ones, zeros = np.ones(768, np.float32), np.zeros(768, np.float32)
    out = kernels.empty(x.shape)
    make = kernels.Tensor.from_numpy
    kernels.layer_norm(out, make(x), make(ones), make(zeros), 1e-12)
    wide = x.astype(np.float64)
    truth = (wide - wide.mean(1, keepdims=True)) / wide.std(1, keepdims=True)
    # fp32 holds x to 1e-3 of its deviation; E[x^2] - E[x]^2 in fp32 would leave nothing at all.
    torch_error = np.abs(
        torch.nn.functional.layer_norm(torch.from_numpy(x), (768,), eps=1e-12).numpy() - truth
    ).max()
    granted = tolerance.OP_VERSUS_TORCH * torch_error + tolerance.LARGE_MEAN
    assert np.abs(out.numpy() - truth).max() <= granted


def test_an_answer_does_not_depend_on_what_it_was_batched_with():
    rng = np.random.default_rng(2)
    lengths, heads, dim = (9, 130, 31), 2, 32
    make = kernels.Tensor.from_numpy
    qkv = rng.standard_normal((sum(lengths), 3 * heads * dim), dtype=np.float32)
    weight = kernels.Linear(make(rng.standard_normal((50, heads * dim), dtype=np.float32)), None)

    def run(rows: np.ndarray, offsets: list[int]) -> np.ndarray:
        batch = kernels.SequenceBatch(make(np.array(offsets, np.int32)))
        context = kernels.empty((len(rows), heads * dim))
        kernels.attention(context, make(rows), batch, heads, dim**-0.5, 0, None)
        out = kernels.empty((len(rows), 50))
        kernels.linear(out, context, weight, "gelu_erf")
        return out.numpy()

    together = run(qkv, [0, 9, 139, 170])
    for begin, end in ((0, 9), (9, 139), (139, 170)):
        alone = run(qkv[begin:end].copy(), [0, end - begin])
        assert np.array_equal(alone, together[begin:end])
