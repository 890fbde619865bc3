"""The ops penalize, bias_logits, sample, log_sum_exp, gather_columns and rank_columns. Random
sampling is tested in test_sampling.py; here sampling is greedy, which has one answer."""

from __future__ import annotations

import numpy as np
import torch
from fusewire import kernels as k

from tests.ops.case import LARGE_MATRICES, MATRICES, Arrays, Case, Operands, Tensors, normal

WIDE = ((7, 128256), (64, 50257))


def seen(rng: np.random.Generator, shape: tuple) -> Arrays:
    """Returns the tokens of each row, with one row of all tokens and some without any."""
    rows, vocab = shape
    amounts = np.minimum(rng.integers(0, 40, rows), vocab)
    amounts[:1] = vocab
    tokens = [rng.permutation(vocab)[:amount] for amount in amounts]
    return {
        "x": normal(rng, *shape) * 4,
        "offsets": np.cumsum([0, *amounts]),
        "tokens": np.concatenate([np.empty(0, np.int64), *tokens]),
        "counts": rng.integers(0, 4, amounts.sum()),
        "repetition": rng.uniform(0.5, 2, rows).astype(np.float32),
        "presence": normal(rng, rows),
        "frequency": normal(rng, rows),
    }


def penalized(t: Tensors, shape: tuple) -> torch.Tensor:
    out = t["x"].clone()
    for r, row in enumerate(out):
        of_row = slice(int(t["offsets"][r]), int(t["offsets"][r + 1]))
        tokens, counts = t["tokens"][of_row], t["counts"][of_row]
        x = row[tokens]
        x = torch.where(x < 0, x * t["repetition"][r], x / t["repetition"][r])
        row[tokens] = x - (counts > 0) * t["presence"][r] - counts * t["frequency"][r]
    return out


def penalize(o: Operands, a: Arrays, shape: tuple) -> np.ndarray:
    x = o.rows(a["x"].copy())
    settings = [o.fp32(a[name]) for name in ("repetition", "presence", "frequency")]
    indices = [o.int32(a[name]) for name in ("offsets", "tokens", "counts")]
    k.penalize(x, *indices, *settings, o.place.stream)
    return o.read(x)


def places(rng: np.random.Generator, shape: tuple) -> Arrays:
    """Returns distinct elements of the matrix, and the values to add to them."""
    rows, vocab = shape
    flat = rng.permutation(rows * vocab)[: rows * vocab // 3]
    return {
        "x": normal(rng, *shape),
        "rows": flat // max(vocab, 1),
        "tokens": flat % max(vocab, 1),
        "values": normal(rng, len(flat)) * 5,
    }


def bias(o: Operands, a: Arrays, shape: tuple) -> np.ndarray:
    x = o.rows(a["x"].copy())
    indices = [o.int32(a[name]) for name in ("rows", "tokens")]
    k.bias_logits(x, *indices, o.fp32(a["values"]), o.place.stream)
    return o.read(x)


def settings(o: Operands, rows: int, **given) -> list[k.Tensor]:
    """Returns the arguments of `sample` after the logits; each is given as a scalar or as one value
    per row."""
    usual = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}
    types = {"top_k": np.int32, "seeds": np.int64, "steps": np.int64}
    values = {**usual, "seeds": 0, "steps": 0, **given}
    return [
        o.place.exact(np.broadcast_to(value, rows), types.get(name, np.float32))
        for name, value in values.items()
    ]


def draw(o: Operands, logits: np.ndarray | k.Tensor, **given) -> np.ndarray:
    x = o.rows(logits) if isinstance(logits, np.ndarray) else logits
    tokens = o.int64(np.full(x.shape[0], -7))
    k.sample(tokens, x, *settings(o, x.shape[0], **given), o.place.stream)
    return o.place.numpy(tokens).copy()


def log_sum_exp(o: Operands, a: Arrays, shape: tuple) -> np.ndarray:
    out = o.fp32(np.full(shape[0], np.nan))
    k.log_sum_exp(out, o.rows(a["x"]), o.place.stream)
    return o.place.numpy(out).copy()


def gather(o: Operands, a: Arrays, shape: tuple) -> np.ndarray:
    out = o.fp32(np.full(shape[0], np.nan))
    k.gather_columns(out, o.rows(a["x"]), o.int64(a["columns"]), o.place.stream)
    return o.place.numpy(out).copy()


def rank(o: Operands, a: Arrays, shape: tuple) -> np.ndarray:
    out = o.int32(np.full(shape[0], -7))
    k.rank_columns(out, o.rows(a["x"]), o.int64(a["columns"]), o.place.stream)
    return o.place.numpy(out).copy()


def ranked(t: Tensors, shape: tuple) -> torch.Tensor:
    """Returns the rank of each row's column in the sorted row, from 1."""
    order = t["x"].argsort(dim=-1, descending=True, stable=True)
    return (order == t["columns"][:, None]).nonzero()[:, 1] + 1


CASES = {
    "penalize": Case(
        MATRICES,
        seen,
        penalize,
        penalized,
        fp32=("repetition", "presence", "frequency"),
        gpu_shapes=LARGE_MATRICES,
    ),
    "bias_logits": Case(
        MATRICES,
        places,
        bias,
        lambda t, s: t["x"].index_put((t["rows"], t["tokens"]), t["values"], accumulate=True),
        fp32=("values",),
        gpu_shapes=LARGE_MATRICES,
    ),
    "sample": Case(
        MATRICES,
        lambda rng, s: {"x": normal(rng, *s)},
        lambda o, a, s: draw(o, a["x"], temperature=0.0),
        lambda t, s: t["x"].argmax(-1),
        exact=True,
        gpu_shapes=WIDE,
    ),
    "log_sum_exp": Case(
        MATRICES,
        lambda rng, s: {"x": normal(rng, *s) * 10},
        log_sum_exp,
        lambda t, s: t["x"].logsumexp(-1),
        gpu_shapes=WIDE,
    ),
    "gather_columns": Case(
        MATRICES,
        lambda rng, s: {"x": normal(rng, *s), "columns": rng.integers(0, s[1], s[0])},
        gather,
        lambda t, s: t["x"].gather(1, t["columns"][:, None])[:, 0],
        exact=True,
        gpu_shapes=WIDE,
    ),
    "rank_columns": Case(
        MATRICES,
        lambda rng, s: {  # few distinct values, so that there are ties
            "x": rng.integers(-9, 9, s).astype(np.float32),
            "columns": rng.integers(0, s[1], s[0]),
        },
        rank,
        ranked,
        exact=True,
        gpu_shapes=WIDE,
    ),
}
