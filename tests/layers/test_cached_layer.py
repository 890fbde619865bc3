"""A decoder layer over a paged cache equals causal attention over whole sequences in fp64, however
the tokens arrive: at once, one by one, or as prompt chunks together with decoding sequences."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire import kernels as k
from fusewire.placement import Placement

from tests import tolerance
from tests.layers.cached_layer import CACHED_SPECS, GPU_CACHED_SPECS, STEPS, CachedLayer
from tests.layers.layer import Layer
from tests.places import GPU


def check(layer: CachedLayer, steps: list[tuple[int, ...]]) -> None:
    x = layer.input(seed=4)
    assert not layer.allowed_error(x).excess(layer.forward_cached(layer.built(), x, steps))


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("name", CACHED_SPECS)
def test_a_cached_layer_equals_its_causal_fp64_reference(
    name: str, steps: str, place: Placement
) -> None:
    check(CachedLayer(CACHED_SPECS[name], place), STEPS[steps])


@pytest.mark.parametrize("place", GPU, indirect=True)
@pytest.mark.parametrize("name", GPU_CACHED_SPECS)
def test_a_cached_layer_of_a_published_size_equals_its_reference(
    name: str, place: Placement
) -> None:
    layer = CachedLayer(GPU_CACHED_SPECS[name], place, (300, 17, 128))
    check(layer, [(200, 0, 128), (99, 16, 0), (1, 1, 0)])


def test_layers_of_one_shape_share_plans_whatever_their_attention() -> None:
    workspace = k.Workspace()
    for options in ({}, {"soft_cap": 2.0}, {"scale": 0.5}, {"window": 3}):
        run_once(CachedLayer({"pre_norm": True, **options}), workspace)
    assert workspace.stats()["plans_recorded"] == 1


@pytest.mark.parametrize(
    "options",
    [
        {"heads": 2, "kv_heads": 1},
        {"heads": 2, "head_dim": 16},
        {"parallel": True},
        {"post_norms": True},
        {"gated": True},
        {"intermediate": 96},
        {"first_norm": False},
    ],
    ids=str,
)
def test_what_decides_about_temporaries_makes_a_plan_of_its_own(options: dict) -> None:
    workspace = k.Workspace()
    run_once(CachedLayer({"pre_norm": True}), workspace)
    run_once(CachedLayer({"pre_norm": True, **options}), workspace)
    assert workspace.stats()["plans_recorded"] == 2


def run_once(layer: CachedLayer, workspace: k.Workspace) -> None:
    """Runs five new tokens of one sequence."""
    place = layer.place
    batch = k.PagedBatch(
        place.sequences(np.array([0, 5])),
        k.Tensor.from_numpy(np.array([5], np.int32)),
        k.Tensor.from_numpy(np.array([[0]], np.int32)),
        8,
    )
    x = place.floats(layer.input(seed=1)[:5].copy())
    layer.built().forward_cached(x, batch, layer.planes(1), workspace)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 4, "kv_heads": 3}, "kv_heads: got 3, wanted a divisor of heads 4"),
        ({"parallel": True}, "parallel: got a block with a residual_norm, wanted none"),
        ({"soft_cap": -1.0}, r"soft_cap: got -1, wanted 0 \(none\) or more"),
    ],
)
def test_a_specification_that_makes_no_sense_is_refused(options: dict, message: str) -> None:
    with pytest.raises(k.Error, match=message):
        CachedLayer(options).built()


def test_a_head_norm_of_another_size_is_refused() -> None:
    layer = Layer({"head_norms": True})
    layer.norms["k_norm"] = layer.norms["output_norm"]
    with pytest.raises(k.Error, match=r"k_norm: got weight\[64\], wanted an rms_norm over \[32\]"):
        layer.built()


def test_a_stack_has_planes_of_its_own_for_each_attention() -> None:
    layer = CachedLayer(CACHED_SPECS["llama"])
    one, x = k.Layer(layer.blocks()), layer.input(seed=5)
    expected = x
    for _ in range(3):
        expected = layer.forward_cached(k.Stack([one]), expected, STEPS["chunks_beside_decoding"])
    together = layer.forward_cached(k.Stack([one] * 3), x, STEPS["token_by_token"], layers=3)
    np.testing.assert_allclose(together, expected, rtol=0, atol=tolerance.BATCHED_VERSUS_ALONE)


def test_planes_that_do_not_fit_the_stack_are_refused() -> None:
    layer = CachedLayer(CACHED_SPECS["gpt2"])
    two = k.Stack([k.Layer(layer.blocks())] * 2)
    with pytest.raises(k.Error, match=r"planes: got .*, wanted at least 4 planes"):
        layer.forward_cached(two, layer.input(seed=1), STEPS["whole"])
