"""Models by their id, from a stand-in of the hub: pinned, cached, offline, only what is needed.

The library reads its environment once, so each call is a process of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fusewire.errors import CheckpointError, ConfigurationError
from fusewire.hub import model_folder

from tests.hub_stand_in import TOKEN, Hub, stand_in


def files(*names: str) -> dict[str, bytes]:
    """Each with its own content: the cache holds equal files once."""
    return {name: f"content of {name}".encode() for name in names}


MODEL = files(
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
    "2_Dense/config.json",
    "model.safetensors",
)
NOT_NEEDED = files(
    ".gitattributes",
    "README.md",
    "pytorch_model.bin",
    "modeling_custom.py",
    "1_Pooling/pooling.py",
    "onnx/config.json",
    "onnx/model.onnx",
    "openvino/openvino_model.bin",
    "tf_model.h5",
    "flax_model.msgpack",
    "consolidated.safetensors",
    "model-00001-of-00002.safetensors",
    "training_args.bin",
)
_CALL = """
import sys
from fusewire.errors import FusewireError
from fusewire.hub import model_folder
try:
    print(model_folder(sys.argv[1], revision=sys.argv[2] if sys.argv[2:] else None))
except FusewireError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


class Caller:
    """Calls model_folder where the stand-in is the hub and the cache is the test's own."""

    def __init__(self, hub: Hub, home: Path) -> None:
        self.hub = hub
        self.environment = os.environ | {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home)}

    def ended(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", _CALL, *arguments],
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def folder(self, *arguments: str, **environment: str) -> Path:
        ended = self.ended(*arguments, **environment)
        assert ended.returncode == 0, ended.stderr
        return Path(ended.stdout.strip())

    def error(self, *arguments: str, **environment: str) -> str:
        ended = self.ended(*arguments, **environment)
        assert ended.returncode == 1, ended.stdout
        assert "Traceback" not in ended.stderr
        return ended.stderr.strip().splitlines()[-1]


@pytest.fixture
def call(tmp_path: Path) -> Iterator[Caller]:
    with stand_in() as hub:
        yield Caller(hub, tmp_path / "home")


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_that_exists_is_itself(tmp_path: Path) -> None:
    assert model_folder(tmp_path) == tmp_path
    assert model_folder(str(tmp_path)) == tmp_path
    with pytest.raises(ConfigurationError, match="revision: got 'main' for the folder"):
        model_folder(tmp_path, revision="main")


@pytest.mark.parametrize(
    "model", ["/missing/path", "./missing", "../missing", "a/b/c", "~/x", "", "a//b", Path("a/b")]
)
def test_what_cannot_be_an_id_is_a_missing_folder(model: str | Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder") as caught:
        model_folder(model)
    assert str(caught.value).startswith(f"{model}: ")


@pytest.mark.parametrize("model", ["tiny", "owner/tiny"])
def test_an_id_is_fetched_with_the_files_that_are_read_and_no_others(
    call: Caller, model: str
) -> None:
    commit = call.hub.commit(model, MODEL | NOT_NEEDED)
    folder = call.folder(model)
    assert folder.name == commit
    assert names_in(folder) == set(MODEL)
    assert sorted(call.hub.sent) == sorted(MODEL)


def test_shards_are_those_that_the_index_names(call: Caller) -> None:
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    index = {"weight_map": {"a": names[0], "b": names[1], "c": names[0]}}
    model = files("config.json", *names)
    model["model.safetensors.index.json"] = json.dumps(index).encode()
    call.hub.commit("owner/sharded", model | files("consolidated.safetensors"))
    folder = call.folder("owner/sharded")
    assert names_in(folder) == set(model)
    assert call.folder("owner/sharded", HF_HUB_OFFLINE="1") == folder
    (folder / names[1]).unlink()
    assert f"lacks {names[1]} of it" in call.error("owner/sharded", HF_HUB_OFFLINE="1")


def test_what_is_in_the_cache_is_not_fetched_again(call: Caller) -> None:
    call.hub.commit("owner/tiny", MODEL)
    first = call.folder("owner/tiny")
    call.hub.sent.clear()
    assert call.folder("owner/tiny") == first
    assert call.hub.sent == []


def test_a_revision_pins_every_file(call: Caller) -> None:
    old = call.hub.commit("owner/tiny", MODEL | {"config.json": b'{"old": 1}'}, "main", "v1")
    new = call.hub.commit("owner/tiny", MODEL)
    assert call.folder("owner/tiny").name == new
    for folder in (
        call.folder("owner/tiny", "v1"),
        call.folder("owner/tiny@v1"),
        call.folder(f"owner/tiny@{old}"),
    ):
        assert folder.name == old
        assert (folder / "config.json").read_bytes() == b'{"old": 1}'
    assert "got revision 'v2', wanted a branch, tag or commit" in call.error("owner/tiny@v2")
    assert "revision: got 'owner/tiny@v1' and 'v1'" in call.error("owner/tiny@v1", "v1")


def test_offline_the_cache_is_all_there_is(call: Caller) -> None:
    call.hub.commit("owner/tiny", MODEL, "main", "v1")
    folder = call.folder("owner/tiny@v1")
    call.hub.sent.clear()
    assert call.folder("owner/tiny@v1", HF_HUB_OFFLINE="1") == folder
    assert call.hub.sent == []
    for absent in ("owner/tiny", "owner/other"):
        error = call.error(absent, HF_HUB_OFFLINE="1")
        assert error.startswith(f"ConfigurationError: {absent}: no such folder here")
        assert "HF_HUB_OFFLINE is set, and it is not in the cache" in error
    (folder / "model.safetensors").unlink()
    assert "lacks model.safetensors of it" in call.error("owner/tiny@v1", HF_HUB_OFFLINE="1")


def test_without_a_network_the_cache_still_answers(call: Caller) -> None:
    call.hub.commit("owner/tiny", MODEL)
    folder = call.folder("owner/tiny")
    nowhere = "http://127.0.0.1:9"
    assert call.folder("owner/tiny", HF_ENDPOINT=nowhere) == folder
    assert f"{nowhere}/owner/other cannot be reached" in call.error(
        "owner/other", HF_ENDPOINT=nowhere
    )


def test_a_private_model_takes_the_token_and_no_message_shows_it(call: Caller) -> None:
    call.hub.commit("owner/secret", MODEL, access="private")
    error = call.error("owner/secret")
    assert "no model that you may read" in error
    assert "HF_TOKEN" in error
    wrong = "hf_wrongwrongwrongwrong"
    ended = call.ended("owner/secret", HF_TOKEN=wrong)
    assert ended.returncode == 1
    assert "HF_TOKEN" in ended.stderr
    assert wrong not in ended.stdout + ended.stderr
    ended = call.ended("owner/secret", HF_TOKEN=TOKEN)
    assert ended.returncode == 0
    assert TOKEN not in ended.stdout + ended.stderr
    assert call.hub.tokens == {TOKEN, wrong}


def test_a_gated_model_says_where_to_ask(call: Caller) -> None:
    call.hub.commit("owner/gated", MODEL, access="gated")
    assert f"accept the conditions at {call.hub.endpoint}/owner/gated" in call.error("owner/gated")


def test_a_model_that_is_not_there_may_be_a_misspelt_folder(call: Caller) -> None:
    error = call.error("model_repositroy")
    assert error.startswith("CheckpointError: model_repositroy: no such folder here, and no model")


def test_a_transfer_that_broke_off_is_continued(call: Caller) -> None:
    weights = bytes(range(256)) * (24 << 12)  # the library writes pieces of 10 MiB
    call.hub.commit("owner/tiny", MODEL | {"model.safetensors": weights})
    call.hub.break_off_after = 21 << 20
    folder = call.folder("owner/tiny")
    assert (folder / "model.safetensors").read_bytes() == weights
    assert call.hub.ranges == [f"bytes={20 << 20}-"]


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (["config.json", "pytorch_model.bin"], "pytorch_model.bin .*a pickle can run code"),
        (["tiny.Q4_K_M.gguf"], "tiny.Q4_K_M.gguf .*llama.cpp"),
        (["config.json", "onnx/model.onnx"], "onnx/model.onnx .*ONNX"),
        (["adapter_config.json", "adapter_model.safetensors"], "LoRA adapter"),
        (["config.json", "tf_model.h5"], "tf_model.h5 .*TensorFlow"),
        (["config.json", "consolidated.safetensors"], "consolidated.safetensors .*save it again"),
        (["README.md"], "no config.json"),
    ],
)
def test_other_formats_are_named_and_not_fetched(call: Caller, names: list[str], what: str) -> None:
    call.hub.commit("owner/other", files(*names))
    assert re.search(what, call.error("owner/other"))
    assert set(call.hub.sent) <= {"config.json"}
