"""Every op of the table: how to make inputs, how to call it, and its reference in torch.

The reference runs twice, in fp64 (the truth) and in fp32 (the error that is granted). A row is
`CASES[name] = Case(shapes, make, ours, reference)`; an op of the library without a row fails
test_ops.py. Shapes include one, odd, long and empty ones; matrices come both dense and with rows
apart ("strided").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from fusewire import kernels as k

Arrays = dict[str, np.ndarray]
Tensors = dict[str, torch.Tensor]

ACTIVATIONS = {
    "none": lambda x: x,
    "gelu_erf": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


@dataclass(frozen=True)
class Case:
    shapes: list[tuple]
    make: Callable[[np.random.Generator, tuple], Arrays]
    ours: Callable[[Arrays, tuple, bool], np.ndarray]
    reference: Callable[[Tensors, tuple], torch.Tensor]
    exact: bool = field(default=False)  # integers and copies


CASES: dict[str, Case] = {}


def dense(array: np.ndarray) -> k.Tensor:
    return k.Tensor.from_numpy(np.ascontiguousarray(array))


def rows(array: np.ndarray, strided: bool) -> k.Tensor:
    """The matrix as the op gets it: dense, or with its rows apart."""
    if not strided:
        return dense(array)
    tensor = k.matrix(*array.shape)
    tensor.numpy()[...] = array
    return tensor


def output(n_rows: int, cols: int, strided: bool) -> k.Tensor:
    out = k.matrix(n_rows, cols) if strided else k.empty((n_rows, cols))
    out.numpy()[...] = np.nan  # what is not written shows
    return out


def result(call: Callable, shape: tuple[int, int], strided: bool, *arguments) -> np.ndarray:
    out = output(*shape, strided)
    call(out, *arguments)
    return out.numpy().copy()


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


MATRICES = [(1, 1), (1, 7), (5, 16), (3, 33), (17, 384), (9, 769), (130, 1024), (2, 30522), (0, 8)]


def lengths_of(shape: tuple) -> list[int]:
    return list(shape[0])


def batch(shape: tuple) -> k.SequenceBatch:
    return k.SequenceBatch(dense(np.cumsum([0, *lengths_of(shape)]).astype(np.int32)))


def split(x: torch.Tensor, shape: tuple) -> list[torch.Tensor]:
    return list(torch.split(x, lengths_of(shape)))


# linear, linear_add ------------------------------------------------------------------------------

LINEARS = [
    (m, kk, n, act)
    for m, kk, n, act in [
        (1, 1, 1, "none"),
        (1, 64, 33, "gelu_erf"),
        (7, 384, 1152, "none"),
        (15, 31, 65, "relu"),
        (16, 768, 768, "tanh"),
        (113, 100, 97, "silu"),
        (230, 3072, 48, "gelu_tanh"),
        (0, 8, 8, "none"),
    ]
]


def make_linear(rng: np.random.Generator, shape: tuple) -> Arrays:
    m, kk, n = shape[:3]
    return {
        "x": normal(rng, m, kk),
        "weight": normal(rng, n, kk) / np.float32(np.sqrt(kk)),
        "bias": normal(rng, n),
        "residual": normal(rng, m, n),
    }


def packed(a: Arrays) -> k.Linear:
    return k.Linear(dense(a["weight"]), dense(a["bias"]))


CASES["linear"] = Case(
    LINEARS,
    make_linear,
    lambda a, s, strided: result(
        k.linear, (s[0], s[2]), strided, rows(a["x"], strided), packed(a), s[3]
    ),
    lambda t, s: ACTIVATIONS[s[3]](F.linear(t["x"], t["weight"], t["bias"])),
)
CASES["linear_add"] = Case(
    LINEARS,
    make_linear,
    lambda a, s, strided: result(
        k.linear_add,
        (s[0], s[2]),
        strided,
        rows(a["x"], strided),
        packed(a),
        rows(a["residual"], strided),
    ),
    lambda t, s: F.linear(t["x"], t["weight"], t["bias"]) + t["residual"],
)


# norms -------------------------------------------------------------------------------------------


def make_norm(rng: np.random.Generator, shape: tuple) -> Arrays:
    return {
        "x": normal(rng, *shape) * 3 + 1,
        "residual": normal(rng, *shape),
        "weight": normal(rng, shape[1]),
        "bias": normal(rng, shape[1]),
    }


def rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


CASES["layer_norm"] = Case(
    MATRICES,
    make_norm,
    lambda a, s, strided: result(
        k.layer_norm, s, strided, rows(a["x"], strided), dense(a["weight"]), dense(a["bias"]), 1e-12
    ),
    lambda t, s: F.layer_norm(t["x"], s[1:], t["weight"], t["bias"], 1e-12),
)
CASES["add_layer_norm"] = Case(
    MATRICES,
    make_norm,
    lambda a, s, strided: result(
        k.add_layer_norm,
        s,
        strided,
        rows(a["x"], strided),
        rows(a["residual"], strided),
        dense(a["weight"]),
        None,
        1e-5,
    ),
    lambda t, s: F.layer_norm(t["x"] + t["residual"], s[1:], t["weight"], None, 1e-5),
)
CASES["rms_norm"] = Case(
    MATRICES,
    make_norm,
    lambda a, s, strided: result(
        k.rms_norm, s, strided, rows(a["x"], strided), dense(a["weight"]), 1e-6
    ),
    lambda t, s: rms(t["x"], t["weight"]),
)
CASES["add_rms_norm"] = Case(
    MATRICES,
    make_norm,
    lambda a, s, strided: result(
        k.add_rms_norm,
        s,
        strided,
        rows(a["x"], strided),
        rows(a["residual"], strided),
        dense(a["weight"]),
        1e-6,
    ),
    lambda t, s: rms(t["x"] + t["residual"], t["weight"]),
)


def make_embedding(rng: np.random.Generator, shape: tuple) -> Arrays:
    tokens, hidden = shape
    return {
        "ids": rng.integers(0, 50, tokens),
        "positions": rng.integers(0, 40, tokens, dtype=np.int32),
        "types": rng.integers(0, 2, tokens, dtype=np.int32),
        "word": normal(rng, 50, hidden),
        "position": normal(rng, 40, hidden),
        "token_type": normal(rng, 2, hidden),
        "weight": normal(rng, hidden),
        "bias": normal(rng, hidden),
    }


CASES["embed_layer_norm"] = Case(
    [s for s in MATRICES if s[1] < 2000],
    make_embedding,
    lambda a, s, strided: result(
        k.embed_layer_norm,
        s,
        strided,
        *(dense(a[name]) for name in ("ids", "positions", "types", "word", "position")),
        *(dense(a[name]) for name in ("token_type", "weight", "bias")),
        1e-12,
    ),
    lambda t, s: F.layer_norm(
        t["word"][t["ids"]]
        + t["token_type"][t["types"].long()]
        + t["position"][t["positions"].long()],
        s[1:],
        t["weight"],
        t["bias"],
        1e-12,
    ),
)


# activations -------------------------------------------------------------------------------------

CASES["activate"] = Case(
    [(r, c, act) for r, c in MATRICES if c < 2000 for act in ACTIVATIONS],
    lambda rng, s: {"x": normal(rng, *s[:2]) * 4},
    lambda a, s, strided: result(k.activate, s[:2], strided, rows(a["x"], strided), s[2]),
    lambda t, s: ACTIVATIONS[s[2]](t["x"]),
)
CASES["gate"] = Case(
    [(r, c, act) for r, c in MATRICES if c < 2000 for act in ("gelu_erf", "silu")],
    lambda rng, s: {"x": normal(rng, s[0], 2 * s[1])},
    lambda a, s, strided: result(k.gate, s[:2], strided, rows(a["x"], strided), s[2]),
    lambda t, s: ACTIVATIONS[s[2]](t["x"][:, : s[1]]) * t["x"][:, s[1] :],
)


# attention: (lengths, heads, head_dim, window, with a position bias) ------------------------------

ATTENTIONS = [
    ((1,), 1, 1, 0, False),
    ((1, 2, 3), 2, 8, 0, False),
    ((33, 1, 16, 64), 12, 32, 0, False),
    ((127, 128, 129), 3, 64, 0, True),
    ((40, 5), 2, 80, 0, True),
    ((700,), 1, 96, 0, False),
    ((300, 17), 2, 128, 64, False),
    ((513, 90), 2, 20, 3, False),
]
LONG_ATTENTION = ((8192,), 1, 64, 0, False)


def make_attention(rng: np.random.Generator, shape: tuple) -> Arrays:
    lengths, heads, dim = shape[:3]
    span = max(lengths) + 3
    return {
        "qkv": normal(rng, sum(lengths), 3 * heads * dim) * 2,
        "bias": normal(rng, heads, 2 * span - 1),
    }


def attend(t: Tensors, shape: tuple) -> torch.Tensor:
    _, heads, dim, window, biased = shape
    span = (t["bias"].shape[1] + 1) // 2
    outs = []
    for qkv in split(t["qkv"], shape):
        n = len(qkv)
        q, key, v = qkv.view(n, 3, heads, dim).permute(1, 2, 0, 3)
        distance = torch.arange(n)[None, :] - torch.arange(n)[:, None]
        scores = q @ key.transpose(-1, -2) / dim**0.5
        if biased:
            scores = scores + t["bias"][:, distance + span - 1]
        if window:
            scores = scores.masked_fill(distance.abs() > window, float("-inf"))
        outs.append((scores.softmax(-1) @ v).transpose(0, 1).reshape(n, heads * dim))
    return torch.cat(outs)


CASES["attention"] = Case(
    ATTENTIONS,
    make_attention,
    lambda a, s, strided: result(
        k.attention,
        (sum(s[0]), s[1] * s[2]),
        strided,
        rows(a["qkv"], strided),
        batch(s),
        s[1],
        s[2] ** -0.5,
        s[3],
        dense(a["bias"]) if s[4] else None,
    ),
    attend,
)


def rotate_in_place(a: Arrays, s: tuple, strided: bool) -> np.ndarray:
    qkv = rows(a["qkv"].copy(), strided)
    k.rotary(qkv, dense(a["positions"]), dense(a["cos"]), dense(a["sin"]), s[1])
    return qkv.numpy().copy()


def make_rotary(rng: np.random.Generator, shape: tuple) -> Arrays:
    tokens, heads, dim = shape
    angles = np.outer(np.arange(50), 100.0 ** -(np.arange(dim // 2) / max(dim // 2, 1)))
    return {
        "qkv": normal(rng, tokens, 3 * heads * dim),
        "positions": rng.integers(0, 50, tokens, dtype=np.int32),
        "cos": np.cos(angles).astype(np.float32),
        "sin": np.sin(angles).astype(np.float32),
    }


def rotate(t: Tensors, shape: tuple) -> torch.Tensor:
    tokens, heads, dim = shape
    x = t["qkv"].view(tokens, 3, heads, dim)
    cos, sin = (t[name][t["positions"].long()][:, None, None, :] for name in ("cos", "sin"))
    a, b = x[:, :2, :, : dim // 2], x[:, :2, :, dim // 2 :]
    turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    return torch.cat([turned, x[:, 2:]], 1).reshape(tokens, 3 * heads * dim)


CASES["rotary"] = Case(
    [(1, 1, 2), (5, 3, 64), (40, 2, 80), (0, 1, 4)], make_rotary, rotate_in_place, rotate
)


# rows --------------------------------------------------------------------------------------------

POOLINGS = {
    "cls": lambda x: x[0],
    "mean": lambda x: x.mean(0),
    "max": lambda x: x.amax(0),
    "last": lambda x: x[-1],
}
CASES["pool"] = Case(
    [
        (lengths, hidden, kind)
        for lengths, hidden in [((1,), 1), ((3, 1, 7), 33), ((128, 2), 384)]
        for kind in POOLINGS
    ],
    lambda rng, s: {"x": normal(rng, sum(s[0]), s[1])},
    lambda a, s, strided: result(
        k.pool, (len(s[0]), s[1]), strided, rows(a["x"], strided), batch(s), s[2]
    ),
    lambda t, s: torch.stack([POOLINGS[s[2]](x) for x in split(t["x"], s)]),
)
CASES["softmax"] = Case(
    MATRICES,
    lambda rng, s: {"x": normal(rng, *s) * 10},
    lambda a, s, strided: result(k.softmax, s, strided, rows(a["x"], strided)),
    lambda t, s: t["x"].softmax(-1),
)
CASES["l2_normalize"] = Case(
    MATRICES,
    lambda rng, s: {"x": normal(rng, *s)},
    lambda a, s, strided: result(k.l2_normalize, s, strided, rows(a["x"], strided)),
    lambda t, s: F.normalize(t["x"], dim=-1, eps=1e-12),
)


def largest(a: Arrays, s: tuple, strided: bool) -> np.ndarray:
    values, indices = k.empty((s[0], s[2])), k.empty((s[0], s[2]), "int64")
    k.top_k(values, indices, rows(a["x"], strided))
    picked = np.take_along_axis(a["x"], indices.numpy(), 1)
    assert np.array_equal(picked, values.numpy()), "indices and values disagree"
    return values.numpy().copy()


CASES["top_k"] = Case(
    [(1, 1, 1), (3, 40, 40), (2, 30522, 5), (5, 100, 7), (0, 9, 2)],
    lambda rng, s: {"x": normal(rng, *s[:2])},
    largest,
    lambda t, s: t["x"].topk(s[2]).values,
    exact=True,
)
CASES["gather_rows"] = Case(
    [(4, 9, 6), (1, 1, 1), (30, 384, 100), (3, 5, 0)],
    lambda rng, s: {"x": normal(rng, *s[:2]), "rows": rng.integers(0, s[0], s[2])},
    lambda a, s, strided: result(
        k.gather_rows, (s[2], s[1]), strided, rows(a["x"], strided), dense(a["rows"])
    ),
    lambda t, s: t["x"][t["rows"]],
    exact=True,
)
