"""A float8 e4m3 cache on GPUs: values get the codes of torch's rounding, and attention uses the
values of the codes."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from fusewire import kernels as k
from fusewire.placement import Placement
from fusewire.weights.quantized.weight import float8_e4m3

from tests.ops.cached_attention import ADDED, GPU_ADDED, Added, Step, make_added
from tests.ops.case import LAYOUTS, Operands
from tests.ops.float8_cache import Float8Cache, attended, codes, rounded_to_float8
from tests.ops.paged import GPU_PAGED, PAGED, Cache, Paged, attend, decoding, make_paged
from tests.places import CPU_TARGETS, GPU_FP32, GPU_HALVES, TORCH_DTYPES, rounded
from tests.tolerance import Allowed, allowed_error

ON_GPUS = pytest.mark.parametrize("place", GPU_HALVES, indirect=True)
SCALES = [(1.0, 1.0), (0.037, 2.5)]
FP32 = ("positions", "bias", "cos", "sin")  # fp32 in every precision


def inputs(shape: Paged, place: Placement, seed: int = 0) -> dict[str, np.ndarray]:
    made = make_paged(np.random.default_rng(seed), shape)
    return {n: a if n in FP32 else rounded(a, place.dtype) for n, a in made.items()}


def allowed(arrays, shape: Paged, place: Placement, scales: tuple[float, float]) -> Allowed:
    """Returns the allowed error of attention over the codes' values: that of torch in 16 bits."""
    seen = rounded_to_float8(arrays, shape, scales)

    def reference(dtype: torch.dtype) -> np.ndarray:
        moved = {n: torch.from_numpy(a).to(place.device, dtype) for n, a in seen.items()}
        return attend(moved, shape).double().cpu().numpy()

    truth, same = reference(torch.float64), reference(TORCH_DTYPES[place.dtype])
    return allowed_error(truth, same, place.dtype, max(shape.contexts))


@ON_GPUS
@pytest.mark.parametrize("scales", SCALES, ids=str)
@pytest.mark.parametrize("shape", [*PAGED, *GPU_PAGED], ids=str)
def test_attention_is_that_over_the_numbers_of_its_codes(shape, scales, place: Placement):
    arrays = inputs(shape, place)
    bound = allowed(arrays, shape, place, scales)
    for layout in LAYOUTS:
        got = attended(Operands(place, layout), arrays, shape, scales)
        assert not bound.excess(got), layout


