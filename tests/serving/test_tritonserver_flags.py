"""Flags behind `--`: handed on, unless fusewire sets them itself. Flags that protect: set where
the program knows them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from fusewire.errors import ConfigurationError
from fusewire.serving.config import ServerSettings, validated
from fusewire.serving.endpoint import Endpoint
from fusewire.serving.installation import Installation, find
from fusewire.serving.supervisor.embedded import EmbeddedServer
from fusewire.serving.supervisor.tritonserver_command import PROTECTIVE
from fusewire.serving.tritonserver_flags import REFUSED, check, known
from fusewire.tasks.inputs import MOST_CHARACTERS

# How tritonserver lists them, and what versions later than the embedded one add.
HELP = """\
Usage: tritonserver [options]
  --help
\tPrint usage

HTTP:
  --http-port <integer>
\tThe port for the server to listen on.
"""
NEWER = """\
  --http-max-input-size <integer>
\tMaximum size.
  --grpc-max-response-pool-size <integer>
  --allow-client-shm <boolean>
"""


def installation() -> Installation:
    try:
        return find()
    except ConfigurationError as error:
        pytest.skip(str(error))


def program(folder: Path, text: str, then: str = "exit 1") -> Installation:
    """A program that prints this."""
    path = folder / "tritonserver"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}END\n{then}\n")
    path.chmod(0o700)
    return Installation(path, folder, folder / "stub", (), "a test")


def set_by(server: EmbeddedServer) -> dict[str, str]:
    words = server._command([], [])[1:]
    return {word[2:].partition("=")[0]: word.partition("=")[2] for word in words}


def test_protective_flags_are_set_where_the_program_knows_them(tmp_path: Path) -> None:
    for name, text, protected in (
        ("older", HELP, set()),
        ("newer", HELP + NEWER, set(re.findall("--([a-z-]+)", NEWER))),
    ):
        folder = tmp_path / name
        folder.mkdir()
        fake = program(folder, text)
        at = Endpoint("127.0.0.1", 1, 2, 3)
        # Assembled from real parts, as only the program differs.
        server = EmbeddedServer(installation(), ServerSettings(), at, folder, "key")
        server._installation = fake
        assert set_by(server).keys() & PROTECTIVE.keys() == protected
    assert set_by(server)["allow-client-shm"] == "false"
    assert int(set_by(server)["http-max-input-size"]) > len("𝄞".encode()) * MOST_CHARACTERS


def test_an_operator_overrides_protective_flags(tmp_path: Path) -> None:
    for flag in PROTECTIVE:
        check([f"--{flag}=1"])
    fake = program(tmp_path, HELP + NEWER)
    settings = ServerSettings(tritonserver_args=("--allow-client-shm=true",))
    at = Endpoint("127.0.0.1", 1, 2, 3)
    server = EmbeddedServer(installation(), settings, at, tmp_path, "key")
    server._installation = fake
    assert set_by(server)["allow-client-shm"] == "true"  # the last


def test_a_program_is_asked_for_its_flags_once_until_it_changes(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    fake = program(tmp_path, HELP, f"echo >> {asked}")
    assert known(fake) == known(fake) == {"help", "http-port"}
    assert asked.read_text() == "\n"
    os.utime(fake.tritonserver, (1, 1))
    known(fake)
    assert asked.read_text() == "\n\n"


@pytest.mark.parametrize(("text", "named"), [("it is broken\n", "it is broken"), ("", "''")])
def test_a_program_without_flags_is_refused(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=f"tritonserver: got .*{named}.*--tritonserver"):
        known(program(tmp_path, text))


def test_a_program_that_hangs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusewire.serving.tritonserver_flags._HELP_TIMEOUT_S", 0.5)
    with pytest.raises(ConfigurationError, match=r"timed out after 0\.5 seconds"):
        known(program(tmp_path, HELP, "exec sleep 60"))


def test_flags_with_values_either_way_are_handed_on(tmp_path: Path) -> None:
    words = ("--trace-config=mode=opentelemetry", "--rate-limit", "off", "--enable-peer-access")
    settings = validated(ServerSettings, {"tritonserver_args": words})
    server = EmbeddedServer(
        installation(), settings, Endpoint("127.0.0.1", 1, 2, 3), tmp_path, "key"
    )
    assert tuple(server._command([], [])[-len(words) :]) == words


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--http-port=1"], "got --http-port, .* use --http-port before the --"),
        (["--http-port", "1"], "got --http-port"),
        (["--http-po=1"], "got --http-po"),  # tritonserver takes any unambiguous beginning
        (["--model-control-mode=none"], "fusewire controls which models are loaded"),
        (["--grpc-use-ssl=true"], "terminate TLS in a gateway"),
        (["--backend-config=python,shm-region-prefix-name=x"], "leave it out"),
        (["--backend-config", "python,shm-region-prefix-name=x"], "leave it out"),
        (["my-model"], "models go before the --"),
        (["--rate-limit=off", "my-model"], "models go before the --"),
        (["-h"], "got -h"),
        (["--"], "got --"),
    ],
)
def test_a_flag_of_ours_is_refused_with_what_to_do(words: list[str], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        check(words)


def test_every_flag_that_fusewire_sets_is_refused(tmp_path: Path) -> None:
    server = EmbeddedServer(
        installation(), ServerSettings(), Endpoint("127.0.0.1", 1, 2, 3), tmp_path, "key"
    )
    words = server._command([Path("repository")], ["model"])[1:]
    repeatable = {"backend-config", "metrics-config"}
    ours = {word.removeprefix("--").partition("=")[0] for word in words}
    ours -= repeatable | PROTECTIVE.keys()
    assert len(ours) > 15
    assert ours <= REFUSED.keys()


def test_no_other_flag_of_tritonserver_is_refused() -> None:
    flags = known(installation())
    assert len(flags) > 60
    refused = set()
    for flag in flags:
        try:
            check([f"--{flag}=1"])
        except ConfigurationError:
            refused.add(flag)
    assert refused == flags & REFUSED.keys()
