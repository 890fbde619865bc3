"""A wrong argument is rejected before a kernel runs, and the message says what was wanted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fusewire import kernels as k
from fusewire.placement import Placement

from tests.places import GPU, TORCH_DTYPES


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


def test_the_tensors_of_a_gated_product_are_named():
    wide, square = k.Linear(dense(8, 4), None), k.Linear(dense(4, 4), None)
    x = dense(3, 4)
    for out, both, linear, message in (
        (dense(3, 4), dense(2, 8), wide, r"both: got float32\[2, 8\] .*wanted .*tokens=3"),
        (dense(2, 4), dense(3, 8), wide, r"out: got float32\[2, 4\] .*wanted .*tokens=3"),
        (dense(3, 2), x, square, "both: got x's memory"),
        (x, dense(3, 8), wide, "out: got x's memory"),
        (dense(3, 4), dense(3, 8), k.Linear(dense(7, 4), None), "out_features: got 7, wanted an"),
    ):
        with pytest.raises(k.Error, match=rf"gated_linear: {message}"):
            k.gated_linear(out, both, x, linear, "silu")


def test_rows_outside_of_a_matrix_are_refused():
    with pytest.raises(k.Error, match=r"rows\[0\]: got 3, wanted 0 to 2"):
        k.gather_rows(dense(1, 4), dense(3, 4), k.Tensor.from_numpy(np.array([3])))


def test_embed_checks_ids_and_positions():
    word = dense(10, 4)
    for ids, positions, message in (
        ([0, 10], [0, 0], "embed: id: got 10, wanted 0 to 9"),
        ([0, 1], [0, 3], "embed: position: got 3, wanted 0 to 2"),
    ):
        i, p = k.Tensor.from_numpy(np.array(ids)), k.Tensor.from_numpy(np.int32(positions))
        with pytest.raises(k.Error, match=message):
            k.embed(dense(2, 4), i, p, word, dense(3, 4), 1.0)


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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: k.SequenceBatch.bucket(dense(3), 1, 1), r"bucket: got float32\[3\]"),
        (lambda: k.SequenceBatch.bucket(dense(1, dtype=np.int32), 1, 1), r"got int32\[1\]"),
        (lambda: k.SequenceBatch.bucket(dense(3, dtype=np.int32), 0, 1), "tokens 0, max_seqlen 1"),
        (lambda: dense(4).section(2, [1], "float32"), "at byte 2, wanted one aligned and within"),
        (lambda: dense(4).section(8, [3], "float32"), "within 16 bytes"),
        (lambda: k.write(dense(4), dense(5)), "write: got 20 bytes on cpu for 16"),
        (lambda: k.capture(k.Stream(), lambda: None), "capture: got a stream on the cpu"),
    ],
)
def test_what_recorded_work_is_made_of_is_checked(call, message: str):
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


@pytest.mark.parametrize("stream", [None, -1])
def test_on_the_cpu_nothing_is_waited_for(stream: int | None):
    tensor = dense(2, 3)
    assert "dltensor" in repr(tensor.__dlpack__(stream=stream))
    assert tensor.__dlpack_device__() == (1, 0)


@pytest.mark.parametrize("stream", [0, 1, 2, -2, 2**70, "1", 1.0])
def test_a_consumers_stream_on_the_cpu_is_refused(stream: object):
    message = r"Tensor.__dlpack__: stream: got .* for cpu, wanted None or -1"
    with pytest.raises(k.Error, match=message):
        dense(2, 3).__dlpack__(stream=stream)


def test_memory_outlives_its_maker():
    view = k.Tensor.from_numpy(np.full((64, 64), 7, np.float32)).numpy()
    assert (view == 7).all()


@pytest.mark.parametrize("place", GPU, indirect=True)
def test_an_index_out_of_range_on_a_gpu_gives_a_row_of_nan_and_reads_no_memory(place: Placement):
    table = place.floats(np.ones((10, 8), np.float32))
    weight = place.floats(np.ones(8, np.float32))
    bad, good = [3, -1, 4, 10, 2**31 - 1], [True, False, True, False, False]

    def check(out: k.Tensor) -> None:
        assert np.isfinite(place.numpy(out)).all(1).tolist() == good
        assert np.isnan(place.numpy(out)).all(1).tolist() == [not y for y in good]

    out = place.empty(5, 8)
    ids, zeros = place.exact(bad, np.int64), place.exact([0] * 5, np.int64)
    small, nought = place.exact(bad, np.int32), place.exact([0] * 5, np.int32)
    for arguments in (
        (ids, nought, nought),
        (zeros, small, nought),
        (zeros, nought, small),
    ):
        k.embed_layer_norm(out, *arguments, table, table, table, weight, None, 1e-5, place.stream)
        check(out)
    k.gather_rows(out, table, ids, place.stream)
    check(out)
    for arguments in ((ids, None, table, None), (zeros, small, table, table)):
        k.embed(out, *arguments, 1.0, place.stream)
        check(out)
    qkv, angles = place.floats(np.ones((5, 24), np.float32)), np.ones((10, 2), np.float32)
    angles = place.exact(angles, np.float32)
    k.rotary(qkv, small, angles, angles, 2, 2, place.stream)
    turned = place.numpy(qkv)
    assert np.isnan(turned[:, :16]).all(1).tolist() == [not y for y in good]
    assert (turned[:, 16:] == 1).all()


@pytest.mark.parametrize("place", GPU, indirect=True)
def test_a_tensor_of_another_device_is_refused(place: Placement):
    out = place.empty(2, 8)
    with pytest.raises(k.Error, match=r"softmax: x: got float32\[2, 8\] on cpu, wanted .*cuda:0"):
        k.softmax(out, dense(2, 8), place.stream)
    spec = k.AttentionSpec(heads=1, scale=1.0)
    with pytest.raises(k.Error, match=r"attention: queries: got one on cpu, wanted it on cuda:0"):
        k.attention(out, out, out, out, batch(2), batch(2), spec, None, None, place.stream)
    with pytest.raises(k.Error, match=r"Tensor.numpy: got a tensor on cuda:0"):
        out.numpy()


@pytest.mark.parametrize("place", GPU, indirect=True)
def test_torch_sees_a_tensor_of_a_gpu_by_dlpack(place: Placement):
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = place.floats(values)
    seen = torch.from_dlpack(tensor)
    assert seen.is_cuda
    assert seen.dtype == TORCH_DTYPES[place.dtype]
    assert (seen.float().cpu().numpy() == values).all()
    back = k.Tensor.from_dlpack(seen)
    assert (place.numpy(back) == values).all()
    for stream in (0, -2, "1"):
        with pytest.raises(k.Error, match=r"stream: got .* for cuda:0, wanted None, -1, 1, 2 or"):
            tensor.__dlpack__(stream=stream)


@pytest.mark.parametrize("place", GPU[:1], indirect=True)
@pytest.mark.parametrize("own_stream", [False, True])
def test_torch_waits_for_what_fills_a_tensor(place: Placement, own_stream: bool):
    ones = np.ones((2048, 2048), np.float32)
    x, weight, other = place.floats(ones), place.linear(ones, None), place.floats(ones)
    out = place.floats(np.zeros_like(ones))
    consumer = torch.cuda.Stream() if own_stream else torch.cuda.default_stream()
    place.stream.synchronize()
    for _ in range(20):  # milliseconds of work before the launch under test
        k.linear(other, x, weight, "none", place.stream)
    k.linear(out, x, weight, "none", place.stream)
    with torch.cuda.stream(consumer):
        seen = torch.from_dlpack(out).clone()
    consumer.synchronize()
    assert (seen == 2048).all()
