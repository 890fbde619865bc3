"""Every op of the table: how to make its inputs and call it, and its reference in torch.

A row is `CASES[name] = Case(shapes, make, ours, reference)`; an op of the library without a row
fails test_ops.py. Shapes include one, odd, long and empty ones. The reference is computed twice: in
fp64 (the truth), and in the precision of the op (for the allowed error).
"""

from tests.ops import (
    activation_gradients,
    activations,
    attention,
    attention_backward,
    beam_forks,
    beams,
    cached_attention,
    criterion,
    dropout,
    dropped_norms,
    gemm,
    linear_gradients,
    made_rows,
    norm_gradients,
    norms,
    optimizer,
    paged,
    patches,
    pool_gradients,
    rotary,
    rows,
    sampling,
    table_gradients,
)
from tests.ops.case import Case

CASES: dict[str, Case] = {
    **gemm.CASES,
    **made_rows.CASES,
    **norms.CASES,
    **activations.CASES,
    **attention.CASES,
    **rotary.CASES,
    **paged.CASES,
    **cached_attention.CASES,
    **rows.CASES,
    **patches.CASES,
    **sampling.CASES,
    **beams.CASES,
    **beam_forks.CASES,
    **linear_gradients.CASES,
    **activation_gradients.CASES,
    **criterion.CASES,
    **dropout.CASES,
    **dropped_norms.CASES,
    **norm_gradients.CASES,
    **pool_gradients.CASES,
    **table_gradients.CASES,
    **attention_backward.CASES,
    **optimizer.CASES,
}
