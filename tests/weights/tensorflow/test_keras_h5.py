"""Keras' HDF5 files: layouts that Keras writes, and files that lead elsewhere or grow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from fusewire.errors import CheckpointError
from fusewire.weights.tensorflow.keras_h5 import read_h5
from fusewire.weights.tensorflow.variable import Tensor

NAME = "tf_bert_model/bert/embeddings/weight:0"
MATRIX = np.random.default_rng(0).standard_normal((40, 30)).astype(np.float32)


@pytest.fixture
def file(tmp_path: Path) -> h5py.File:
    with h5py.File(tmp_path / "tf_model.h5", "w") as file:
        yield file


def layer(file: h5py.File, name: str = "bert", attribute: str = "weight_names") -> h5py.Group:
    group = file.require_group(name)
    group.attrs[attribute] = [NAME.encode()]
    return group


def values(file: h5py.File) -> dict[str, np.ndarray]:
    folder = Path(file.filename).parent
    file.close()
    return {
        name: np.concatenate([*Tensor(variable).blocks()]).reshape(variable.shape)
        for name, variable in read_h5(folder)
    }


@pytest.mark.parametrize("attribute", ["weight_names", "weight_names0"])
def test_a_variable_has_its_name_below_its_layer(file, attribute):
    layer(file, attribute=attribute)[NAME] = MATRIX
    found = values(file)
    assert found.keys() == {NAME}
    np.testing.assert_array_equal(found[NAME], MATRIX)


def test_a_variable_of_a_shard_has_its_whole_path(file):
    file["bert/embeddings/weight:0"] = MATRIX
    assert values(file).keys() == {"bert/embeddings/weight:0"}


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f4"])
def test_every_float_type_and_byte_order_is_read(file, dtype):
    layer(file)[NAME] = MATRIX.astype(dtype)
    found = values(file)[NAME]
    assert found.dtype.isnative
    np.testing.assert_array_equal(found, MATRIX.astype(dtype))


@pytest.mark.parametrize(
    "options",
    [
        {"chunks": (7, 8)},
        {"compression": "gzip"},
        {"compression": "lzf", "shuffle": True},
        {"compression": "gzip", "shuffle": True, "fletcher32": True, "chunks": (40, 3)},
    ],
)
def test_chunks_and_compression_are_read(file, options, monkeypatch):
    monkeypatch.setattr("fusewire.weights.tensorflow.variable.BLOCK_BYTES", 1000)
    layer(file).create_dataset(NAME, data=MATRIX, **options)
    np.testing.assert_array_equal(values(file)[NAME], MATRIX)


def test_scalars_and_counters(file):
    group = layer(file)
    group["scalar"] = np.float32(3)
    group["counter"] = np.int64(3)
    assert values(file) == {"scalar": np.float32(3)}


def external_link(file: h5py.File) -> None:
    layer(file)[NAME] = h5py.ExternalLink("../secret.h5", "/x")


def soft_link(file: h5py.File) -> None:
    layer(file)[NAME] = h5py.SoftLink("/bert")


def cycle(file: h5py.File) -> None:
    group = layer(file)
    group["again"] = file["bert"]


def one_dataset_many_times(file: h5py.File) -> None:
    group = layer(file)
    group["a"] = MATRIX
    group["b"] = group["a"]


def external_storage(file: h5py.File) -> None:
    layer(file).create_dataset(NAME, (4,), "f4", external=[("/etc/passwd", 0, 16)])


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((40, 30), "f4")
    layout[:] = h5py.VirtualSource("/etc/hostname", "x", (40, 30))
    layer(file).create_virtual_dataset(NAME, layout)


def never_written(file: h5py.File) -> None:
    layer(file).create_dataset(NAME, (1 << 40, 1 << 10), "f4")


def bomb(file: h5py.File) -> None:
    shape = (1 << 22,)
    layer(file).create_dataset(NAME, data=np.zeros(shape, np.float32), compression="gzip")


def many_zeros_and_one_chunk(file: h5py.File) -> None:
    file.create_dataset("a", (1 << 20,), "f4", chunks=(1 << 8,), compression="gzip")[0] = 1


def huge_chunk(file: h5py.File) -> None:
    layer(file).create_dataset(NAME, (1, 1), "f4", maxshape=(None, None), chunks=(1 << 16, 1 << 12))


def unknown_filter(file: h5py.File) -> None:
    created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    created.set_chunk((40, 30))
    created.set_filter(32015, h5py.h5z.FLAG_OPTIONAL)  # zstd, which is not in HDF5
    h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_FLOAT, h5py.h5s.create_simple((40, 30)), created)


def deep_groups(file: h5py.File) -> None:
    file["/".join("g" * 40)] = MATRIX


HOSTILE: dict[Callable[[h5py.File], None], str] = {
    external_link: r"is a link to elsewhere",
    soft_link: r"is a link to elsewhere",
    cycle: r"'again' is linked twice",
    one_dataset_many_times: r"'b' is linked twice",
    external_storage: r"lies in another file",
    virtual: r"lies in another file",
    never_written: r"has 0 of \d+ bytes: truncated",
    bomb: r"bytes of values in a file of \d+, wanted at most 16 times",
    many_zeros_and_one_chunk: r"bytes of values in a file of \d+",
    huge_chunk: r"chunks over 268435456 bytes",
    unknown_filter: r"the filters \[32015\], wanted gzip or lzf",
    deep_groups: r"groups over 32 deep",
}


@pytest.mark.parametrize("make", HOSTILE, ids=lambda make: make.__name__)
def test_a_hostile_file_is_refused(file, make):
    make(file)
    with pytest.raises(CheckpointError, match=HOSTILE[make]) as caught:
        values(file)
    assert str(caught.value).startswith("tf_model.h5: ")


@pytest.mark.parametrize(
    "dtype",
    [
        h5py.special_dtype(vlen=np.float32),
        h5py.string_dtype(),
        np.dtype([("a", "f4")]),
        h5py.ref_dtype,
    ],
    ids=["arrays", "strings", "compound", "references"],
)
def test_objects_are_no_weights(file, dtype):
    layer(file).create_dataset("objects", (2,), dtype)
    file["bert/x"] = MATRIX
    assert values(file).keys() == {"x"}


def test_a_truncated_file_is_refused(file):
    layer(file)[NAME] = np.tile(MATRIX, (10, 1))
    path = Path(file.filename)
    file.close()
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(CheckpointError, match=r"not an HDF5 file, or damaged"):
        read_h5(path.parent)


def test_damage_in_a_chunk_is_found(file):
    layer(file).create_dataset(NAME, data=MATRIX, compression="gzip")
    offset = file["bert"][NAME].id.get_chunk_info(0).byte_offset
    path = Path(file.filename)
    file.close()
    content = bytearray(path.read_bytes())
    content[offset : offset + 50] = bytes(50)
    path.write_bytes(content)
    ((_, variable),) = read_h5(path.parent)
    with pytest.raises(CheckpointError, match=r"tf_model.h5: damaged"):
        [*Tensor(variable).blocks()]


def test_an_index_cannot_lead_out_of_the_folder(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    with h5py.File(tmp_path / "outside.h5", "w") as outside:
        outside["x"] = MATRIX
    (folder / "tf_model.h5.index.json").write_text('{"weight_map": {"x": "../outside.h5"}}')
    with pytest.raises(CheckpointError, match=r"wanted a relative name without `\.\.`"):
        read_h5(folder)
