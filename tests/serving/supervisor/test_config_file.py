"""`fusewire serve --config`: what the file says, where it is wrong, and how it is printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from fusewire.errors import ConfigurationError
from fusewire.serving.config import Deployment, ServerSettings, validated
from fusewire.serving.supervisor.config_file import ConfigFile, printed
from fusewire.serving.supervisor.sources import Source

TEXT = """\
http_port: 9000
tritonserver_args: [--rate-limit=off]
models:
  - name: encoder
    source: /models/bert
    device: cpu
    task: embed
    max_batch_tokens: 1024
    queue_delay_us: 300
  - source: repository
  - source: owner/model
    revision: main
"""


def read(tmp_path: Path, text: str) -> ConfigFile:
    path = tmp_path / "fusewire.yaml"
    path.write_text(text)
    return ConfigFile(path)


def test_a_file_has_settings_of_the_server_and_of_each_model(tmp_path: Path) -> None:
    file = read(tmp_path, TEXT)
    assert file.server == {"http_port": 9000, "tritonserver_args": ["--rate-limit=off"]}
    assert file.sources == [
        Source(
            "/models/bert",
            "encoder",
            settings={"task": "embed", "max_batch_tokens": 1024},
            deployment=Deployment(device="cpu", queue_delay_us=300),
        ),
        Source("repository"),
        Source("owner/model", revision="main"),
    ]


def test_what_is_printed_is_read_as_the_same(tmp_path: Path) -> None:
    file = read(tmp_path, TEXT)
    settings = validated(ServerSettings, file.server)
    text = printed(settings, file.sources)
    again = read(tmp_path, text)
    assert validated(ServerSettings, again.server) == settings
    assert again.sources == file.sources
    assert printed(settings, again.sources) == text


def test_a_secret_is_not_printed(tmp_path: Path) -> None:
    key = "a-key-of-sixteen-letters"
    text = printed(ServerSettings(control_key=key), [Source("repository")])
    assert key not in text
    assert "# control_key is set" in text
    assert read(tmp_path, text).sources == [Source("repository")]


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    file = read(tmp_path, "# nothing\n")
    assert (file.server, file.sources) == ({}, [])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "line 1: not valid YAML"),
        ("host: x\nhttp_prt: 1", "line 2: http_prt: got an unknown setting.*mean http_port"),
        ("device: cpu", "line 1: device: .*move it under models"),
        ("http_port: many", "line 1: http_port: got 'many', wanted integer"),
        ("host: x\nhttp_port: true", "line 2: http_port: got true, wanted integer"),
        ("watch_interval_s: yes", "line 1: watch_interval_s: got true, wanted number"),
        ("start_timeout_s: .inf", "line 1: start_timeout_s: got inf, wanted a finite number"),
        ("models:\n- source: x\n  threads: no", "line 3: threads: got false, wanted integer"),
        ("http_port: 1\nhttp_port: 2", "line 2: http_port: set twice"),
        ("tritonserver_args: --x", "line 1: tritonserver_args: got '--x', wanted list;"),
        ("- a\n- b", "wanted keys and values"),
        ("models: bert", "line 1: models: got 'bert', wanted a list"),
        ("models: []", "line 1: models: got none, wanted a list; add - source"),
        ("http_port: 1\nmodels:", "line 2: models: got none, wanted a list; add - source"),
        ("models:\n- bert", "line 2: models: got 'bert', wanted keys and values"),
        ("models:\n- name: x", "line 2: models: got no source"),
        ("models:\n- source: x\n  devise: cpu", "line 3: devise: .*did you mean device"),
        ("models:\n- source: x\n  device: tpu", "device: got 'tpu'"),
        ("models:\n- source: x\n  instances: 0", "line 3: instances: got 0"),
        ("models:\n- source: x\n  max_length: 0", "line 3: max_length: got 0"),
        ("models:\n- source: x\n  max_waiting: 0", "line 3: max_waiting: got 0"),
        ("models:\n- source: x\n  task: embed\n  max_waiting: 1", "line 4: max_waiting: "),
        ("models:\n- source: x\n  name: 1", "line 3: name: got 1, wanted text"),
        ("models:\n- source: .\n  task: embed", "line 2: models: got settings for the repository"),
        ("a: &x 1\nb: *x", "line 2: got the alias \\*x"),
        ("tritonserver_args: [--http-port=1]", "got --http-port"),
        ("host: !!python/object/apply:os.system [ls]", "line 1: not valid YAML"),
        ("[" * 50_000, "line 1: got over 16 levels of nesting"),
        ("5: 6", "5: got an unknown setting"),
        ("#" * (1 << 21), "more than 1048576 bytes"),
        ("host: \x00", "not valid YAML"),
    ],
)
def test_an_error_names_file_line_and_key(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        read(tmp_path, text)
    assert str(tmp_path / "fusewire.yaml") in str(caught.value) or "got --http-port" in words
    assert len(str(caught.value)) < 1200


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"config: got .*nowhere.yaml"):
        ConfigFile(tmp_path / "nowhere.yaml")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "fusewire.yaml"
    path.write_bytes(b"host: \xff\xfe")
    with pytest.raises(ConfigurationError, match="not valid YAML"):
        ConfigFile(path)
