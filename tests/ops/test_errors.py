"""A wrong argument is refused before a kernel runs, and the message says what was wanted."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire import kernels as k


def dense(*shape: int, dtype: type = np.float32) -> k.Tensor:
    return k.Tensor.from_numpy(np.zeros(shape, dtype))


def batch(*lengths: int) -> k.SequenceBatch:
    return k.SequenceBatch(k.Tensor.from_numpy(np.cumsum([0, *lengths]).astype(np.int32)))


def test_a_wrong_shape_is_named_with_what_was_wanted():
    message = r"layer_norm: weight: got float32\[7\] on cpu, wanted float32\[cols=8\] on cpu"
    with pytest.raises(k.Error, match=message):
        k.layer_norm(dense(2, 8), dense(2, 8), dense(7), None, 1e-5)


def test_a_wrong_type_is_named():
    with pytest.raises(k.Error, match=r"x: got int64\[2, 8\] on cpu, wanted float32, float16"):
        k.softmax(dense(2, 8), dense(2, 8, dtype=np.int64))


def test_a_precision_without_kernels_says_which_ones_there_are():
    with pytest.raises(k.Error, match=r"got float16 on cpu, .* use float32 on the CPU"):
        k.softmax(dense(2, 8, dtype=np.float16), dense(2, 8, dtype=np.float16))


def test_an_id_outside_of_the_vocabulary_never_reads_memory():
    for bad in (-1, 10, 2**40):
        ids = k.Tensor.from_numpy(np.array([0, bad]))
        with pytest.raises(k.Error, match=f"id: got {bad}, wanted 0 to 9"):
            k.embed_layer_norm(
                dense(2, 4), ids, None, None, dense(10, 4), None, None, dense(4), None, 1e-5
            )


def test_rows_outside_of_a_matrix_are_refused():
    with pytest.raises(k.Error, match=r"rows\[0\]: got 3, wanted 0 to 2"):
        k.gather_rows(dense(1, 4), dense(3, 4), k.Tensor.from_numpy(np.array([3])))


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0], "at least one sequence"),
        ([1, 2], r"cu_seqlens\[0\]: got 1, wanted 0"),
        ([0, 3, 3], "sequence 1 got length 0"),
        ([0, 3, 1], "sequence 1 got length -2"),
    ],
)
def test_malformed_offsets_are_refused(offsets: list[int], message: str):
    with pytest.raises(k.Error, match=message):
        k.SequenceBatch(k.Tensor.from_numpy(np.array(offsets, np.int32)))


def test_offsets_that_disagree_with_the_matrix_are_refused():
    with pytest.raises(k.Error, match=r"pool: x: got float32\[5, 4\].*tokens=6"):
        k.pool(dense(2, 4), dense(5, 4), batch(2, 4), "mean")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: k.activate(dense(1, 1), dense(1, 1), "gelu"), "got 'gelu', wanted none, gelu_erf"),
        (lambda: k.pool(dense(1, 1), dense(1, 1), batch(1), "sum"), "got 'sum', wanted cls"),
        (lambda: k.set_cpu_target("sse9"), "got 'sse9', wanted one that this machine can run"),
        (lambda: k.set_num_threads(-1), "threads: got -1, wanted 1 to"),
        (lambda: k.empty((1,), "float8"), "got 'float8', wanted float32"),
        (lambda: k.top_k(dense(1, 5), dense(1, 5, dtype=np.int64), dense(1, 4)), "k: got 5"),
    ],
)
def test_an_unknown_name_or_number_is_refused(call, message: str):
    with pytest.raises(k.Error, match=message):
        call()


def test_an_output_on_top_of_a_gemm_input_is_refused():
    x = dense(2, 4)
    with pytest.raises(k.Error, match="out: got x's memory"):
        k.linear(x, x, k.Linear(dense(4, 4), None), "none")


def test_numpy_and_dlpack_see_the_same_memory():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = k.Tensor.from_numpy(array)
    assert np.shares_memory(np.from_dlpack(tensor), array)
    assert np.shares_memory(k.Tensor.from_dlpack(array).numpy(), array)
    with pytest.raises(k.Error, match="not C-contiguous"):
        k.Tensor.from_numpy(array.T)


def test_memory_outlives_its_maker():
    view = k.Tensor.from_numpy(np.full((64, 64), 7, np.float32)).numpy()
    assert (view == 7).all()
