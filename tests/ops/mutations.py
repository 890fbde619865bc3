"""Wrong kernels, made from the right ones: each of them fails its op's test (test_mutations.py).

A row is `WRONG[op][what is wrong] = (shape, change)`: the change returns another `ours` of a case,
which modifies its output, or the inputs that it takes. An op without a row here, or in
training_mutations.py, fails test_mutations.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from fusewire import kernels as k

from tests.ops.attention import Attention, window
from tests.ops.beam_forks import Forks
from tests.ops.beams import Groups
from tests.ops.cached_attention import Added
from tests.ops.case import Arrays, Operands
from tests.ops.gemm import packed
from tests.ops.paged import Copies, Paged, decoding

Ours = Callable[[Operands, Arrays, Any], np.ndarray]
Change = Callable[[Ours], Ours]
Wrong = dict[str, tuple[Any, Change]]


def output(change: Callable[[np.ndarray], Any]) -> Change:
    """Returns a change whose `change` modifies the output in place."""

    def changed(ours: Ours) -> Ours:
        def wrong(o: Operands, arrays: Arrays, shape: Any) -> np.ndarray:
            out = ours(o, arrays, shape).copy()
            change(out)
            return out

        return wrong

    return changed


def inputs(**changes: Callable[[np.ndarray], np.ndarray]) -> Change:
    """Returns a change that modifies some inputs."""

    def changed(ours: Ours) -> Ours:
        def wrong(o: Operands, arrays: Arrays, shape: Any) -> np.ndarray:
            others = {
                name: change(arrays[name]).astype(arrays[name].dtype)
                for name, change in changes.items()
            }
            return ours(o, {**arrays, **others}, shape)

        return wrong

    return changed


def settings(shape: Any) -> Change:
    """Returns a change in which the kernel computes for another shape of inputs of the same
    sizes."""
    return lambda ours: lambda o, arrays, _: ours(o, arrays, shape)


def dropped(array: np.ndarray) -> np.ndarray:
    return 0 * array


def without_last(array: np.ndarray) -> np.ndarray:
    """Returns the array with zeros in the last column."""
    kept = array.copy()
    kept[..., -1] = 0
    return kept


def without_first_row(array: np.ndarray) -> np.ndarray:
    kept = array.copy()
    kept[0] = 0
    return kept


def next_one(array: np.ndarray) -> np.ndarray:
    return array + 1


def other_row(array: np.ndarray) -> np.ndarray:
    return np.roll(array, 1, 0)


def zero_tail(out: np.ndarray) -> None:
    out[-1, -(out.shape[1] // 8) :] = 0


def zero_last(out: np.ndarray) -> None:
    out.flat[-1] = 0


def zero_small(out: np.ndarray) -> None:
    """Sets the smallest 99 % of each row to zero."""
    out[out < np.quantile(out, 0.99, axis=1, keepdims=True)] = 0


def repeat_row(out: np.ndarray) -> None:
    out[-1] = out[-2]


def swap_heads(dim: int) -> Callable[[np.ndarray], None]:
    """Swaps the first two heads."""

    def swap(out: np.ndarray) -> None:
        out[:, : 2 * dim] = np.roll(out[:, : 2 * dim], dim, 1)

    return swap


def other_searches(groups: np.ndarray) -> np.ndarray:
    return np.column_stack([np.roll(groups[:, 0], 1), groups[:, 1:]])


def divide_by_n_less_1(out: np.ndarray) -> None:
    """Turns the result of an RMSNorm into that with the mean over n - 1."""
    out *= ((out.shape[1] - 1) / out.shape[1]) ** 0.5


def rows(shape: Any) -> Wrong:
    """Returns mistakes that are possible with any matrix."""
    return {
        "the tail of a row is zero": (shape, output(zero_tail)),
        "the last number is zero": (shape, output(zero_last)),
        "the last row is the one before": (shape, output(repeat_row)),
    }


LINEAR = (15, 31, 65, "relu")
PLAIN = (113, 100, 97, "none")
NORM = (3, 33)
NORMED = (33, 31, 97, True, "none")
ACTIVATED = (33, 31, 97, "gelu_erf", False)
GATED = (33, 31, 97, "silu", True)
GATED_LINEAR = (7, 384, 64, "silu")
HEADS = (40, 8, 80)
ATTENTION = Attention((300, 17), 2, 128, **window(64))
NARROW_WINDOW = Attention((513, 90), 2, 20, **window(3))
BIASED = Attention((40, 5), 2, 80, biased=True)
CROSS = Attention((9, 40, 1), 2, 64, key_lengths=(200, 3, 129))
PROMPTS = Paged((1, 5, 60, 3), (200, 5, 300, 700), heads=4, kv_heads=2, page_size=8)
WINDOWS = decoding(200, 9, heads=4, kv_heads=2, left=4, soft_cap=3.0)
SHORT = decoding(2, 3, 40, dim=8, page_size=4)
BIASED_STEPS = decoding(90, 600, heads=4, kv_heads=4, dim=32, biased=True)
COPIES = Copies(3, 9, 3, 11, 4, 4)
STEP = Added(Paged((4, 1, 3), (34, 700, 513), heads=4, kv_heads=1, dim=128), 128)
POOL = ((3, 1, 7), 33, "mean")
FORKS = Forks((4, 4, 4), 1, 12, 2, 8)
BEAMS = Groups((4, 3), 1031, (8, 6))
NORMALIZED = BEAMS._replace(normalized=True)
IMAGES = (((43, 44), (14, 14), (28, 56)), 3, 14, 2)

WRONG: dict[str, Wrong] = {
    "linear": {
        **rows(PLAIN),
        "no bias": (PLAIN, inputs(bias=dropped)),
        "no activation": (LINEAR, settings((15, 31, 65, "none"))),
        "one term too few": (PLAIN, inputs(x=without_last)),
        "the bias of the next column": (PLAIN, inputs(bias=other_row)),
    },
    "linear_add": {
        **rows(PLAIN),
        "no bias": (PLAIN, inputs(bias=dropped)),
        "no residual": (PLAIN, inputs(residual=dropped)),
        "the residual of the next row": (PLAIN, inputs(residual=other_row)),
    },
    "norm_linear": {
        **rows(NORMED),
        "no bias of the norm": (NORMED, inputs(norm_bias=dropped)),
        "no bias of the product": (NORMED, inputs(bias=dropped)),
        "an RMSNorm": (NORMED, settings((33, 31, 97, False, "none"))),
        "the rows as they are": (
            NORMED,
            lambda ours: (
                lambda o, a, s: o.result(k.linear, (s[0], s[2]), o.rows(a["x"]), packed(o, a), s[4])
            ),
        ),
    },
    "activated_linear": {
        **rows(ACTIVATED),
        "no activation": (ACTIVATED, settings((33, 31, 97, "none", False))),
        "no residual": (ACTIVATED, inputs(residual=dropped)),
        "halves swapped": (GATED, inputs(x=lambda x: np.roll(x, 31, 1))),
    },
    "gated_linear": {
        **rows(GATED_LINEAR),
        "no activation": (GATED_LINEAR, settings((7, 384, 64, "none"))),
        "no bias": (GATED_LINEAR, inputs(bias=dropped)),
        "halves swapped": (GATED_LINEAR, inputs(weight=lambda w: np.roll(w, 64, 0))),
        "the factor of the next column": (
            GATED_LINEAR,
            inputs(weight=lambda w: np.concatenate([w[:64], np.roll(w[64:], 1, 0)])),
        ),
    },
    "layer_norm": {
        **rows(NORM),
        "no bias": (NORM, inputs(bias=dropped)),
        "no weight": (NORM, inputs(weight=np.ones_like)),
        "one column too few": (NORM, inputs(x=without_last)),
    },
    "rms_norm": {
        **rows(NORM),
        "no weight": (NORM, inputs(weight=np.ones_like)),
        "less the mean": (NORM, inputs(x=lambda x: x - x.mean(1, keepdims=True))),
        "mean over n - 1": (NORM, output(divide_by_n_less_1)),
    },
    "rms_norm_add": {**rows(NORM), "no residual": (NORM, inputs(residual=dropped))},
    "rms_norm_heads": {
        **rows(HEADS),
        "swapped heads": (HEADS, output(swap_heads(80))),
        "one norm of two heads": (
            HEADS,
            lambda ours: (
                lambda o, a, _: ours(o, {**a, "weight": np.tile(a["weight"], 2)}, (40, 4, 160))
            ),
        ),
    },
    "embed": {
        **rows((17, 384, True)),
        "no positions": ((17, 384, True), inputs(position=dropped)),
        "the next position": ((17, 384, True), inputs(position=other_row)),
        "not scaled": ((17, 384, False), inputs(word=lambda word: word / 2.5)),
    },
    "embed_layer_norm": {
        **rows((17, 384)),
        "no types": ((17, 384), inputs(types=dropped)),
        "the next position": ((17, 384), inputs(position=other_row)),
    },
    "activate": {
        **rows((17, 384, "gelu_erf")),
        "another activation": ((17, 384, "silu"), settings((17, 384, "gelu_tanh"))),
    },
    "soft_cap": {
        **rows((17, 384, 30.0)),
        "not capped": ((17, 384, 30.0), settings((17, 384, 1e6))),
    },
    "gate": {
        **rows((17, 384, "silu")),
        "halves swapped": ((17, 384, "silu"), inputs(x=lambda x: np.roll(x, 384, 1))),
    },
    "attention": {
        **rows(NARROW_WINDOW),
        "swapped heads": (ATTENTION, output(swap_heads(128))),
        "a window one too wide": (ATTENTION, settings(ATTENTION._replace(left=65))),
        "a window one too narrow": (NARROW_WINDOW, settings(NARROW_WINDOW._replace(right=2))),
        "a sequence one too long": (ATTENTION, settings(ATTENTION._replace(lengths=(301, 16)))),
        "no position bias": (BIASED, settings(BIASED._replace(biased=False))),
        "keys of the next sequence": (CROSS, settings(CROSS._replace(key_lengths=(199, 4, 129)))),
        "the bias of the next distance": (BIASED, inputs(bias=lambda bias: np.roll(bias, 1, 1))),
    },
    "rotary": {
        **rows((7, 8, 2, 64, 64)),
        "swapped heads": ((7, 8, 2, 64, 64), output(swap_heads(64))),
        "the next position": ((7, 8, 2, 64, 64), inputs(cos=other_row, sin=other_row)),
        "the other way": ((9, 4, 1, 80, 20), inputs(sin=np.negative)),
        "a head of v too": ((7, 8, 2, 64, 64), settings((7, 10, 1, 64, 64))),
    },
    "store_kv": {
        **rows(PROMPTS),
        "swapped heads": (PROMPTS, output(swap_heads(64))),
        "q in the place of k": (PROMPTS, inputs(qkv=lambda qkv: np.roll(qkv, 64, 1))),
    },
    "paged_attention": {
        **rows(PROMPTS),
        "swapped heads": (PROMPTS, output(swap_heads(64))),
        "one head of k for all": (
            PROMPTS,
            inputs(
                past=lambda past: np.concatenate([past[:, :64], past[:, :64], past[:, 128:]], 1)
            ),
        ),
        "a sequence one too long": (
            PROMPTS,
            settings(PROMPTS._replace(added=(2, 4, 60, 3), contexts=(201, 4, 300, 700))),
        ),
        "a key too few": (SHORT, inputs(past=without_first_row)),
        "a window one too wide": (WINDOWS, settings(WINDOWS._replace(left=5))),
        "a window one too narrow": (WINDOWS, settings(WINDOWS._replace(left=3))),
        "scores not capped": (WINDOWS, settings(WINDOWS._replace(soft_cap=0.0))),
        "no position bias": (BIASED_STEPS, settings(BIASED_STEPS._replace(biased=False))),
    },
    "cached_attention": {
        **rows(STEP),
        "the next position": (STEP, inputs(positions=lambda positions: positions - 1)),
        "not rotated": (STEP, settings(Added(STEP.paged, 0))),
        "swapped heads": (STEP, output(swap_heads(128))),
    },
    "copy_pages": {
        "the next plane": (COPIES, output(lambda out: np.copyto(out, np.roll(out, 1, 0)))),
        "another page": (COPIES, inputs(**{"from": lambda pages: (pages + 1) % 5})),
        "the last number is zero": (COPIES, inputs(cache=without_last)),
        "one number more": (COPIES, settings(COPIES._replace(leading=COPIES.leading + 1))),
    },
    "pool": {
        **rows(POOL),
        "a sequence one too long": (POOL, settings(((4, 1, 6), 33, "mean"))),
        "the next row": (((3, 1, 7), 33, "last"), inputs(x=other_row)),
        "the first in the place of the largest": (
            ((3, 1, 7), 33, "max"),
            settings(((3, 1, 7), 33, "cls")),
        ),
    },
    "softmax": {
        "the small 99 % are zero": ((130, 1024), output(zero_small)),
        "the tail of a row is zero": ((130, 1024), output(zero_tail)),
        "the last row is the one before": ((130, 1024), output(repeat_row)),
        "one column too few in the sum": ((3, 33), inputs(x=without_last)),
    },
    "l2_normalize": {
        **rows((130, 1024)),
        "one column too few in the sum": ((3, 33), inputs(x=without_last)),
    },
    "top_k": {
        "the last row is the one before": ((5, 100, 7), output(repeat_row)),
        "the next index": ((5, 100, 7), output(lambda out: np.copyto(out[:, 7:], out[:, 7:] + 1))),
        "the first two swapped": ((5, 100, 7), output(swap_heads(1))),
    },
    "gather_rows": {
        **rows((30, 384, 100)),
        "the next row": ((30, 384, 100), inputs(x=other_row)),
    },
    "cut_patches": {
        **rows(IMAGES),
        "height and width swapped": (IMAGES, inputs(images=lambda table: table[:, [0, 1, 3, 2]])),
        "the next pixel": (IMAGES, inputs(pixels=other_row)),
        "a leading row that is not zero": (
            IMAGES,
            output(lambda out: np.copyto(out[0], out[IMAGES[3]])),
        ),
        "pixels beyond whole patches do not count": (
            IMAGES,
            output(lambda out: np.copyto(out[:, -1], np.abs(out[:, :-1]).max(1))),
        ),
    },
    "penalize": {
        **rows((17, 384)),
        "no presence": ((17, 384), inputs(presence=dropped)),
        "no frequency": ((17, 384), inputs(frequency=dropped)),
        "repetition the wrong way": ((17, 384), inputs(repetition=lambda x: 1 / x)),
        "tokens of the prompt count": ((17, 384), inputs(counts=next_one)),
    },
    "bias_logits": {
        **rows((17, 384)),
        "the last value is left out": ((17, 384), inputs(values=without_last)),
        "the next row": ((17, 384), inputs(rows=lambda rows: (rows + 1) % 17)),
    },
    "sample": {
        "the next token": ((17, 384), output(lambda out: np.copyto(out, out + 1))),
        "that of another row": ((17, 384), inputs(x=other_row)),
    },
    "log_sum_exp": {
        "that of another row": ((17, 384), inputs(x=other_row)),
        "the last number is zero": ((17, 384), output(zero_last)),
        "twice the temperature": ((17, 384), inputs(x=lambda x: x / 2)),
    },
    "gather_columns": {
        "the next column": ((17, 384), inputs(columns=lambda columns: (columns + 1) % 384)),
        "that of another row": ((17, 384), inputs(x=other_row)),
    },
    "rank_columns": {
        "ranks from 0": ((17, 384), output(lambda out: np.copyto(out, out - 1))),
        "that of another column": ((17, 384), inputs(columns=other_row)),
        "ties by higher index": (
            (17, 384),
            lambda ours: (
                lambda o, a, s: ours(
                    o, {**a, "x": a["x"][:, ::-1].copy(), "columns": s[1] - 1 - a["columns"]}, s
                )
            ),
        ),
    },
    "log_softmax": {
        **rows((17, 384)),
        "the logits themselves": (
            (17, 384),
            lambda ours: lambda o, a, s: ours(o, a, s) + np.log(np.exp(a["x"]).sum(1))[:, None],
        ),
        "one column too few in the sum": ((3, 33), inputs(x=without_last)),
    },
    "fork_beams": {
        "the last child is the one before": (FORKS, output(lambda out: repeat_row(out[:-1]))),
        "candidates that end texts go on": (FORKS, inputs(ends=lambda ends: ends * 0 - 1)),
        "the score of the next search": (FORKS, inputs(scores=other_row)),
        "another place": (
            FORKS,
            inputs(groups=lambda groups: groups - [0, 0, 0, 0, 1] * (groups[:, 4:] > 0)),
        ),
        "the search before": (FORKS, inputs(groups=other_searches)),
        "no page is copied": (FORKS, output(lambda out: np.copyto(out[:, 2:4], -1))),
        "pages that begin are left out": (
            Forks((2, 5, 1), 2, 15, 2, 4, True),
            inputs(fresh=lambda fresh: fresh * 0 - 1),
        ),
    },
    "beam_candidates": {
        "the last row is the one before": (BEAMS, output(repeat_row)),
        "the last candidate is left out": (BEAMS, output(zero_last)),
        "the first two tokens swapped": (
            BEAMS,
            output(lambda out: np.copyto(out[:, 8:10], out[:, [9, 8]])),
        ),
        "scores of beams are left out": (BEAMS, inputs(beam_scores=dropped)),
        "those of the next beam": (NORMALIZED, inputs(beam_scores=other_row)),
        "not normalized": (BEAMS, settings(NORMALIZED)),
        "normalized twice": (NORMALIZED, settings(BEAMS)),
        "a beam of the next group": (BEAMS, settings(BEAMS._replace(beams=(5, 2)))),
        "ties by higher token": (
            NORMALIZED,
            lambda ours: (
                lambda o, a, s: np.concatenate(
                    [
                        (got := ours(o, {**a, "x": a["x"][:, ::-1].copy()}, s))[:, : s.most],
                        np.where(got[:, s.most :] < 0, -1, s.vocab - 1 - got[:, s.most :]),
                    ],
                    1,
                )
            ),
        ),
    },
}
