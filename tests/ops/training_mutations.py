"""Wrong kernels of backward passes, like those of mutations.py."""

from __future__ import annotations

import math

import numpy as np

from tests.ops.attention import CAUSAL, Attention, window
from tests.ops.criterion import Criterion
from tests.ops.dropout import Dropped
from tests.ops.dropped_norms import DroppedNorm
from tests.ops.mutations import (
    Wrong,
    dropped,
    inputs,
    other_row,
    output,
    rows,
    settings,
    swap_heads,
    without_first_row,
    without_last,
    zero_last,
)
from tests.ops.norm_gradients import Norm
from tests.ops.optimizer import Factors, Step

SUMS = (130, 70, True)
WEIGHT = (130, 97, 100, True)
NORM = Norm(17, 384)
HEADS = (40, 8, 80, True)
ACTIVATION = (17, 384, "gelu_erf", False, False)
SUMMED = (130, 70, "gelu_erf", True, True)
GATE = (17, 384, "silu")
DROPOUT = Dropped(17, 384, 0.1)
DROPPED_NORM = DroppedNorm(17, 384)
TABLE = (40, 11, 33, 2.5, True, "int64")
CRITERION = Criterion(17, 33, smoothing=0.1, scaled=True)
POOL = ((3, 1, 7), 33, "last")

NORM_WRONG: Wrong = {
    **rows(NORM),
    "no residual": (NORM, inputs(dresidual=dropped)),
    "no weight": (NORM, inputs(weight=np.ones_like)),
    "what was there is added to": (NORM, settings(NORM._replace(accumulate=True))),
    "one column too few": (Norm(3, 33), inputs(dy=without_last)),
    "one row too few": (NORM, inputs(dy=without_first_row)),
}

WINDOW = Attention((300, 17), 2, 128, **window(64))
CAUSAL_HEADS = Attention((130, 20), 4, 64, kv_heads=2, dropout=0.1, **CAUSAL)
BIASED = Attention((60, 29), 6, 80, kv_heads=1, soft_cap=4.0, biased=True)
CROSS = Attention((9, 40, 2), 2, 64, key_lengths=(200, 7, 129))
STEP = Step((20, 5, 300), step=3)
FACTORS = Factors((3, 1, 4), (1, 2, 3), 3, max_norm=2.0, scaled=True, beta1=0.5, beta2=0.6)

