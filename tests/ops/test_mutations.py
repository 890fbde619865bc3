"""A wrong kernel fails the test of its op, in fp32 and (emulated) in 16 bits: the tolerances do not
hide typical mistakes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from fusewire import kernels as k
from fusewire.placement import Placement

from tests.ops import mutations, training_mutations
from tests.ops.cases import CASES
from tests.ops.check import check

CPU = Placement("cpu")
WRONG = mutations.WRONG | training_mutations.WRONG
EVERY = [(op, what) for op, wrong in WRONG.items() for what in wrong]


def test_every_op_of_the_table_has_wrong_kernels_and_nothing_else():
    assert set(WRONG) == set(k.OPS)
    assert min(map(len, WRONG.values())) >= 2


@cache
def right(op: str, shape: Any, rounding: str) -> None:
    check(CASES[op], shape, CPU, ("dense",), rounding)


@pytest.mark.parametrize("rounding", ["", "float16", "bfloat16"])
@pytest.mark.parametrize(("op", "what"), EVERY)
def test_a_wrong_kernel_fails_the_test_of_its_op(op: str, what: str, rounding: str):
    shape, change = WRONG[op][what]
    right(op, shape, rounding)
    wrong = replace(CASES[op], ours=change(CASES[op].ours))
    with pytest.raises(AssertionError, match=r"off by|Mismatched elements"):
        check(wrong, shape, CPU, ("dense",), rounding)
