"""Whether a repository entry, as it is now, gives what served."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fusewire.serving import model_config
from fusewire.serving.supervisor.pins import Pin
from google.protobuf import json_format

TEXT = """\
name: "m"
backend: "fusewire"
max_batch_size: 64
input { name: "text_input" data_type: TYPE_STRING dims: 1 }
instance_group { count: 1 kind: KIND_CPU }
parameters { key: "task" value { string_value: "embed" } }
"""


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    entry = tmp_path / "m"
    (entry / "1").mkdir(parents=True)
    (entry / "warmup").mkdir()
    (entry / "config.pbtxt").write_text(TEXT)
    return entry


def ran(entry: Path, *versions: int) -> Pin:
    """As the server tells it: with defaults filled in, and the count of reloads."""
    message = model_config.read(entry / "config.pbtxt")
    config: dict[str, Any] = json.loads(
        json_format.MessageToJson(
            message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
    )
    config["instance_group"][0]["name"] = "m_0"
    config["parameters"]["reloads"] = {"string_value": "3"}
    return Pin(config, versions)


def test_what_did_not_change_is_given(entry: Path) -> None:
    assert ran(entry, 1).in_repositories([entry.parent], "m")


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: (entry / "2").mkdir(),
        lambda entry: (entry / "1").rename(entry / "old"),
        lambda entry: (entry / "config.pbtxt").unlink(),
        lambda entry: (entry / "config.pbtxt").write_text("no configuration"),
        lambda entry: (entry / "config.pbtxt").write_text(TEXT.replace("64", "32")),
        lambda entry: (entry / "config.pbtxt").write_text(TEXT.replace("embed", "fill")),
        lambda entry: (entry / "config.pbtxt").write_text(TEXT + 'default_model_filename: "x"'),
    ],
    ids=["newer", "gone", "no config", "broken config", "batch", "parameter", "field"],
)
def test_what_changed_is_not(entry: Path, change: Callable[[Path], object]) -> None:
    pin = ran(entry, 1)
    change(entry)
    assert not pin.in_repositories([entry.parent], "m")


@pytest.mark.parametrize(
    ("policy", "versions"),
    [
        ("", (9,)),
        ("version_policy { latest { num_versions: 2 } }", (3, 9)),
        ("version_policy { all {} }", (1, 3, 9)),
        ("version_policy { specific { versions: [1, 3, 4] } }", (1, 3)),
    ],
)
def test_the_version_policy_chooses_as_tritons(
    entry: Path, policy: str, versions: tuple[int, ...]
) -> None:
    (entry / "3").mkdir()
    (entry / "9").mkdir()
    (entry / "config.pbtxt").write_text(TEXT + policy)
    assert ran(entry, *versions).in_repositories([entry.parent], "m")
    assert not ran(entry, *versions, 11).in_repositories([entry.parent], "m")


def test_an_override_pins_the_versions_and_counts_reloads(entry: Path) -> None:
    config = ran(entry, 1).override([1])
    assert config["version_policy"] == {"specific": {"versions": [1]}}
    assert config["parameters"]["reloads"] == {"string_value": "4"}
    assert config["parameters"]["task"] == {"string_value": "embed"}
    assert config["max_batch_size"] == 64
