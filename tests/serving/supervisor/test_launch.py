"""How tritonserver is started, without starting it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from fusewire.errors import ConfigurationError
from fusewire.serving import exposure
from fusewire.serving.config import ServerSettings
from fusewire.serving.endpoint import Endpoint
from fusewire.serving.installation import Installation
from fusewire.serving.supervisor import launch
from fusewire.serving.supervisor.embedded import EmbeddedServer

from tests.server.asking import until

KEY = "a-key-of-more-than-sixteen"


def test_without_its_shared_object_nothing_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_PRELOAD", "missing.so")
    with pytest.raises(ConfigurationError, match=r"missing\.so: not found .* install fusewire"):
        launch.prepare(tmp_path)


def test_a_script_named_otherwise_passes_on_what_is_preloaded(tmp_path: Path) -> None:
    """The shell of a script must not get the key into its arguments: it would show them."""
    script = tmp_path / "wrapped"
    script.write_text('#!/bin/sh\ntr "\\0" " " < /proc/$$/cmdline; echo "$LD_PRELOAD"\n')
    script.chmod(0o700)
    launch.prepare(tmp_path)
    command = [str(script), "--http-restricted-api=$FUSEWIRE_RESTRICTED_APIS"]
    started = launch.start(command, tmp_path, KEY, working_directory=tmp_path, libraries=[])
    said, _ = started.process.communicate(timeout=60)
    started.input.close()
    assert "--http-restricted-api=$FUSEWIRE_RESTRICTED_APIS" in said
    assert KEY not in said
    assert said.endswith("./tritonserver_preload.so\n")
    assert "cannot be preloaded" not in said


def test_the_last_words_of_a_process_that_ended_are_all_read(tmp_path: Path) -> None:
    program = tmp_path / "tritonserver"
    listed = "[ $1 = --help ] && echo '  --http-port'"
    program.write_text(f"#!/bin/sh\n{listed} || echo 'E0101 first\nE0101 last'\n")
    program.chmod(0o700)
    (tmp_path / "stub").touch()
    (tmp_path / "python").mkdir()
    parts = Installation(program, tmp_path / "python", tmp_path / "stub", (), "a test")
    at = Endpoint("127.0.0.1", 1, 2, 3)
    server = EmbeddedServer(parts, ServerSettings(), at, tmp_path, KEY)
    ended = threading.Event()
    server.start([], [], lambda level, line: ended.wait(60))  # reads on when it has ended
    until(lambda: not server.running())
    threading.Timer(0.2, ended.set).start()
    assert server.last_lines == ["E0101 first", "E0101 last"]
    server.clear()


def limited(soft: int, hard: int) -> str:
    """What a process says that begins with these limits of open files."""
    program = (
        "import resource\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        "from fusewire.serving.supervisor import open_files\n"
        "open_files.raise_limit()\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], open_files.warning())\n"
    )
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout


def test_the_limit_of_open_files_is_raised_as_far_as_it_goes() -> None:
    assert limited(256, 5000) == "5000 None\n"
    assert limited(5000, 5000) == "5000 None\n"
    few = limited(256, 512)
    assert few.startswith("512 open files: got a limit of 512, wanted at least 4096")
    assert "raise the hard limit" in few


def test_a_control_key_on_the_command_line_is_named() -> None:
    settings = ServerSettings(control_key=KEY)
    words = exposure.visible_key(settings, ["fusewire", "serve", f"--control-key={KEY}"])
    assert words is not None
    assert "set FUSEWIRE_CONTROL_KEY instead" in words
    assert KEY not in words
    assert exposure.visible_key(settings, ["fusewire", "serve"]) is None
    assert exposure.visible_key(ServerSettings(), ["fusewire", "serve"]) is None
