"""Features that a target's kernels do not support are rejected by name, and every number of rows
has a bucket that is run while a model loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.program import compiled, run

FEATURES = {
    "transposed_x": "a transposed x",
    "transposed_weight": "a transposed weight",
    "scales": "scales",
    "scales_of_x": "scales",
    "zeros": "zeros",
    "groups": "groups",
    "order": "an order of inputs",
    "beta": "a beta other than 1",
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("gemm") / "program", "gemm_arguments", "gemm")


@pytest.mark.parametrize(("feature", "name"), FEATURES.items())
def test_a_feature_that_the_kernels_lack_is_refused_by_its_name(program, feature, name):
    refused = run(program, "check", feature, 0).stdout
    assert refused.startswith(f"gemm: got {name}, which the kernels for float16 weights on cuda:1 ")
    assert run(program, "check", feature, 1).stdout == ""


def test_a_plain_product_asks_for_nothing(program):
    assert run(program, "check", "none", 0).stdout == ""


@pytest.mark.parametrize("most", [1, 7, 8, 40, 1000, 16384, 20000, 70000])
def test_buckets_are_run_up_to_the_largest_batch_and_close_to_each_of_its_sizes(program, most):
    sizes = [int(word) for word in run(program, "buckets", most).stdout.split()]
    assert sizes[-1] == most
    assert sizes == sorted(set(sizes))
    for below, size in zip([0, *sizes], sizes, strict=False):
        assert size - below <= max(8, size // 4)
        if size < min(most, 65536):
            # The size is the largest of its bucket: the next number belongs to the next one.
            assert int(run(program, "bucket", size).stdout) == size
            assert int(run(program, "bucket", below + 1).stdout) == size


def test_without_a_batch_nothing_is_run(program):
    assert run(program, "buckets", 0).stdout == ""
