"""Models by their id, from a stand-in of the hub: pinned, cached, offline, and only the needed
files.

The library reads its environment once, so each call has its own process.
"""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fusewire.errors import CheckpointError, ConfigurationError
from fusewire.hub import described, model_folder
from fusewire.hub_errors import translated

from tests.hub_stand_in import TOKEN, Hub, stand_in


def files(*names: str) -> dict[str, bytes]:
    """Returns files with different contents: the cache stores equal files once."""
    return {name: f"content of {name}".encode() for name in names}


def config(**changes: object) -> dict[str, bytes]:
    values = {"model_type": "bert", "vocab_size": 9, "hidden_size": 8, "num_attention_heads": 2}
    values |= {"intermediate_size": 8, "num_hidden_layers": 1, "max_position_embeddings": 9}
    return {"config.json": json.dumps(values | {"type_vocab_size": 2} | changes).encode()}


MODEL = config() | files(
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
    "2_Dense/model.safetensors",
    "model.safetensors",
)
NOT_NEEDED = files(
    ".gitattributes",
    "README.md",
    "pytorch_model.bin",
    "modeling_custom.py",
    "1_Pooling/pooling.py",
    "0_Transformer/model.safetensors",
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
    """Calls model_folder with the stand-in as the hub and the test's own cache."""

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
    "model", ["/missing/path", "./missing", "../missing", "a/b/c", "~/x", "a//b", Path("a/b")]
)
def test_what_cannot_be_an_id_is_a_missing_folder(model: str | Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder") as caught:
        model_folder(model)
    assert str(caught.value).startswith(f"{model}: ")


@pytest.mark.parametrize("model", ["", " ", "a\0b", "a\n"])
def test_a_name_that_cannot_be_seen_is_quoted(model: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        model_folder(model)
    assert str(caught.value).startswith(f"{model!r}: no such folder; give the path of")


@pytest.mark.parametrize("model", [None, 5, ["folder"]])
def test_what_is_no_text_is_neither_folder_nor_id(model: object) -> None:
    with pytest.raises(ConfigurationError, match=r"model: got (None|int|list), wanted the path of"):
        model_folder(model)  # type: ignore[arg-type]


def test_without_the_library_an_id_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigurationError, match=r"needs .* pip install 'fusewire\[hub\]'"):
        model_folder("owner/tiny")
    assert "pip install 'fusewire[hub]'" in described()


def test_doctor_shows_where_models_come_from(tmp_path: Path) -> None:
    call = [sys.executable, "-c", "from fusewire.hub import described; print(described())"]
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_TOKEN": TOKEN}
    environment["HF_ENDPOINT"] = "http://127.0.0.1:9"
    online = subprocess.check_output(call, env=environment, text=True)
    assert f"cache {tmp_path}/hub, http://127.0.0.1:9, a token" in online
    assert TOKEN not in online
    environment["HF_HUB_OFFLINE"] = "1"
    assert "offline (HF_HUB_OFFLINE)" in subprocess.check_output(call, env=environment, text=True)


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
    model = config() | files(*names)
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
    old = call.hub.commit("owner/tiny", MODEL | config(old=1), "main", "v1")
    new = call.hub.commit("owner/tiny", MODEL)
    assert call.folder("owner/tiny").name == new
    for folder in (
        call.folder("owner/tiny", "v1"),
        call.folder("owner/tiny@v1"),
        call.folder(f"owner/tiny@{old}"),
    ):
        assert folder.name == old
        assert json.loads((folder / "config.json").read_bytes())["old"] == 1
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


def test_an_error_of_the_hub_is_no_missing_network(call: Caller) -> None:
    call.hub.commit("owner/tiny", MODEL)
    call.hub.broken = True
    assert "got HTTP status 500" in call.error("owner/tiny")


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
    call.ended("owner/tiny")  # older versions of the library fail here, newer ones retry
    folder = call.folder("owner/tiny")
    assert (folder / "model.safetensors").read_bytes() == weights
    assert call.hub.ranges == [f"bytes={20 << 20}-"]


@pytest.mark.parametrize("revision", ["", "../main", "a/../../b", "-x", "a b", "/etc"])
def test_what_cannot_be_a_revision_is_refused(revision: str) -> None:
    words = re.escape(f"revision: got {revision!r}, wanted a branch, tag or commit of owner/tiny")
    with pytest.raises(ConfigurationError, match=words):
        model_folder(f"owner/tiny@{revision}")
    with pytest.raises(ConfigurationError, match=words):
        model_folder("owner/tiny", revision=revision)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "x"), "no space left .* set HF_HOME to a folder on another disk"),
        (PermissionError(errno.EACCES, "x", "/cache/f"), "no permission to write /cache/f"),
        (RuntimeError("https://cdn/signed?key=secret"), "broke off .RuntimeError.; run it again"),
    ],
)
def test_what_goes_wrong_on_this_machine_has_its_remedy(error: Exception, words: str) -> None:
    with (
        pytest.raises(ConfigurationError, match=f"^owner/tiny: .*{words}") as caught,
        translated("owner/tiny", None, []),
    ):
        raise error
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (["config.json", "pytorch_model.bin"], "pytorch_model.bin .*a pickle can run code"),
        (["adapter_config.json", "adapter_model.safetensors"], "LoRA adapter"),
        (["README.md"], "no config.json"),
    ],
)
def test_other_formats_are_named_and_not_fetched(call: Caller, names: list[str], what: str) -> None:
    model = {name: config().get(name, b"") for name in names}
    call.hub.commit("owner/other", model)
    assert re.search(f"owner/other: .*{what}", call.error("owner/other"))
    assert set(call.hub.sent) <= {"config.json"}


def test_the_weights_of_a_model_that_is_not_supported_are_not_fetched(call: Caller) -> None:
    call.hub.commit("owner/other", MODEL | config(model_type="led"))
    error = call.error("owner/other")
    assert "owner/other: config.json: model_type: got 'led', wanted one of bert," in error
    assert "model.safetensors" not in call.hub.sent
