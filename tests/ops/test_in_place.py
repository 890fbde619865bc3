"""Where ops.def allows the output to be an input, the result is the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from fusewire import kernels as k
from fusewire.placement import Placement

from tests.ops.case import LAYOUTS, Operands, normal
from tests.tolerance import ulp

SHAPES = [(1, 7), (5, 384), (130, 769)]

# out, x and a residual of one shape; weight [cols]
CALLS: dict[str, Callable] = {
    "layer_norm": lambda out, x, y, w, stream: k.layer_norm(out, x, w, w, 1e-5, stream),
    "rms_norm": lambda out, x, y, w, stream: k.rms_norm(out, x, w, 1e-5, stream),
    "rms_norm_add": lambda out, x, y, w, stream: k.rms_norm_add(out, x, y, w, 1e-5, stream),
    "soft_cap": lambda out, x, y, w, stream: k.soft_cap(out, x, 3.0, stream),
    "activate": lambda out, x, y, w, stream: k.activate(out, x, "gelu_erf", stream),
    "softmax": lambda out, x, y, w, stream: k.softmax(out, x, stream),
    "l2_normalize": lambda out, x, y, w, stream: k.l2_normalize(out, x, stream),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CALLS)
def test_the_output_may_be_the_input(name: str, layout: str, place: Placement):
    o, call = Operands(place, layout), CALLS[name]
    for shape in SHAPES:
        rng = np.random.default_rng(3)
        x, y, w = (normal(rng, *s) for s in (shape, shape, shape[1:]))
        weight = place.floats(w)
        apart = o.room(*shape)
        call(apart, o.rows(x), o.rows(y), weight, place.stream)
        for which in range(2 if name.endswith("add") else 1):
            inputs = [o.rows(x.copy()), o.rows(y.copy())]
            out = inputs[which]
            call(out, *inputs, weight, place.stream)
            np.testing.assert_array_equal(o.read(out), o.read(apart))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_residual_may_be_the_output(layout: str, place: Placement):
    o = Operands(place, layout)
    for m, inner, n in [(1, 64, 64), (7, 100, 33), (64, 768, 768), (129, 3072, 768)]:
        rng = np.random.default_rng(4)
        linear = place.linear(normal(rng, n, inner) / np.float32(inner**0.5), normal(rng, n))
        x, residual = o.rows(normal(rng, m, inner)), normal(rng, m, n)
        apart, together = o.room(m, n), o.rows(residual.copy())
        k.linear_add(apart, x, linear, o.rows(residual), place.stream)
        k.linear_add(together, x, linear, together, place.stream)
        got, wanted = o.read(together), o.read(apart)
        # cuBLASLt's kernels round once more in this case, before they add the residual.
        largest = float(np.abs(wanted).max() + np.abs(residual).max())
        once_more = ulp(largest, place.dtype) if place.dtype != "float32" else 0.0
        assert np.abs(got - wanted).max() <= once_more
