"""What `fusewire import` makes of checkpoints that TensorFlow itself wrote."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest
import tokenizers
from fusewire.errors import CheckpointError, ConfigurationError
from fusewire.serving.repository import import_folder
from fusewire.weights.tensorflow import conversion
from fusewire.weights.tensorflow.bundle import read_bundle
from fusewire.weights.tensorflow.configuration import configuration
from fusewire.weights.tensorflow.keras_h5 import read_h5
from fusewire.weights.tensorflow.variable import Tensor, Variable
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from tests.weights.tensorflow.bundle_writer import write_bundle
from tests.weights.tensorflow.test_bundle import values

GENUINE = [
    *((family, "h5") for family in ("bert", "albert", "electra", "roberta", "mpnet", "distilbert")),
    ("gpt2", "h5"),
    ("bert", "shards"),
    ("bert", "tf2"),
    ("bert", "tf1"),
    ("albert", "tf1"),
    ("gpt2", "tf1"),
]
# What the TensorFlow class has and torch's has not: a pooler that nothing reads.
SURPLUS = {("mpnet", "h5"): {"mpnet.pooler.dense.weight", "mpnet.pooler.dense.bias"}}


# In a process without other children.
PEAK_OF_IMPORT = """\
import resource, sys
from pathlib import Path
from fusewire.errors import CheckpointError
from fusewire.serving.repository import import_folder
try:
    import_folder(Path(sys.argv[1]), Path(sys.argv[2]), name="m")
except CheckpointError as error:
    print(error)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def imported(folder: Path, repository: Path, **options: object) -> Path:
    return import_folder(folder, repository, name="m", **options) / "1"


@pytest.mark.parametrize(("family", "kind"), GENUINE)
def test_the_tensors_are_those_of_torch(genuine, tmp_path, family, kind):
    folder = tmp_path / "folder"
    shutil.copytree(genuine / family / kind, folder)
    if family == "gpt2":  # `generate` needs one
        tokenizer(folder)
    version = imported(folder, tmp_path / "repository")
    got = load_file(version / "model.safetensors")
    wanted = load_file(genuine / family / "torch" / "model.safetensors")
    assert got.keys() - SURPLUS.get((family, kind), set()) == wanted.keys()
    for name, tensor in wanted.items():
        assert got[name].dtype == tensor.dtype
        np.testing.assert_array_equal(got[name], tensor, name)
    assert not [*version.glob("*.h5"), *version.glob("*.index"), *version.glob("*.data*")]
    assert [path.name for path in (tmp_path / "repository").iterdir()] == ["m"]


def tokenizer(folder: Path) -> None:
    letters = {letter: number for number, letter in enumerate("abcdefghijklmnopqrst")}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(letters, unk_token="a")).save(
        str(folder / "tokenizer.json")
    )


def test_a_configuration_is_made_of_googles(genuine, tmp_path):
    version = imported(genuine / "albert" / "tf1", tmp_path)
    config = json.loads((version / "config.json").read_text())
    assert config["model_type"] == "albert"
    assert config["architectures"] == ["AlbertForSequenceClassification"]
    assert config["num_labels"] == 2
    bert = imported(genuine / "bert" / "tf1", tmp_path / "bert")
    config = json.loads((bert / "config.json").read_text())
    assert config["architectures"] == ["BertForPreTraining"]


@pytest.mark.parametrize(
    ("variables", "ending"),
    [
        ({"cls/squad/output_bias": (2,)}, "ForQuestionAnswering"),
        ({"output_bias": (5,)}, "ForSequenceClassification"),
        ({"cls/predictions/output_bias": (20,)}, "ForMaskedLM"),
        ({}, "Model"),
    ],
)
def test_the_head_says_which_class_it_is(tmp_path, variables, ending):
    (tmp_path / "bert_config.json").write_text('{"hidden_size": 8}')
    held = {name: Variable("F32", shape, lambda *_: None) for name, shape in variables.items()}
    config = configuration(tmp_path, held)
    assert config["architectures"] == ["Bert" + ending]
    assert config["hidden_size"] == 8
    assert config.get("num_labels") == (5 if "output_bias" in variables else None)


