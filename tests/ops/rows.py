"""The ops pool, softmax, l2_normalize, top_k and gather_rows."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from fusewire import kernels as k

from tests.ops.attention import RAGGED_256
from tests.ops.case import LARGE_MATRICES, MATRICES, Arrays, Case, Operands, Tensors, normal

POOLINGS = {
    "cls": lambda x: x[0],
    "mean": lambda x: x.mean(0),
    "max": lambda x: x.amax(0),
    "last": lambda x: x[-1],
}


def pools(*sizes: tuple) -> list[tuple]:
    return [(lengths, hidden, kind) for lengths, hidden in sizes for kind in POOLINGS]


def largest(o: Operands, a: Arrays, shape: tuple) -> np.ndarray:
    n_rows, _, count = shape
    values = o.place.floats(np.full((n_rows, count), np.nan, np.float32))
    indices = o.int64(np.full((n_rows, count), -1))
    k.top_k(values, indices, o.rows(a["x"]), o.place.stream)
    return np.concatenate([o.place.numpy(values), o.place.numpy(indices)], 1)


def in_order(t: Tensors, shape: tuple) -> torch.Tensor:
    """Returns values | indices; ties by lower index."""
    values, indices = t["x"].sort(dim=-1, descending=True, stable=True)
    return torch.cat([values[:, : shape[2]], indices[:, : shape[2]].to(values.dtype)], 1)


CASES = {
    "pool": Case(
        pools(((1,), 1), ((3, 1, 7), 33), ((128, 2), 384)),
        lambda rng, s: {"x": normal(rng, sum(s[0]), s[1])},
        lambda o, a, s: o.result(
            k.pool, (len(s[0]), s[1]), o.rows(a["x"]), o.sequences(s[0]), s[2]
        ),
        lambda t, s: torch.stack([POOLINGS[s[2]](x) for x in torch.split(t["x"], list(s[0]))]),
        gpu_shapes=tuple(pools((RAGGED_256, 768), ((8192, 1), 192))),
    ),
    "softmax": Case(
        MATRICES,
        lambda rng, s: {"x": normal(rng, *s) * 10},
        lambda o, a, s: o.result(k.softmax, s, o.rows(a["x"])),
        lambda t, s: t["x"].softmax(-1),
        gpu_shapes=LARGE_MATRICES,
    ),
    "l2_normalize": Case(
        MATRICES,
        lambda rng, s: {"x": normal(rng, *s)},
        lambda o, a, s: o.result(k.l2_normalize, s, o.rows(a["x"])),
        lambda t, s: F.normalize(t["x"], dim=-1, eps=1e-12),
        gpu_shapes=LARGE_MATRICES,
    ),
    "top_k": Case(
        [(1, 1, 1), (3, 40, 40), (2, 30522, 5), (5, 100, 7), (0, 9, 2)],
        lambda rng, s: {"x": normal(rng, *s[:2])},
        largest,
        in_order,
        exact=True,
        gpu_shapes=((40, 30522, 10), (4, 300, 64)),
    ),
    "gather_rows": Case(
        [(4, 9, 6), (1, 1, 1), (30, 384, 100), (3, 5, 0)],
        lambda rng, s: {"x": normal(rng, *s[:2]), "rows": rng.integers(0, s[0], s[2])},
        lambda o, a, s: o.result(k.gather_rows, (s[2], s[1]), o.rows(a["x"]), o.int64(a["rows"])),
        lambda t, s: t["x"][t["rows"]],
        exact=True,
        gpu_shapes=((8192, 768, 1229),),
    ),
}
