"""Every op of the table: how to make inputs, how to call it, and its reference in torch.

A row is `CASES[name] = Case(shapes, make, ours, reference)`; an op of the library without a row
fails test_ops.py. Shapes include one, odd, long and empty ones. The reference runs twice: in fp64
(the truth), and in the precision of the op (the error that is allowed).
"""

from tests.ops import (
    activations,
    attention,
    beams,
    cached_attention,
    gemm,
    norms,
    paged,
    patches,
    rotary,
    rows,
    sampling,
)
from tests.ops.case import Case

CASES: dict[str, Case] = {
    **gemm.CASES,
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
}
