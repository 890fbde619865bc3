"""The op fork_beams. A shape has the beams of each group, the number of ended searches between
them, the candidates of each, the number of tokens that end a text, and the width of the block
tables."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from fusewire import kernels as k

from tests.ops.case import Arrays, Case, Operands, Tensors

VOCAB = 50
PAGE = 1000  # page numbers start here, so that they differ from all other values


class Forks(NamedTuple):
    beams: tuple[int, ...]
    ended: int  # ended searches whose rows are still in the table
    most: int
    ends: int
    width: int
    begins: bool = False  # whether every other group begins a new page


def make(rng: np.random.Generator, shape: Forks) -> Arrays:
    beams = np.array(shape.beams)
    searches = len(beams) + shape.ended
    order = rng.permutation(searches)  # of all searches in the table
    of_search = np.full(searches, 3)
    of_search[order[: len(beams)]] = beams
    firsts = np.cumsum([0, *of_search])
    rows, groups = int(beams.sum()), []
    fresh = np.full(rows, -1)
    child = 0
    for index, count in enumerate(shape.beams):
        search = order[index]
        place = int(rng.integers(shape.width))
        groups.append([search, firsts[search], child, count, place])
        if shape.begins and index % 2 == 0:
            fresh[child : child + count] = 5 * PAGE + child + np.arange(count)
        child += count
    parents = [rng.integers(0, count, shape.most) for count in of_search]
    beams_of = np.array(parents)
    tokens = rng.integers(0, VOCAB, beams_of.shape)
    left_out = rng.integers(0, 4, searches) == 0  # the second half of their candidates is invalid
    beams_of[left_out, shape.most // 2 :] = tokens[left_out, shape.most // 2 :] = -1
    scores = -np.sort(rng.integers(0, 1000, beams_of.shape), -1).astype(np.float32)
    return {
        "scores": scores,
        "beams": beams_of,
        "tokens": tokens,
        "table": PAGE + np.arange(int(firsts[-1]) * shape.width).reshape(-1, shape.width),
        "groups": np.array(groups).reshape(len(groups), 5),
        "fresh": fresh,
        "ends": rng.integers(-1, VOCAB, (len(groups), shape.ends)),
    }


def ours(o: Operands, a: Arrays, shape: Forks) -> np.ndarray:
    """Returns [rows, id | score | copy from | copy to | block table]; the additional last row
    belongs to no group."""
    rows = sum(shape.beams) + 1
    ids, copies = o.int64(np.full(rows, 7)), o.int64(np.full((2, rows), 7))
    scores, table = o.fp32(np.full(rows, 7)), o.int32(np.full((rows, shape.width), 7))
    k.fork_beams(
        ids,
        scores,
        table,
        copies,
        o.fp32(a["scores"]),
        *(o.int32(a[name]) for name in ("beams", "tokens", "table", "groups")),
        o.int32(np.append(a["fresh"], -1)),
        o.int32(a["ends"]),
        o.place.stream,
    )
    read = [o.place.numpy(each) for each in (ids, scores, copies, table)]
    return np.column_stack([read[0], read[1], read[2].T, read[3]]).astype(np.float32)


def reference(t: Tensors, shape: Forks) -> torch.Tensor:
    a = {name: tensor.cpu().numpy() for name, tensor in t.items()}
    rows = np.full((sum(shape.beams) + 1, 4 + shape.width), 7.0)
    rows[:, 2:4] = -1
    for group, ends in zip(a["groups"].astype(int), a["ends"], strict=True):
        search, first, child, count, place = group
        table = a["table"][first : first + count]
        found = [
            (parent, token, score)
            for parent, token, score in zip(
                a["beams"][search].astype(int),
                a["tokens"][search],
                a["scores"][search],
                strict=True,
            )
            if parent >= 0 and token not in ends
        ][:count]
        found += [(beam, 0, -np.inf) for beam in range(len(found), count)]
        parents = [parent for parent, _, _ in found]
        dead = [beam for beam in range(count) if beam not in parents]
        for i, (parent, token, score) in enumerate(found):
            row = rows[child + i]
            row[:2], row[4:] = (token, score), table[parent]
            if a["fresh"][child + i] >= 0:
                row[4 + place] = a["fresh"][child + i]
            elif parent in parents[:i]:
                row[4 + place] = table[dead.pop(0), place]
                row[2:4] = table[parent, place], row[4 + place]
    return torch.from_numpy(rows)


SHAPES = [
    Forks((1,), 0, 2, 1, 1),
    Forks((4,), 0, 8, 1, 3),
    Forks((2, 5, 1), 2, 15, 2, 4, True),
    Forks((4, 4, 4), 1, 12, 0, 8),
    Forks((33, 7), 1, 70, 3, 5, True),
]

CASES = {
    "fork_beams": Case(
        SHAPES,
        make,
        ours,
        reference,
        exact=True,
        fp32=("scores",),
        gpu_shapes=(
            Forks((512, 3, 512), 1, 1024, 1, 8),
            Forks((4,) * 128, 9, 8, 1, 128, True),
        ),
    ),
}