@ON_GPUS
@pytest.mark.parametrize("scale", [1.0, 0.037])
@pytest.mark.parametrize("dim", [128, 20, 1], ids=lambda dim: f"dim{dim}")
def test_every_number_is_stored_as_torch_rounds_it(dim: int, scale: float, place: Placement):
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    numbers = bits.view(TORCH_DTYPES[place.dtype]).float().numpy()
    rows = -(-len(numbers) // (2 * dim))
    k_v = np.resize(numbers, (2, rows, 2 * dim))  # of two heads
    shape = Paged((rows,), (rows,), heads=1, kv_heads=2, dim=dim)
    qkv = np.concatenate([np.zeros((rows, dim), np.float32), *k_v[::1]], axis=1)
    arrays = {**inputs(shape, place), "qkv": qkv}
    cache = Float8Cache(Operands(place, "dense"), arrays, shape, (scale, 1.0))
    # Finite values first, through the check of their range in `floats`.
    cache.store(place.floats(np.nan_to_num(qkv, nan=0.0, posinf=1.0, neginf=1.0)))
    cache.store(_as_they_are(qkv, place))
    got = cache.new_rows()
    wanted = np.concatenate([codes(k_v[0], scale), codes(k_v[1], 1.0)], axis=1)
    nan = wanted & 127 == 127
    np.testing.assert_array_equal(got & 127 == 127, nan)
    np.testing.assert_array_equal(got[~nan], wanted[~nan])


def _as_they_are(array: np.ndarray, place: Placement) -> k.Tensor:
    """Returns a tensor that may have infinities and NaN, which a placement rejects in weights."""
    tensor = torch.from_numpy(array).to(place.device, TORCH_DTYPES[place.dtype])
    found = place.empty(*array.shape)
    torch.from_dlpack(found).copy_(tensor)
    torch.cuda.synchronize()
    return found


@ON_GPUS
@pytest.mark.parametrize("shape", [*ADDED, *GPU_ADDED], ids=str)
def test_a_step_at_once_is_its_parts_to_the_bit(shape: Added, place: Placement):
    made = make_added(np.random.default_rng(4), shape)
    arrays = {n: a if n in FP32 else rounded(a, place.dtype) for n, a in made.items()}
    o, cache = Operands(place, "dense"), partial(Float8Cache, scales=SCALES[1])
    once, parts = (Step(o, arrays, shape, cache) for _ in range(2))
    np.testing.assert_array_equal(once.at_once(), parts.part_by_part())
    for one, other in zip(_planes(once.cache), _planes(parts.cache), strict=True):
        np.testing.assert_array_equal(place.numpy(one), place.numpy(other))


def _planes(cache: Cache) -> tuple[k.Tensor, k.Tensor]:
    return cache.keys, cache.values


@ON_GPUS
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_decoding_on_hopper_takes_one_kernel(dim: int, place: Placement):
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("a GPU of another generation, which rotates, stores and attends by three")
    shape = Added(decoding(700, 33, heads=8, kv_heads=2, dim=dim), dim)
    arrays = make_added(np.random.default_rng(4), shape)
    step = Step(Operands(place, "dense"), arrays, shape, Float8Cache)
    before = place.numpy(step.qkv).copy()
    step.at_once()
    # Separate kernels rotate it in place.
    np.testing.assert_array_equal(place.numpy(step.qkv), before)


@ON_GPUS
@pytest.mark.parametrize("dim", [64, 128, 80])
def test_a_broken_sequence_does_not_break_its_neighbours(dim: int, place: Placement):
    shape = Paged((1, 40, 1, 3, 130), (1300, 90, 7, 520, 130), heads=4, kv_heads=2, dim=dim)
    arrays, o = inputs(shape, place), Operands(place, "dense")
    whole = attended(o, arrays, shape, (1.0, 1.0))
    rows = slice(1, 41)
    broken = {**arrays, "qkv": arrays["qkv"].copy()}
    broken["qkv"][rows, 4 * dim :] = np.nan
    got = attended(o, broken, shape, (1.0, 1.0))
    assert np.isnan(got[rows]).all()
    np.testing.assert_array_equal(np.delete(got, rows, 0), np.delete(whole, rows, 0))


@ON_GPUS
def test_a_scale_forgotten_is_found(place: Placement):
    """The allowed error is small enough to detect a wrong scale."""
    shape = decoding(300, 40, heads=4, kv_heads=2, dim=128)
    arrays, o = inputs(shape, place), Operands(place, "dense")
    bound = allowed(arrays, shape, place, (0.5, 2.0))
    assert not bound.excess(attended(o, arrays, shape, (0.5, 2.0)))
    for wrong in ((0.5, 2.3), (0.6, 2.0)):
        cache = Float8Cache(o, arrays, shape, (0.5, 2.0))
        qkv, out = o.rows(arrays["qkv"]), o.room(2, 512)
        cache.store(qkv)
        cache.scales = wrong
        cache.attend(out, qkv)
        assert bound.excess(o.read(out))


@pytest.mark.parametrize("place", [*CPU_TARGETS, GPU_FP32], indirect=True)
def test_where_there_are_no_kernels_it_is_refused(place: Placement):
    shape = decoding(5, 9, dim=8)
    arrays, o = inputs(shape, place), Operands(place, "dense")
    cache = Float8Cache(o, arrays, shape)
    qkv, out = o.rows(arrays["qkv"]), o.room(2, 16)
    step = Step(o, make_added(np.random.default_rng(4), Added(shape, 0)), Added(shape, 0))
    step.cache = cache
    for call in (lambda: cache.store(qkv), lambda: cache.attend(out, qkv), step.at_once):
        with pytest.raises(
            k.Error, match=r"got a cache in float8_e4m3.*, which no kernel of target"
        ):
            call()


def test_a_scale_is_a_positive_number(place: Placement):
    shape = decoding(5, 9, dim=8)
    arrays, o = inputs(shape, place), Operands(place, "dense")
    for scales, name in (((0.0, 1.0), "k_scale"), ((1.0, np.inf), "v_scale")):
        cache = Float8Cache(o, arrays, shape)
        cache.scales = scales
        with pytest.raises(k.Error, match=f"{name}: got (0|inf), wanted a finite number greater"):
            cache.store(o.rows(arrays["qkv"]))


def test_keys_and_values_have_one_type(place: Placement):
    shape = decoding(5, 9, dim=8)
    arrays, o = inputs(shape, place), Operands(place, "dense")
    cache = Float8Cache(o, arrays, shape)
    cache.values = Cache(o, arrays, shape).values
    with pytest.raises(k.Error, match=r"values: got b?float\d+\[.*, wanted uint8\["):
        cache.store(o.rows(arrays["qkv"]))


def test_torch_has_the_reference():
    numbers = float8_e4m3()
    there = np.isfinite(numbers)
    np.testing.assert_array_equal(codes(numbers[there], 1.0), np.arange(256)[there])
