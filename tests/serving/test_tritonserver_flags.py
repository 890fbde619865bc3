"""Flags behind `--`: handed on, unless fusewire sets them itself."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fusewire.errors import ConfigurationError
from fusewire.serving.config import ServerSettings, validated
from fusewire.serving.embedded import EmbeddedServer
from fusewire.serving.endpoint import Endpoint
from fusewire.serving.installation import Installation, find
from fusewire.serving.tritonserver_flags import REFUSED, check


def installation() -> Installation:
    try:
        return find()
    except ConfigurationError as error:
        pytest.skip(str(error))


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
    ours = {word.removeprefix("--").partition("=")[0] for word in words} - repeatable
    assert len(ours) > 15
    assert ours <= REFUSED.keys()


def test_no_other_flag_of_tritonserver_is_refused() -> None:
    program = installation()
    done = subprocess.run(
        [program.tritonserver, "--help"],
        capture_output=True,
        text=True,
        env={"LD_LIBRARY_PATH": ":".join(map(str, program.libraries))},
    )
    flags: list[Any] = re.findall(r"^  --([a-z0-9-]+)", done.stdout + done.stderr, re.MULTILINE)
    assert len(flags) > 60
    refused = set()
    for flag in flags:
        try:
            check([f"--{flag}=1"])
        except ConfigurationError:
            refused.add(flag)
    assert refused == set(flags) & REFUSED.keys()