def test_a_checkpoint_without_configuration_is_refused(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    write_bundle(folder, {"bert/pooler/dense/bias": np.zeros(4, np.float32)})
    with pytest.raises(CheckpointError, match=r"without a configuration, wanted one of config"):
        imported(folder, tmp_path / "repository")
    assert not (tmp_path / "repository").exists()


def test_tensors_that_do_not_fit_the_configuration_are_refused(genuine, tmp_path):
    folder = tmp_path / "folder"
    shutil.copytree(genuine / "bert" / "h5", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    with pytest.raises(CheckpointError, match=r"missing: encoder.layer.1"):
        imported(folder, tmp_path / "repository")


def test_one_checkpoint_is_wanted(genuine, tmp_path):
    folder = tmp_path / "folder"
    shutil.copytree(genuine / "bert" / "tf1", folder)
    for path in [*folder.glob("bert_model*")]:
        shutil.copy(path, folder / path.name.replace("bert_model.ckpt", "model.ckpt-9"))
    with pytest.raises(CheckpointError, match=r"got 2 TensorFlow checkpoints .bert_model.ckpt.ind"):
        imported(folder, tmp_path / "repository")


def test_safetensors_come_first(genuine, tmp_path):
    folder = tmp_path / "folder"
    shutil.copytree(genuine / "bert" / "torch", folder)
    (folder / "tf_model.h5").write_bytes(b"not read")
    assert (imported(folder, tmp_path / "repository", link=True)).is_symlink()


def test_a_link_is_refused(genuine, tmp_path):
    with pytest.raises(CheckpointError, match=r"h5: got tf_model.h5 .*wanted safetensors to link"):
        imported(genuine / "bert" / "h5", tmp_path, link=True)


@pytest.mark.parametrize("package", ["h5py", "google_crc32c"])
def test_a_missing_package_is_named(genuine, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    read = {
        "h5py": lambda: read_h5(genuine / "bert" / "h5"),
        "google_crc32c": lambda: read_bundle(genuine / "bert" / "tf1", FILES[0]),
    }[package]
    with pytest.raises(ConfigurationError, match=r"pip install 'fusewire\[tensorflow\]'"):
        read()


@pytest.mark.parametrize(
    ("program", "end"),
    [("import os; os.kill(os.getpid(), 11)", "SIGSEGV"), ("raise KeyError", "exit status 1")],
)
def test_a_crash_of_the_reader_is_an_error_of_the_file(
    genuine, tmp_path, monkeypatch, program, end
):
    monkeypatch.setattr(conversion, "_PROGRAM", program)
    with pytest.raises(CheckpointError, match=f"^tf_model.h5: cannot be read .*{end}"):
        imported(genuine / "bert" / "h5", tmp_path / "repository")
    assert not (tmp_path / "repository").exists()


@pytest.mark.sweep
def test_a_chunk_that_grows_without_end_takes_no_memory(tmp_path):
    """HDF5 inflates a chunk to its end, whatever its size should be."""
    folder = tmp_path / "folder"
    folder.mkdir()
    squeeze = zlib.compressobj(9)
    first, again = (
        squeeze.compress(bytes(1 << 24)) + squeeze.flush(zlib.Z_FULL_FLUSH) for _ in range(2)
    )
    with h5py.File(folder / "tf_model.h5", "w") as file:
        weight = file.create_dataset("bert/bias", (8,), "f4", chunks=(8,), compression=9)
        weight.id.write_direct_chunk((0,), first + again * 160)  # of 2.7 GB
    (folder / "config.json").write_text('{"model_type": "bert"}')
    done = subprocess.run(
        [sys.executable, "-c", PEAK_OF_IMPORT, str(folder), str(tmp_path / "repository")],
        capture_output=True,
        text=True,
    )
    error, peak_kib = done.stdout.splitlines()
    assert error.startswith("tf_model.h5: damaged")
    assert int(peak_kib) < (5 << 20) // 4


def test_progress_is_reported(genuine, tmp_path):
    calls = []
    import_folder(
        genuine / "bert" / "tf1", tmp_path, name="m", progress=lambda *call: calls.append(call)
    )
    size = (tmp_path / "m" / "1" / "model.safetensors").stat().st_size
    totals = [total for _, _, total in calls]
    assert calls[0] == ("model.safetensors", 0, totals[0])
    assert size - 8192 < totals[0] < size
    assert ("model.safetensors", totals[0], totals[0]) in calls


FLIPS = settings(max_examples=60)
FILES = ["bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"]


@FLIPS
@given(data=st.data())
def test_a_changed_byte_of_a_bundle_is_found(genuine, tmp_path_factory, data):
    """Whatever it is: everything but the padding is under a checksum."""
    source = genuine / "bert" / "tf1"
    folder = tmp_path_factory.mktemp("flipped")
    shutil.copytree(source, folder, dirs_exist_ok=True)
    path = folder / data.draw(st.sampled_from(FILES))
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        found = values(folder, FILES[0])
    except CheckpointError:
        return
    wanted = values(source, FILES[0])
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)


@FLIPS
@given(data=st.data())
def test_a_truncated_bundle_is_found(genuine, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("truncated")
    shutil.copytree(genuine / "bert" / "tf1", folder, dirs_exist_ok=True)
    path = folder / FILES[0]
    os.truncate(path, data.draw(st.integers(0, path.stat().st_size - 1)))
    with pytest.raises(CheckpointError, match=r"^bert_model.ckpt.index: "):
        values(folder, FILES[0])


@FLIPS
@given(data=st.data())
def test_changed_bytes_of_an_h5_file_are_an_error_or_values(genuine, tmp_path_factory, data):
    content = bytearray((genuine / "gpt2" / "h5" / "tf_model.h5").read_bytes())
    places = st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=8)
    for at in data.draw(places):
        content[at] = data.draw(st.integers(0, 255))
    folder = tmp_path_factory.mktemp("flipped")
    (folder / "tf_model.h5").write_bytes(content)
    try:
        blocks = [block for _, each in read_h5(folder) for block in Tensor(each).blocks()]
    except CheckpointError:
        return
    assert sum(block.nbytes for block in blocks) <= 17 * len(content) + (1 << 20)
