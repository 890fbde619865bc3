"""Which files of a folder are opened: shards and cache links yes, anything that leads out no."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from fusewire.errors import CheckpointError
from fusewire.weights import Checkpoint, file_in, open_folder, read_json, weight_files
from safetensors.numpy import save_file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    return path


def save(path: Path, **tensors: list[float]) -> None:
    save_file({name: np.float32(values) for name, values in tensors.items()}, path)


def index(folder: Path, weight_map: object) -> None:
    text = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(text)


def test_shards_are_read_as_one(folder):
    save(folder / "model-1.safetensors", a=[1, 2])
    save(folder / "model-2.safetensors", b=[3], c=[4])
    index(
        folder,
        {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors"},
    )
    checkpoint = Checkpoint.open(folder)
    checkpoint.check({"a": (2,), "b": (1,), "c": (1,)}, [])
    np.testing.assert_array_equal(checkpoint.take("a"), [1, 2])
    np.testing.assert_array_equal(checkpoint.take("c"), [4])


def test_a_shard_that_disagrees_with_the_index_is_refused(folder):
    save(folder / "s.safetensors", a=[1], extra=[2])
    index(folder, {"a": "s.safetensors"})
    with pytest.raises(
        CheckpointError, match=r"s.safetensors: the index .* disagree about 'extra'"
    ):
        Checkpoint.open(folder)
    index(folder, {"a": "s.safetensors", "extra": "s.safetensors", "lost": "s.safetensors"})
    with pytest.raises(CheckpointError, match=r"disagree about 'lost'"):
        Checkpoint.open(folder)


def test_a_missing_shard_is_named(folder):
    index(folder, {"a": "gone.safetensors"})
    with pytest.raises(CheckpointError, match=r"names 'gone.safetensors', which is missing"):
        weight_files(folder)


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "/etc/x.safetensors",
        "a/../../x.safetensors",
        "..\\x.safetensors",
        "C:\\x.safetensors",
        "a//x.safetensors",
        "./x.safetensors",
        "x\0.safetensors",
    ],
)
def test_an_index_cannot_lead_out_of_the_folder(folder, name):
    save(folder.parent / "x.safetensors", a=[1])
    index(folder, {"a": name})
    with pytest.raises(CheckpointError, match=r"wanted a relative name without `\.\.`"):
        Checkpoint.open(folder)


@pytest.mark.parametrize("weight_map", [None, {}, [], {"a": 3}, {"a": "weights.bin"}])
def test_a_senseless_index_is_refused(folder, weight_map):
    index(folder, weight_map)
    with pytest.raises(CheckpointError, match=r"model.safetensors.index.json: "):
        weight_files(folder)


def test_a_link_out_of_the_folder_is_refused(folder):
    save(folder.parent / "outside.safetensors", a=[1])
    (folder / "model.safetensors").symlink_to("../outside.safetensors")
    with pytest.raises(CheckpointError, match=r"model.safetensors: a link leading out") as caught:
        Checkpoint.open(folder)
    assert "outside" not in str(caught.value)


def test_a_linked_directory_cannot_smuggle_a_file_in(folder):
    secret = folder.parent / "secret"
    secret.mkdir()
    save(secret / "x.safetensors", a=[1])
    (folder / "sub").symlink_to(secret)
    with pytest.raises(CheckpointError, match=r"a link leading out"):
        file_in(folder, "sub/x.safetensors")


def test_links_inside_the_folder_and_to_the_folder_are_followed(folder):
    save(folder / "real.safetensors", a=[5])
    (folder / "model.safetensors").symlink_to("real.safetensors")
    (folder.parent / "alias").symlink_to(folder)
    np.testing.assert_array_equal(Checkpoint.open(folder.parent / "alias").take("a"), [5])


def hugging_face_cache(root: Path, repository: str, target: str) -> Path:
    """The layout of ~/.cache/huggingface/hub: snapshots of links into blobs."""
    for name in ("models--org--a", "models--org--b"):
        (root / name / "blobs").mkdir(parents=True)
        save(root / name / "blobs" / "0123abcd", a=[7])
    snapshot = root / repository / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to(target)
    return snapshot


def test_a_cache_snapshot_may_link_to_its_own_blobs(tmp_path):
    snapshot = hugging_face_cache(tmp_path, "models--org--a", "../../blobs/0123abcd")
    np.testing.assert_array_equal(Checkpoint.open(snapshot).take("a"), [7])


def test_a_cache_snapshot_may_not_link_to_another_repository(tmp_path):
    snapshot = hugging_face_cache(
        tmp_path, "models--org--a", "../../../models--org--b/blobs/0123abcd"
    )
    with pytest.raises(CheckpointError, match=r"a link leading out"):
        Checkpoint.open(snapshot)


def test_a_broken_or_circular_link_and_a_pipe_are_refused(folder):
    (folder / "broken").symlink_to("nowhere")
    (folder / "circle").symlink_to("circle")
    os.mkfifo(folder / "pipe")
    with pytest.raises(CheckpointError, match=r"broken: a link to a missing file"):
        file_in(folder, "broken")
    with pytest.raises(CheckpointError, match=r"circle: cannot be opened"):
        file_in(folder, "circle")
    with pytest.raises(CheckpointError, match=r"pipe: not a regular file"):
        file_in(folder, "pipe")
    assert file_in(folder, "absent") is None


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "flax_model.msgpack"])
def test_other_formats_are_refused_with_the_way_out(folder, name):
    (folder / name).write_bytes(b"\x80\x04N.")
    with pytest.raises(CheckpointError, match=f"{name} .not read: .*save_pretrained"):
        Checkpoint.open(folder)


@pytest.mark.parametrize("name", ["tf_model.h5", "tf_model.h5.index.json", "model.ckpt.index"])
def test_tensorflow_weights_are_to_be_imported(folder, name):
    for file in (name, "pytorch_model.bin"):
        (folder / file).touch()
    with pytest.raises(CheckpointError, match=f"{name} .TensorFlow weights.*fusewire import"):
        Checkpoint.open(folder)


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_model.bin"])
def test_an_adapter_beside_whole_weights_is_not_left_out_in_silence(folder, name):
    save_file({"a": np.zeros(1, "f")}, folder / "model.safetensors")
    (folder / "adapter_config.json").touch()
    assert "a" in Checkpoint.open(folder)  # as a merged model keeps it
    (folder / name).touch()
    with pytest.raises(CheckpointError, match=rf"^model: got {name} .*; merge it .*, or remove it"):
        Checkpoint.open(folder)


def test_a_folder_without_weights_and_no_folder_are_told_apart(folder):
    with pytest.raises(
        CheckpointError, match=r"model: got an empty folder, wanted config.json with"
    ):
        Checkpoint.open(folder)
    with pytest.raises(CheckpointError, match=r"gone: no such folder"):
        open_folder(folder / "gone")
    (folder / "file").touch()
    with pytest.raises(CheckpointError, match=r"file: got a file"):
        open_folder(folder / "file")


def test_a_folder_of_model_folders_is_told_as_such(folder):
    for name in "dbac":
        (folder / name).mkdir()
        (folder / name / "config.json").touch()
        (folder / name / "model.safetensors").touch()
    wanted = r"^model: got a folder of model folders \(a, b, c, …\), .*give one of these$"
    with pytest.raises(CheckpointError, match=wanted):
        Checkpoint.open(folder)
    (folder / "modules.json").touch()  # of sentence-transformers, whose parts have folders
    with pytest.raises(CheckpointError, match=r"^model: got a/model\.safetensors"):
        Checkpoint.open(folder)


def refused(*_: object, **__: object) -> bool:
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize(("asked", "answer"), [("os.access", lambda *_: False), ("stat", refused)])
def test_a_file_without_permission_is_told_as_such(folder, monkeypatch, asked, answer):
    """Root, as which tests may run, has every permission."""
    (folder / "tokenizer.json").touch()
    root = open_folder(folder)
    if asked == "stat":
        monkeypatch.setattr("fusewire.weights.folder.open_folder", lambda _: root)
        monkeypatch.setattr(Path, "resolve", answer)
    else:
        monkeypatch.setattr(asked, answer)
    with pytest.raises(CheckpointError, match=r"^tokenizer\.json: got no permission to"):
        file_in(folder, "tokenizer.json")


def test_json_is_read_carefully(folder):
    assert read_json(folder, "config.json") is None
    for text in ("[1]", "{", '{"a":' * 100_000, "\xff"):
        (folder / "config.json").write_text(text, encoding="latin-1")
        with pytest.raises(CheckpointError, match=r"config.json: "):
            read_json(folder, "config.json")
