"""A `fusewire serve` under a keeper: where it listens, its processes, its memory, its end."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from tests.attacks import keeper

LIMIT_MIB = 5120  # of the whole service; beyond it the keeper ends it
_SERVER_MEMORY_MIB = 1536  # the service's own limit of tritonserver, where it has one
_READY_S = 60.0
_READING_S = 20.0  # the keeper reads five times a second, where it gets a core
_ROOT = Path(__file__).parents[2]
_KEEPER = (sys.executable, "-m", "tests.attacks.keeper")
_STUB = "triton_python_backend_stub"


class NotReady(Exception):
    """The service did not start."""


class Service:
    """One service from start to end; `folder`, empty, is for its logs and temporary files."""

    def __init__(
        self,
        folder: Path,
        sources: Sequence[str],
        flags: Sequence[str] = (),
        *,
        nofile: int = 0,
        after: Service | None = None,
    ) -> None:
        """`nofile`: soft and hard limit of open files, 0: as this process has them. `after`: whose
        ports and temporary folder it gets."""
        self.folder = folder
        self.temporary = folder / "tmp" if after is None else after.temporary
        for path in (folder, self.temporary):
            path.mkdir(parents=True, exist_ok=True)
        self.control_key = secrets.token_hex(16)
        self.memory: list[tuple[float, int]] = []  # (time.monotonic(), bytes)
        self._regions: list[str] = []  # that it ever had
        self.exit_code: int | None = None
        self.over_limit = False
        self.alone = True  # no other tritonserver ran meanwhile
        self.began = time.time()
        chosen = {} if after is None else after.ports
        command = [sys.executable, "-m", "fusewire", "serve", *sources, "--json", "--device=cpu"]
        for entrance in ("http", "grpc", "metrics", "openai"):
            command.append(f"--{entrance}-port={chosen.get(entrance, 0)}")
        command += ["--log-level=info", "--no-access-log", "--exit-timeout-s=3", *flags]
        if "--memory-limit-mib" in _serve_help():
            command.append(f"--memory-limit-mib={_SERVER_MEMORY_MIB}")
        self._keeper = subprocess.Popen(
            [*_KEEPER, str(LIMIT_MIB), str(nofile), str(folder), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
            env=_environment()
            | {"TMPDIR": str(self.temporary), "FUSEWIRE_CONTROL_KEY": self.control_key},
        )
        assert self._keeper.stdout is not None
        started = self._keeper.stdout.readline()
        if not started:
            raise NotReady("the keeper did not start")
        self.pid: int = json.loads(started)["pid"]
        threading.Thread(target=self._read, daemon=True).start()

    def wait_ready(self) -> None:
        """Fills `addresses`; NotReady with the end of the log."""
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline and self.exit_code is None:
            for event in self.events():
                if event["event"] == "ready":
                    names = ("http", "grpc", "metrics", "openai")
                    self.addresses = {name: event[name].partition("/")[0] for name in names}
                    return
            time.sleep(0.05)
        raise NotReady("\n".join(self.log().splitlines()[-6:]) or f"exit code {self.exit_code}")

    @property
    def ports(self) -> dict[str, int]:
        return {name: int(at.rpartition(":")[2]) for name, at in self.addresses.items()}

    def events(self) -> list[dict[str, Any]]:
        """What it printed so far."""
        lines = (self.folder / "out").read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines if line.startswith("{")]

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def processes(self) -> list[psutil.Process]:
        """All of them, zombies included."""
        return keeper.descendants(self._keeper.pid)

    def supervisor(self) -> psutil.Process:
        return psutil.Process(self.pid)

    def tritonserver(self) -> psutil.Process:
        return self._one("tritonserver", lambda words: Path(words[0]).name == "tritonserver")

    def stub(self, model: str) -> psutil.Process:
        """The process of the model's newest instance."""

        def runs(words: list[str]) -> bool:
            return Path(words[0]).name == _STUB and Path(words[1]).parents[1].name == model

        return self._one(f"a process of {model}", runs)

    def gateway(self) -> psutil.Process:
        """The newest process that listens on the OpenAI endpoint's port; others may keep its socket
        open."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                for each in process.net_connections("tcp"):
                    port = each.laddr.port if each.laddr else None
                    if each.status == psutil.CONN_LISTEN and port == self.ports["openai"]:
                        found.append((process.create_time(), process.pid, process))
        assert found, "no process listens on the port of the OpenAI endpoint"
        return max(found)[2]

    def regions(self) -> list[Path]:
        """Its shared memory, in use or left over."""
        return [path for path in map(Path, list(self._regions)) if path.exists()]

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, timeout_s: float) -> int | None:
        """The exit code, None when it is still running then."""
        deadline = time.monotonic() + timeout_s
        while self.exit_code is None and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.exit_code

    def end(self) -> None:
        """Ends whatever is left, by force, and removes its shared memory."""
        self._keeper.stdin.close()  # type: ignore[union-attr]
        self._keeper.wait()
        for region in self.regions():
            region.unlink(missing_ok=True)

    def used_since(self, when: float) -> list[int]:
        """Readings of bytes in use that came after time.monotonic() `when`; waits for the first."""
        deadline = time.monotonic() + _READING_S
        while self.memory[-1][0] <= when and self.exit_code is None:
            assert time.monotonic() < deadline, f"no reading of the memory for {_READING_S:.0f} s"
            time.sleep(0.02)
        return [used for read, used in self.memory if read > when]

    def _one(self, what: str, fits: Callable[[list[str]], bool]) -> psutil.Process:
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if len(words) > 1 and fits(words):
                    found.append((process.create_time(), process.pid, process))
        assert found, f"{what}: none runs"
        return max(found)[2]

    def _read(self) -> None:
        assert self._keeper.stdout is not None
        with contextlib.suppress(ValueError):  # closed meanwhile
            for line in self._keeper.stdout:
                event = json.loads(line)
                if event["event"] == "memory":
                    self.memory.append((time.monotonic(), event["bytes"]))
                elif event["event"] == "region":
                    self._regions.append(event["path"])
                elif event["event"] == "others":
                    self.alone = False
                elif event["event"] == "limit":
                    self.over_limit = True
                elif event["event"] == "ended":
                    self.exit_code = event["code"]


@cache
def _serve_help() -> str:
    command = [sys.executable, "-m", "fusewire", "serve", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, env=_environment(), check=True)
    return done.stdout


def _environment() -> dict[str, str]:
    """Without settings of another service, and wide enough for whole words in --help."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FUSEWIRE_")}
    return kept | {"COLUMNS": "200"}
