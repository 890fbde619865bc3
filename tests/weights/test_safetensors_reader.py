"""The safetensors reader against the reference library, on good files and on damaged ones."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from fusewire.errors import CheckpointError
from fusewire.weights import read_safetensors
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

MUTATIONS = 300


def write(path: Path, header: dict | bytes, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: str = "F32", shape: list | None = None, offsets: list | None = None) -> dict:
    return {"dtype": dtype, "shape": shape or [2], "data_offsets": offsets or [0, 8]}


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    tensors = {
        "matrix": torch.randn(3, 5),
        "half": torch.randn(7).half(),
        "brain": torch.randn(2, 2, 3).bfloat16(),
        "double": torch.randn(4).double(),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
        "ids": torch.arange(6),
    }
    path = tmp_path / "model.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    return path, tensors


def test_every_float_type_reads_as_fp32(stored):
    path, tensors = stored
    read = read_safetensors(path)
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            np.testing.assert_array_equal(read[name].float32(name), tensor.float().numpy())


def test_fp32_is_a_view_of_the_map(stored):
    first, second = (read_safetensors(stored[0])["matrix"].float32("matrix") for _ in range(2))
    assert not first.flags.owndata
    assert not first.flags.writeable
    assert not np.shares_memory(first, second)  # two maps


def test_integers_are_not_weights(stored):
    with pytest.raises(CheckpointError, match=r"model.safetensors: tensor 'ids': got I64, wanted"):
        read_safetensors(stored[0])["ids"].float32("ids")


def test_unaligned_data_is_read_right(tmp_path):
    header = {"pad": entry("U8", [1], [0, 1]), "x": entry("F32", [2], [1, 9])}
    path = write(tmp_path / "f.safetensors", header, b"\0" + np.float32([1.5, -2]).tobytes())
    np.testing.assert_array_equal(read_safetensors(path)["x"].float32("x"), [1.5, -2])


def test_a_file_without_tensors_is_empty(tmp_path):
    assert read_safetensors(write(tmp_path / "f.safetensors", {})) == {}


BAD = {
    "header of 9 bytes in a file of 10": (9).to_bytes(8, "little") + b"{}",
    "wanted at least 8": b"\0\0\0",
    "wanted at most 100000000": (1 << 62).to_bytes(8, "little") + b"{}",
    "not a JSON object": b"[]",
    "not valid JSON": b'{"a":' * 100_000,
    "header is not valid JSON": b'{"a": 1, "a": 2}',
    "unknown dtype 'F31'": {"x": entry("F31")},
    "invalid shape": {"x": entry(shape=[-1])},
    "x' has an invalid shape": {"x": entry(shape=[True])},
    "x' has invalid data_offsets": {"x": entry(offsets=[0, 8.0])},
    "'x' at bytes 8..0": {"x": entry(offsets=[8, 0])},
    "'x' at bytes 0..800": {"x": entry(shape=[200], offsets=[0, 800])},
    "has 8 bytes, wanted 12": {"x": entry(shape=[3])},
    "'y' overlaps": {"x": entry(), "y": entry(offsets=[4, 12])},
    "'y' leaves a gap": {"x": entry(shape=[1], offsets=[0, 4]), "y": entry(offsets=[8, 16])},
    "8 bytes after the last": {"x": entry()},
    "lacks dtype": {"x": {"shape": [2], "data_offsets": [0, 8]}},
    "lacks dtype, shape": {"x": entry() | {"extra": 1}},
    "`__metadata__` is not": {"__metadata__": {"a": 1}},
}


@pytest.mark.parametrize("message", BAD)
def test_a_bad_file_is_refused_with_its_fault(tmp_path, message):
    content = BAD[message]
    path = tmp_path / "bad.safetensors"
    if isinstance(content, bytes) and not content.startswith((b"{", b"[")):
        path.write_bytes(content)
    else:
        write(path, content, b"\0" * 16)
    with pytest.raises(CheckpointError, match=r"^bad.safetensors: ") as caught:
        read_safetensors(path)
    assert message in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_an_empty_file_and_a_folder_are_refused(tmp_path):
    (tmp_path / "a.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"got 0 bytes"):
        read_safetensors(tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError, match=r"cannot be read"):
        read_safetensors(tmp_path)


def mutate_bytes(good: bytes, rng: random.Random) -> bytes:
    """A damaged copy: flipped bits, cuts, insertions, a wrong header length."""
    data = bytearray(good)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data))
        kind = rng.randrange(6)
        if kind <= 1:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            data[at:at] = rng.randbytes(rng.randint(1, 9))
        elif kind == 3:
            del data[at : at + rng.randint(1, 9)]
        elif kind == 4:
            lengths = [0, 1, 7, len(good), 2**31, 2**63, 2**64 - 1]
            data[:8] = rng.choice(lengths).to_bytes(8, "little")
        elif len(data) > 100:
            del data[at:]
    return bytes(data)


def mutate_header(good: bytes, rng: random.Random) -> bytes:
    """A copy whose header is good JSON that may say something else: a hostile writer's file."""
    end = 8 + int.from_bytes(good[:8], "little")
    header = json.loads(good[8:end])
    numbers = [0, 1, 2, 4, 8, -1, 2.0, True, None, "2", 2**31, 2**62, 2**63, 2**64, 10**30]
    for _ in range(rng.randint(1, 2)):
        name = rng.choice([key for key in header if key != "__metadata__"])
        entry, kind = header[name], rng.randrange(8)
        if kind == 0:
            entry["dtype"] = rng.choice(["F32", "F16", "BF16", "I32", "U8", "F8_E4M3", "", 3])
        elif kind == 1 and entry["shape"]:
            entry["shape"][rng.randrange(len(entry["shape"]))] = rng.choice(numbers)
        elif kind == 2:
            entry["shape"] = rng.choice([[], entry["shape"][::-1], [*entry["shape"], 1], {}, None])
        elif kind == 3:
            entry["data_offsets"][rng.randrange(2)] = rng.choice(numbers)
        elif kind == 4:
            other = header[rng.choice([key for key in header if key != "__metadata__"])]
            entry["data_offsets"], other["data_offsets"] = (
                other["data_offsets"],
                entry["data_offsets"],
            )
        elif kind == 5:
            header[rng.choice(["", "x" * 999, "\0", "../up", "é"])] = header.pop(name)
        elif kind == 6 and len(header) > 3:
            del header[name]
        else:
            header["__metadata__"] = rng.choice([{}, {"a": "b"}, {"a": 1}, [], None])
    text = json.dumps(header).encode() + b" " * rng.randrange(9)
    return len(text).to_bytes(8, "little") + text + good[end:]


