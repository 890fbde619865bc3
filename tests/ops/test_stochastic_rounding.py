"""Adam on bfloat16 parameters: what it rounds, by which numbers, and that nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fusewire import kernels as k
from fusewire.placement import Placement

from tests.ops.case import Arrays, Operands
from tests.ops.optimizer import Step, factors_of, make_step
from tests.ops.philox import philox
from tests.places import CPU_TARGETS, GPU_FP32, as_torch

AND_GPU = pytest.mark.parametrize("place", [*CPU_TARGETS, GPU_FP32], indirect=True)
KEY = int.from_bytes(b"rounding")


def numbers(begin: int, count: int, step: int) -> np.ndarray:
    """The 16-bit numbers of core/stochastic_rounding.h, of elements from `begin` on."""
    at = np.arange(begin, begin + count, dtype=np.uint64)
    words = np.stack(philox(KEY, (at // 8 & 0xFFFFFFFF, at // 8 >> 32, np.full_like(at, step), 0)))
    word = np.take_along_axis(words, (at % 8 // 2).astype(np.int64)[None], 0)[0]
    return (word >> (at % 2 * 16) & 0xFFFF).astype(np.uint32)


def halves(x: np.ndarray, place: Placement) -> torch.Tensor:
    return torch.from_numpy(x.copy()).bfloat16().to(place.device)


def representable(x: np.ndarray) -> np.ndarray:
    return torch.from_numpy(x).bfloat16().float().numpy()


def stepped(place: Placement, a: Arrays, step: Step, half: bool, first: int = 0) -> list:
    """The new parameters, exp_avg and exp_avg_sq, in fp32."""
    o = Operands(place, "dense")
    if half:
        torch_values = halves(a["parameters"], place)
        parameters = k.Tensor.from_dlpack(torch_values)
    else:
        parameters = o.fp32(a["parameters"].copy())
    state = [o.fp32(a[name].copy()) for name in ("exp_avg", "exp_avg_sq")]
    k.adam(
        parameters, o.fp32(a["gradients"]), *state, o.int64(np.cumsum([0, *step.lengths])),
        o.fp32(a["rates"]), o.fp32(a["decays"]), *step[3:6], o.fp32(factors_of(step)),
        step.decoupled, None, first, place.stream,
    )  # fmt: skip
    return [as_torch(each, place).float().cpu().numpy().copy() for each in (parameters, *state)]


def made(step: Step) -> Arrays:
    arrays = make_step(np.random.default_rng(7), step)
    return arrays | {"parameters": representable(arrays["parameters"])}


@AND_GPU
@pytest.mark.parametrize("first", [0, 4, 3, 2**35 + 8])
@pytest.mark.parametrize("lengths", [(1,), (7, 33), (20_000, 5, 16_384)])
def test_new_values_are_those_of_fp32_rounded_by_the_numbers_of_their_places(
    lengths: tuple[int, ...], first: int, place: Placement
):
    step = Step(lengths, step=3, shadow=False)
    arrays = made(step)
    wanted, *moments = stepped(place, arrays, step, half=False)
    got, *moments_of_half = stepped(place, arrays, step, half=True, first=first)
    bits = wanted.view(np.uint32) + numbers(first, len(wanted), step.step)
    np.testing.assert_array_equal(got, (bits & np.uint32(0xFFFF0000)).view(np.float32))
    for one, other in zip(moments, moments_of_half, strict=True):
        np.testing.assert_array_equal(one, other)


@AND_GPU
def test_updates_below_half_a_unit_add_up_in_the_mean(place: Placement):
    """Rounded to nearest, none of them would change a parameter."""
    count, steps, rate = 4096, 200, 2.0**-12
    step = Step((count,), beta1=0.0, beta2=0.0, eps=0.0, shadow=False)
    one = np.ones(count, np.float32)
    arrays = {"gradients": one, "exp_avg": 0 * one, "exp_avg_sq": one, "parameters": one}
    arrays |= {"rates": np.float32([rate]), "decays": np.float32([0])}
    for number in range(1, steps + 1):
        after, *_ = stepped(place, arrays, step._replace(step=number), half=True)
        arrays["parameters"] = after
    assert np.array_equal(representable(one - np.float32(rate)), one)
    # A step's rounding is off by one of 2^-8 with probability 1/16; these bound the mean's error.
    deviation = 2.0**-8 * (steps / 16 / count) ** 0.5
    assert abs(after.mean() - (1 - steps * rate)) < 5 * deviation
    assert after.std() > 0


@AND_GPU
def test_parts_are_rounded_as_the_whole_is(place: Placement):
    whole = Step((3000,), step=5, shadow=False)
    arrays = made(whole)
    wanted = stepped(place, arrays, whole, half=True)
    cut = 1001
    per_element = ("parameters", "gradients", "exp_avg", "exp_avg_sq")
    parts = []
    for part, begin in ((slice(0, cut), 0), (slice(cut, 3000), cut)):
        own = arrays | {name: arrays[name][part] for name in per_element}
        step = whole._replace(lengths=(len(own["gradients"]),))
        parts.append(stepped(place, own, step, half=True, first=begin))
    for got, every in zip(zip(*parts, strict=True), wanted, strict=True):
        np.testing.assert_array_equal(np.concatenate(got), every)


@AND_GPU
def test_nan_stays_nan_and_changes_no_neighbour(place: Placement):
    step = Step((64,), shadow=False)
    arrays = made(step)
    wanted, *_ = stepped(place, arrays, step, half=True)
    arrays["parameters"][3] = np.nan
    got, *_ = stepped(place, arrays, step, half=True)
    assert np.isnan(got[3])
    np.testing.assert_array_equal(np.delete(got, 3), np.delete(wanted, 3))


@AND_GPU
def test_a_step_whose_scale_is_nan_writes_no_half(place: Placement):
    step = Step((1000,), gradient_scale=np.nan, shadow=False)
    arrays = made(step)
    got, *_ = stepped(place, arrays, step, half=True)
    np.testing.assert_array_equal(got, arrays["parameters"])


@pytest.mark.parametrize("place", CPU_TARGETS, indirect=True)
def test_halves_do_not_depend_on_threads(place: Placement):
    step, before = Step((70_001, 50_000), step=7, shadow=False), k.num_threads()
    arrays, found = made(step), []
    try:
        for threads in (1, 2, 7):
            k.set_num_threads(threads)
            found.append(stepped(place, arrays, step, half=True)[0])
    finally:
        k.set_num_threads(before)
    for one in found[1:]:
        np.testing.assert_array_equal(one, found[0])


def test_a_shadow_of_halves_is_refused():
    step = Step((8,))
    o = {name: k.Tensor.from_numpy(x) for name, x in made(step).items()}
    parameters = k.Tensor.from_dlpack(torch.zeros(8).bfloat16())
    shadow = k.Tensor.from_numpy(np.zeros(8, np.float32))
    with pytest.raises(k.Error, match=r"adam: shadow: got one of bfloat16 parameters, wanted none"):
        k.adam(
            parameters, o["gradients"], o["exp_avg"], o["exp_avg_sq"],
            k.Tensor.from_numpy(np.array([0, 8])), o["rates"], o["decays"], 0.9, 0.999, 1e-8,
            k.Tensor.from_numpy(factors_of(step)), True, shadow, 0,
        )  # fmt: skip


def test_half_precision_of_another_kind_is_refused():
    step = Step((8,))
    o = {name: k.Tensor.from_numpy(x) for name, x in made(step).items()}
    with pytest.raises(k.Error, match=r"adam: parameters: got float16\[8\] on cpu"):
        k.adam(
            k.Tensor.from_dlpack(torch.zeros(8).half()), o["gradients"], o["exp_avg"],
            o["exp_avg_sq"], k.Tensor.from_numpy(np.array([0, 8])), o["rates"], o["decays"], 0.9,
            0.999, 1e-8, k.Tensor.from_numpy(factors_of(step)), True, None, 0,
        )  # fmt: skip
