"""The ops activate, gate and soft_cap."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from fusewire import kernels as k

from tests.ops.case import MATRICES, Case, normal

ACTIVATIONS = {
    "none": lambda x: x,
    "gelu_erf": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}
GATES = ("gelu_erf", "silu")

CASES = {
    "activate": Case(
        [(r, c, act) for r, c in MATRICES if c < 2000 for act in ACTIVATIONS],
        lambda rng, s: {"x": normal(rng, *s[:2]) * 4},
        lambda o, a, s: o.result(k.activate, s[:2], o.rows(a["x"]), s[2]),
        lambda t, s: ACTIVATIONS[s[2]](t["x"]),
        gpu_shapes=tuple((613, 3072, act) for act in ACTIVATIONS),
    ),
    "gate": Case(
        [(r, c, act) for r, c in MATRICES if c < 2000 for act in GATES],
        lambda rng, s: {"x": normal(rng, s[0], 2 * s[1])},
        lambda o, a, s: o.result(k.gate, s[:2], o.rows(a["x"]), s[2]),
        lambda t, s: ACTIVATIONS[s[2]](t["x"][:, : s[1]]) * t["x"][:, s[1] :],
        gpu_shapes=tuple((613, 1152, act) for act in GATES),
    ),
    "soft_cap": Case(
        [(r, c, cap) for r, c in MATRICES if c < 2000 for cap in (0.5, 30.0)],
        lambda rng, s: {"x": normal(rng, *s[:2]) * 4},
        lambda o, a, s: o.result(k.soft_cap, s[:2], o.rows(a["x"]), s[2]),
        lambda t, s: s[2] * torch.tanh(t["x"] / s[2]),
        gpu_shapes=((64, 50257, 30.0),),
    ),
}