def reference_load(path: Path) -> dict[str, tuple[tuple[int, ...], bytes]] | None:
    try:
        with safe_open(path, "pt") as file:
            return {
                name: (tuple(tensor.shape), tensor.contiguous().view(-1).view(torch.uint8).numpy())
                for name in list(file.keys())
                for tensor in [file.get_tensor(name)]
            }
    except (SafetensorError, ValueError, RuntimeError, OverflowError, OSError):
        return None


@pytest.mark.parametrize("mutate", [mutate_bytes, mutate_header])
def test_mutated_files_are_refused_or_read_as_the_reference_reads_them(stored, tmp_path, mutate):
    good = stored[0].read_bytes()
    rng = random.Random(20)
    refused = equal = 0
    for index in range(MUTATIONS):
        path = tmp_path / f"{index}.safetensors"
        path.write_bytes(mutate(good, rng))
        try:
            ours = read_safetensors(path)
        except CheckpointError as error:
            refused += path.name in str(error)
            continue
        theirs = reference_load(path)
        assert theirs is not None, f"mutation {index}: read here, refused by the reference"
        assert {name: tensor.shape for name, tensor in ours.items()} == {
            name: shape for name, (shape, _) in theirs.items()
        }
        for name, (_, data) in theirs.items():
            np.testing.assert_array_equal(ours[name].data, data)
        equal += 1
    assert refused + equal == MUTATIONS
    assert min(refused, equal) >= 0.02 * MUTATIONS  # both outcomes were exercised
