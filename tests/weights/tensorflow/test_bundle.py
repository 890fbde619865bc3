"""The bundle reader against an independent writer, on good bundles and on hostile ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fusewire.errors import CheckpointError
from fusewire.weights.tensorflow.bundle import read_bundle
from fusewire.weights.tensorflow.slices import slice_key
from fusewire.weights.tensorflow.variable import Tensor

from tests.weights.tensorflow import bundle_writer
from tests.weights.tensorflow.bundle_writer import Written, masked, table, write_bundle

RANDOM = np.random.default_rng(0)
MATRIX = RANDOM.standard_normal((37, 11)).astype(np.float32)
VARIABLES = {
    "bert/embeddings/word_embeddings": MATRIX,
    "bert/pooler/dense/kernel": MATRIX[:11].T.copy(),
    "double": RANDOM.standard_normal(5),
    "half": RANDOM.standard_normal((2, 3)).astype(np.float16),
    "scalar": np.float32(2.5).reshape(()),
    "empty": np.zeros((0, 4), np.float32),
    **{f"layer_{index}/bias": np.float32([index, -index]) for index in range(40)},
}


def values(folder: Path, index: str = "model.ckpt.index") -> dict[str, np.ndarray]:
    """What the reader reads, whole and checked."""
    found = {}
    for name, variable in read_bundle(folder, index):
        variable.check()
        blocks = [block.reshape(-1) for block in Tensor(variable).blocks()]
        whole = np.concatenate(blocks) if blocks else np.zeros(0, np.float32)
        found[name] = whole.reshape(variable.shape)
    return found


@pytest.mark.parametrize("snappy", [False, True])
@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("shards", [1, 3])
def test_every_variable_is_read(tmp_path, shards, big_endian, snappy):
    write_bundle(tmp_path, VARIABLES, shards=shards, big_endian=big_endian, snappy=snappy)
    found = values(tmp_path)
    assert found.keys() == VARIABLES.keys()
    for name, array in VARIABLES.items():
        assert found[name].dtype == array.dtype.newbyteorder("<")
        np.testing.assert_array_equal(found[name], array)


def test_bfloat16_is_read_as_its_bits(tmp_path):
    bits = np.uint16([[0x3F80, 0xC000]])
    write_bundle(tmp_path, {"x": Written(bits, "bfloat16")})
    ((name, variable),) = read_bundle(tmp_path, "model.ckpt.index")
    assert (name, variable.dtype) == ("x", "BF16")
    np.testing.assert_array_equal(values(tmp_path)["x"], bits)


def test_counters_are_left_out(tmp_path):
    write_bundle(tmp_path, {"global_step": np.int64(7).reshape(()), "x": np.float32([1])})
    assert values(tmp_path).keys() == {"x"}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_partitioned_variable_is_read_as_one(tmp_path, axis, transposed, monkeypatch):
    monkeypatch.setattr("fusewire.weights.tensorflow.variable.BLOCK_BYTES", 160)  # over the cuts
    matrix = RANDOM.standard_normal((30, 20)).astype(np.float32)
    write_bundle(tmp_path, {"x": Written(matrix, axis=axis, cuts=(7, 8, 16))})
    ((_, variable),) = read_bundle(tmp_path, "model.ckpt.index")
    variable.check()
    blocks = [*Tensor(variable, transposed=transposed).blocks()]
    assert len(blocks) > 4
    np.testing.assert_array_equal(np.concatenate(blocks), matrix.T if transposed else matrix)


def test_keys_of_slices_are_those_of_the_format():
    codes = {0: "80", 3: "83", 63: "bf", -1: "7f", 64: "c040", 8191: "dfff", 8192: "e02000"}
    codes |= {1 << 20: "f0100000", -64: "40", -65: "3fbf", (1 << 62): "ffc04000000000000000"}
    for number, code in codes.items():
        assert slice_key(b"a", [(0, number)]).hex() == "006100010101" + "80" + code
    assert slice_key(b"a\x00b\xff", []).hex() == "006100ff62ff00000100"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"offset": 4}, r"ends at byte 12, but model.ckpt.data-00000-of-00001 has 8: truncated"),
        ({"offset": 1 << 62}, r"truncated"),
        ({"offset": -4}, r"impossible place"),
        ({"size": 4}, r"has 4 bytes, wanted 8"),
        ({"size": -8}, r"impossible place"),
        ({"shard": 1}, r"impossible place"),
        ({"shard": -1}, r"impossible place"),
        ({"crc": 1}, r"another checksum"),
    ],
)
def test_an_impossible_place_is_refused(tmp_path, fields, message):
    write_bundle(tmp_path, {"x": Written(np.float32([1, 2]), fields=fields)})
    with pytest.raises(CheckpointError, match=message):
        values(tmp_path)


def test_variables_that_overlap_are_refused(tmp_path):
    two = {name: Written(np.float32([1, 2]), fields={"offset": 0}) for name in ("a", "b")}
    write_bundle(tmp_path, two)
    with pytest.raises(CheckpointError, match=r"variable 'b' overlaps another"):
        values(tmp_path)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1 << 40, 1 << 40), r"'x' has 4 bytes, wanted 4835703278458516698824704"),
        ((-1, 1), r"impossible shape"),
        ((0, 1 << 62), r"impossible shape"),
        ((1,) * 9, r"impossible shape"),
    ],
)
def test_an_impossible_shape_is_refused(tmp_path, shape, message):
    write_bundle(tmp_path, {"x": Written(np.float32([1]), shape=shape)})
    with pytest.raises(CheckpointError, match=message):
        values(tmp_path)


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ((0, 0, 4), r"overlap, or leave a gap"),
        ((0, 3, 5), r"overlap, or leave a gap"),
        ((1, 3, 5), r"overlap, or leave a gap"),
    ],
)
def test_slices_must_be_all_of_the_variable(tmp_path, starts, message):
    matrix = np.ones((6, 2), np.float32)
    write_bundle(tmp_path, {"x": Written(matrix, cuts=(2, 4), starts=starts)})
    with pytest.raises(CheckpointError, match=message):
        values(tmp_path)


def test_many_shards_are_refused(tmp_path):
    (tmp_path / "model.ckpt.index").write_bytes(table({b"": bytes.fromhex("08ffffff7f")}))
    with pytest.raises(CheckpointError, match=r"got 268435455 shards, wanted 1..1000"):
        values(tmp_path)


def test_a_missing_shard_is_named(tmp_path):
    write_bundle(tmp_path, {"x": np.float32([1])})
    (tmp_path / "model.ckpt.data-00000-of-00001").unlink()
    with pytest.raises(CheckpointError, match=r"model.ckpt.data-00000-of-00001 is missing"):
        values(tmp_path)


def test_a_shard_cannot_lead_out_of_the_folder(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    write_bundle(folder, {"x": np.float32([1])})
    shard = folder / "model.ckpt.data-00000-of-00001"
    shard.rename(tmp_path / "outside")
    shard.symlink_to(tmp_path / "outside")
    with pytest.raises(CheckpointError, match=r"a link leading out of the folder"):
        values(folder)


def test_checksums_are_those_of_the_specification():
    assert bundle_writer.crc32c(b"123456789") == 0xE3069283  # RFC 3720's polynomial
    assert masked(0) == 0xA282EAD8
