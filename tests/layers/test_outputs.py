"""A stack that computes only some tokens' outputs returns the same values as for all tokens:
bitwise on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire import kernels as k
from fusewire.placement import Placement

from tests.layers.layer import SPECS, Layer
from tests.places import CPU_TARGETS
from tests.tolerance import Allowed

# Layers of each kind without a window or a position bias: all tokens see the same keys.
ALIKE = {
    **{name: SPECS[name] for name in ("post_norm", "post_norm_odd", "pre_norm")},
    "grouped_heads_soft_cap": SPECS["grouped_heads_soft_cap"],
    "rms_norm_silu_gated": SPECS["rms_norm_silu_gated"],
    "rotary_head_norms_post_norms": {"rotary": True, "head_norms": True, "post_norms": True},
    "parallel": {"pre_norm": True, "parallel": True},
}
LENGTHS = (1, 17, 40)
TOKENS = [0, 1, 3, 17, 18, 57]  # 1, 3 and 2 tokens of the sequences
OFFSETS = [0, 1, 4, 6]


def outputs(layer: Layer, stack: k.Stack, workspace: k.Workspace, x: np.ndarray) -> np.ndarray:
    place = layer.place
    out = place.floats(np.full((len(TOKENS), x.shape[1]), np.nan, np.float32))
    stack.forward_outputs(
        out,
        place.exact(np.array(TOKENS), np.int64),
        place.sequences(np.array(OFFSETS)),
        place.floats(x),
        place.sequences(np.cumsum([0, *LENGTHS])),
        workspace,
        place.exact(layer.positions, np.int32),
        place.stream,
    )
    return place.numpy(out).copy()


@pytest.mark.parametrize("name", ALIKE)
def test_outputs_equal_the_fp64_reference(name: str, place: Placement) -> None:
    layer = Layer(ALIKE[name], place, LENGTHS)
    x = layer.input(seed=4)
    every = layer.allowed_error(x)
    allowed = Allowed(every.truth[TOKENS], every.rms[TOKENS], every.elements[TOKENS])
    workspace = k.Workspace(k.default_allocator(place.device))
    assert not allowed.excess(outputs(layer, layer.built(), workspace, x))


@pytest.mark.parametrize("place", CPU_TARGETS, indirect=True)
@pytest.mark.parametrize("name", ALIKE)
def test_outputs_have_the_bits_of_the_whole(name: str, place: Placement) -> None:
    layer = Layer(ALIKE[name], place, LENGTHS)
    x = layer.input(seed=4)
    one = k.Layer(layer.blocks(), parallel=layer.o.get("parallel", False))
    norm = k.Norm(place.floats(np.linspace(0.5, 2, x.shape[1], dtype=np.float32)))
    stack, workspace, whole = k.Stack([one, one], norm), k.Workspace(), place.floats(x.copy())
    layer.forward(stack, whole, workspace)
    assert np.array_equal(outputs(layer, stack, workspace, x), whole.numpy()[TOKENS])


@pytest.mark.parametrize("options", [{"window": 5}, {"biased": True}])
def test_an_attention_that_goes_by_positions_has_no_outputs(options: dict) -> None:
    layer = Layer(options, lengths=LENGTHS)
    with pytest.raises(k.Error, match="outputs: got some tokens of a sequence for an attention"):
        outputs(layer, layer.built(), k.Workspace(), layer.input(seed=4))


def test_attention_stands_first_where_there_are_outputs() -> None:
    layer = Layer({}, lengths=LENGTHS)
    attention, feed_forward = layer.blocks()
    x = layer.input(seed=4)
    for blocks, number in (([feed_forward, attention], 0), ([attention, attention], 1)):
        with pytest.raises(k.Error, match=f"outputs: got block {number} that"):
            outputs(layer, k.Stack([k.Layer(blocks)]), k.Workspace(), x)
    with pytest.raises(k.Error, match="layers: got none"):
        outputs(layer, k.Stack([]), k.Workspace(), x)
