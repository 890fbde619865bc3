"""The ops log_softmax and beam_candidates. A shape of the latter is (beams of each group,
vocabulary, candidates of each group, whether the rows are normalized)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from fusewire import kernels as k
from numpy.typing import NDArray

from tests.ops.case import LARGE_MATRICES, MATRICES, Arrays, Case, Operands, Tensors, normal

UNUSED = -1


class Groups(NamedTuple):
    beams: tuple[int, ...]
    vocab: int
    counts: tuple[int, ...]
    normalized: bool = False

    @property
    def most(self) -> int:
        return max(self.counts)


class Candidates(NamedTuple):
    """The candidates of each group, [groups, most]."""

    scores: NDArray[np.float32]
    log_probs: NDArray[np.float32]
    beams: NDArray[np.int32]
    tokens: NDArray[np.int32]


def candidates(
    o: Operands, logits: NDArray[np.float32], beam_scores: NDArray[np.float32], groups: Groups
) -> Candidates:
    shape = (len(groups.beams), groups.most)
    floats = [o.fp32(np.full(shape, 7)) for _ in range(2)]
    indices = [o.int32(np.full(shape, 7)) for _ in range(2)]
    k.beam_candidates(
        *floats,
        *indices,
        o.rows(logits),
        o.int32(np.cumsum([0, *groups.beams])),
        o.int32(np.array(groups.counts)),
        o.fp32(beam_scores),
        groups.normalized,
        o.place.stream,
    )
    return Candidates(*(o.place.numpy(t).copy() for t in (*floats, *indices)))


def log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns log-probabilities. A row of -inf stays so: such a beam has no candidates."""
    most = logits.max(-1, keepdims=True)
    most[np.isneginf(most)] = 0
    with np.errstate(divide="ignore", invalid="ignore"):
        out = logits - most - np.log(np.exp(logits - most).sum(-1, keepdims=True))
    return np.where(np.isneginf(logits), -np.inf, out)


def oracle(logits: NDArray, beam_scores: NDArray, groups: Groups) -> Candidates:
    """Returns the candidates by sorting all scores of a group, in the precision of the
    arguments."""
    log_probs = logits if groups.normalized else log_softmax(logits)
    scores = beam_scores[:, None] + log_probs
    begin, rows = 0, []
    for beams, count in zip(groups.beams, groups.counts, strict=True):
        of_group = scores[begin : begin + beams].reshape(-1)
        order = np.argsort(-of_group, kind="stable")[:count]
        order = order[of_group[order] > -np.inf]
        used = [
            of_group[order],
            log_probs[begin : begin + beams].reshape(-1)[order],
            order // groups.vocab,
            order % groups.vocab,
        ]
        fills = (-np.inf, -np.inf, UNUSED, UNUSED)
        left = (0, groups.most - len(order))
        rows.append([np.pad(u, left, constant_values=f) for u, f in zip(used, fills, strict=True)])
        begin += beams
    return Candidates(*(np.stack(column) for column in zip(*rows, strict=True)))


def make(rng: np.random.Generator, groups: Groups) -> Arrays:
    """Returns multiples of 1/16, which every element type represents and fp32 adds exactly; many
    are equal."""
    rows = sum(groups.beams)
    return {
        "x": rng.integers(-100, 100, (rows, groups.vocab)).astype(np.float32) / 16,
        "beam_scores": rng.integers(-30, 0, rows).astype(np.float32) / 32,
    }


def ours(o: Operands, a: Arrays, groups: Groups) -> np.ndarray:
    got = candidates(o, a["x"], a["beam_scores"], groups)
    return np.concatenate([got.beams, got.tokens], 1)


def reference(t: Tensors, groups: Groups) -> torch.Tensor:
    logits, beam_scores = (t[name].double().cpu().numpy() for name in ("x", "beam_scores"))
    wanted = oracle(logits, beam_scores, groups)
    return torch.from_numpy(np.concatenate([wanted.beams, wanted.tokens], 1))


def normalize(o: Operands, a: Arrays, shape: tuple) -> np.ndarray:
    """Normalizes into strided rows, whose gaps must not change."""
    rows, cols = shape
    wide = np.full((rows, cols + 3), 7, np.float32)
    out = o.fp32(wide)
    k.log_softmax(out.columns(0, cols), o.rows(a["x"]), o.place.stream)
    got = o.place.numpy(out).copy()
    assert (got[:, cols:] == 7).all()
    return got[:, :cols]


GROUPS = [
    Groups((1,), 1, (2,)),
    Groups((4,), 5, (8,)),
    Groups((1,), 40, (8,), True),
    Groups((4, 1, 3), 1031, (8, 2, 12)),
    Groups((2, 5), 30522, (4, 10), True),
    Groups((5, 4), 8193, (20, 8)),
]
GPU_GROUPS = [Groups((4,) * 128, 32128, (8,) * 128), Groups((5,), 260003, (20,))]

CASES = {
    "log_softmax": Case(
        MATRICES,
        lambda rng, s: {"x": normal(rng, *s) * 10},
        normalize,
        lambda t, s: t["x"].log_softmax(-1),
        gpu_shapes=LARGE_MATRICES,
    ),
    "beam_candidates": Case(
        GROUPS, make, ours, reference, exact=True, fp32=("beam_scores",), gpu_shapes=GPU_GROUPS
    ),
}