WRONG: dict[str, Wrong] = {
    "column_sums": {
        "the last number is zero": (SUMS, output(zero_last)),
        "one row too few": (SUMS, inputs(x=without_first_row)),
        "nothing added to": (SUMS, settings((130, 70, False))),
        "only what was there": (SUMS, inputs(x=dropped)),
    },
    "linear_backward_weight": {
        **rows(WEIGHT),
        "one row too few": (WEIGHT, inputs(x=without_first_row)),
        "nothing added to": (WEIGHT, settings((130, 97, 100, False))),
        "the next column of dy": (WEIGHT, inputs(dy=lambda dy: np.roll(dy, 1, 1))),
    },
    "layer_norm_backward": {
        **NORM_WRONG,
        "the input of the next row": (NORM, inputs(x=other_row)),
    },
    "rms_norm_backward": {
        **NORM_WRONG,
        "less the mean": (NORM, inputs(x=lambda x: x - x.mean(1, keepdims=True))),
    },
    "rms_norm_heads_backward": {
        **rows(HEADS),
        "nothing added to": (HEADS, settings((40, 8, 80, False))),
        "one head too few": (HEADS, inputs(dy=without_last)),
    },
    "activate_backward": {
        **rows(ACTIVATION),
        "another activation": (
            (17, 384, "silu", False, False),
            settings((17, 384, "gelu_tanh", False, False)),
        ),
        "the two forms of gelu": (ACTIVATION, settings((17, 384, "gelu_tanh", False, False))),
        "the gradient of the next row": (ACTIVATION, inputs(dy=other_row)),
        "the last sum is zero": (SUMMED, output(zero_last)),
        "sums that are not added": (SUMMED, settings((130, 70, "gelu_erf", True, False))),
    },
    "gate_backward": {
        **rows(GATE),
        "halves swapped": (GATE, inputs(x=lambda x: np.roll(x, 384, 1))),
        "another activation": (GATE, settings((17, 384, "gelu_tanh"))),
    },
    "dropout_add": {
        **rows(DROPOUT),
        "no residual": (DROPOUT, inputs(residual=dropped)),
        "the next offset": (DROPOUT, settings(DROPOUT._replace(offset=4))),
        "another seed": (DROPOUT, settings(DROPOUT._replace(seed=5))),
        "another probability": (DROPOUT, settings(DROPOUT._replace(probability=0.11))),
        "not scaled": (DROPOUT, inputs(x=lambda x: x * np.float32(0.9))),
        "the mask of the next row": (
            Dropped(17, 384, 0.1, residual=False),
            lambda ours: lambda o, a, s: np.roll(ours(o, {**a, "x": other_row(a["x"])}, s), -1, 0),
        ),
    },
    "dropout_add_layer_norm": {
        **rows(DROPPED_NORM),
        "no residual": (DROPPED_NORM, inputs(residual=dropped)),
        "no weight": (DROPPED_NORM, inputs(weight=np.ones_like)),
        "no bias": (DROPPED_NORM, settings(DROPPED_NORM._replace(biased=False))),
        "the next offset": (DROPPED_NORM, settings(DROPPED_NORM._replace(offset=4))),
        "another seed": (DROPPED_NORM, settings(DROPPED_NORM._replace(seed=5))),
        "nothing dropped": (DROPPED_NORM, settings(DROPPED_NORM._replace(probability=0.0))),
    },
    "layer_norm_dropout_backward": {
        **rows(DROPPED_NORM),
        "no weight": (DROPPED_NORM, inputs(weight=np.ones_like)),
        "the input of the next row": (DROPPED_NORM, inputs(x=other_row)),
        "the last sum is zero": (DROPPED_NORM, output(zero_last)),
        "one row too few": (DROPPED_NORM, inputs(dy=without_first_row)),
        "what was there is added to": (
            DROPPED_NORM,
            settings(DROPPED_NORM._replace(accumulate=True)),
        ),
        "the next offset": (DROPPED_NORM, settings(DROPPED_NORM._replace(offset=4))),
        "nothing dropped": (DROPPED_NORM, settings(DROPPED_NORM._replace(probability=0.0))),
    },
    "embed_backward": {
        **rows(TABLE),
        "the next row of the table": (TABLE, inputs(ids=lambda ids: (ids + 1) % 11)),
        "not scaled": (TABLE, inputs(dy=lambda dy: dy / 2.5)),
        "nothing added to": (TABLE, settings((40, 11, 33, 2.5, False, "int64"))),
        "one token too few": (TABLE, inputs(dy=without_first_row)),
    },
    "cross_entropy": {
        **rows(CRITERION),
        "the next label": (CRITERION, inputs(labels=other_row)),
        "not smoothed": (CRITERION, settings(CRITERION._replace(smoothing=0.0))),
        "not scaled": (CRITERION, settings(CRITERION._replace(scaled=False))),
        "the gradient is left out": (CRITERION, settings(CRITERION._replace(gradient=False))),
    },
    "pool_backward": {
        **rows(POOL),
        "a sequence one too long": (POOL, settings(((4, 1, 6), 33, "last"))),
        "the last in the place of the first": (
            ((3, 1, 7), 33, "cls"),
            settings(((3, 1, 7), 33, "last")),
        ),
        "of another row": (((3, 1, 7), 33, "max"), inputs(x=other_row)),
    },
    "attention_backward": {
        **rows(WINDOW),
        "swapped heads": (WINDOW, output(swap_heads(128))),
        "a window one too wide": (WINDOW, settings(WINDOW._replace(left=65))),
        "a window one too narrow": (WINDOW, settings(WINDOW._replace(right=63))),
        "not causal": (CAUSAL_HEADS, settings(CAUSAL_HEADS._replace(right=1))),
        "no weight is dropped": (CAUSAL_HEADS, settings(CAUSAL_HEADS._replace(dropout=0.0))),
        "a few more are dropped": (CAUSAL_HEADS, settings(CAUSAL_HEADS._replace(dropout=0.102))),
        "scores not capped": (BIASED, settings(BIASED._replace(soft_cap=1e6))),
        "the bias of the next distance": (BIASED, inputs(bias=lambda bias: np.roll(bias, 1, 1))),
        "the gradient of no bias": (BIASED, output(lambda out: np.copyto(out[-6:], 0 * out[-6:]))),
        "keys of the next sequence": (CROSS, settings(CROSS._replace(key_lengths=(199, 8, 129)))),
        "the gradient of another row": (CROSS, inputs(dout=other_row)),
    },
    "cast": {
        "the last number is zero": (33, output(lambda out: out.put(-1, 0))),
        "the next number": (33, inputs(x=other_row)),
    },
    "gradient_norm": {
        "the second half is left out": (33, inputs(gradients=lambda x: x * (np.arange(33) < 16))),
        "the norm itself": (33, output(lambda out: np.copyto(out, out**0.5))),
        "one too many is infinite": (33, output(lambda out: np.copyto(out[:, 1:], 1 + out[:, 1:]))),
    },
    "adam_factors": {
        "the last number is zero": (FACTORS, output(zero_last)),
        "a part of the gradients is left out": (
            FACTORS,
            inputs(sums=lambda sums: sums * (np.arange(3) < 1)[:, None]),
        ),
        "no clipping": (FACTORS, settings(FACTORS._replace(max_norm=math.inf))),
        "gradients are not unscaled": (FACTORS, settings(FACTORS._replace(scaled=False))),
        "the step before": (FACTORS, inputs(steps=lambda steps: steps - 1)),
        "another beta2": (FACTORS, settings(FACTORS._replace(beta2=0.7))),
    },
    "adam": {
        "the last number is zero": (STEP, output(zero_last)),
        "the decay is part of the gradient": (STEP, settings(STEP._replace(decoupled=False))),
        "the next step": (STEP, settings(STEP._replace(step=4))),
        "no decay": (STEP, inputs(decays=dropped)),
        "the rates of other segments": (STEP, inputs(rates=other_row)),
        "segments one too long": (STEP, settings(STEP._replace(lengths=(21, 5, 299)))),
        "gradients are not scaled": (STEP, settings(STEP._replace(gradient_scale=0.5))),
        "another eps": (STEP, settings(STEP._replace(eps=0.1))),
        "another beta2": (STEP, settings(STEP._replace(beta2=0.9991))),
    },
}
