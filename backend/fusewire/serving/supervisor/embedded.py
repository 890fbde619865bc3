"""One tritonserver process with our backend: assembled, started and removed."""

from __future__ import annotations

import collections
import contextlib
import os
import re
import shutil
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO

import fusewire
from fusewire.errors import ConfigurationError, FusewireError
from fusewire.import_path import import_path
from fusewire.serving.config import ServerSettings
from fusewire.serving.endpoint import Endpoint
from fusewire.serving.installation import Installation
from fusewire.serving.supervisor import launch, processes, tritonserver_command
from fusewire.serving.supervisor.workplace import SHARED_MEMORY, region_prefix, remove_traces

_LOG_LINE = re.compile(r"^([IWE])\d{4} ")
# Logged as an error at every start on a machine without CUDA, where it is none.
_HARMLESS = "CudaDriverHelper has not been initialized"
_SHOWN = {"error": "E", "warning": "EW", "info": "EWI", "verbose": "EWI"}
# Triton unloads a healthy Python model within two to three seconds.
_UNLOAD_S = 5.0
_END_S = 5.0  # the kernel may need this long to free a killed process's memory
_STUB_REGION = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # after the prefix
# Time for clients of ended requests to get their errors, also on a busy machine: lost_instances.cc
# checks ten times a second, and lets earlier responses arrive first.
_TOLD_S = 3.0
# Stages of stopping (csrc/tritonserver/stopping.h).
_UNREADY, _CLOSED = -1, -2
_ENTRY = """\
import sys

sys.path[:0] = {path!r}

from fusewire_model import TritonPythonModel
"""

LogLine = Callable[[str, str], None]  # level letter, line


class EmbeddedServer:
    """A running tritonserver. `start` returns at once; the caller checks readiness."""

    def __init__(
        self,
        installation: Installation,
        settings: ServerSettings,
        endpoint: Endpoint,
        workplace: Path,
        control_key: str,
        *,
        on_gpus: bool = False,
    ) -> None:
        """`workplace`: a folder for the server's files, which the caller removes. `on_gpus`:
        whether a model computes on a GPU."""
        self._installation = installation
        self._settings = settings
        self._endpoint = endpoint
        self._workplace = workplace
        self._backends = workplace / "backends"
        self._control_key = control_key
        self._on_gpus = on_gpus
        self._region_prefix = region_prefix(workplace)
        self._launched: launch.Launched | None = None
        self._threads: list[threading.Thread] = []
        self._drained = threading.Event()
        self._starting = threading.Lock()
        self._stopped = False
        self._last_lines: collections.deque[str] = collections.deque(maxlen=30)
        self.loaded: set[str] = set()
        self.failed: set[str] = set()  # models that failed to load, at this start or later
        self.loaded_at: dict[str, float] = {}  # model -> time of its last load
        self.changes = 0  # number of loads and unloads so far
        self.stub_died = False
        self._assemble()

    @property
    def pid(self) -> int:
        """The process id, -1 when there is no process (a watcher may ask at any moment)."""
        launched = self._launched
        return -1 if launched is None else launched.process.pid

    def exit_code(self) -> int | None:
        """Returns the exit code; negative: ended by that signal. None while the process runs, or
        without one."""
        launched = self._launched
        return None if launched is None else launched.process.poll()

    def running(self) -> bool:
        launched = self._launched
        return launched is not None and launched.process.poll() is None

    @property
    def last_lines(self) -> list[str]:
        """Returns the last lines of the process's output. If it has ended, waits until all of the
        output has been read."""
        if not self.running():
            for thread in self._threads:
                thread.join(_END_S)
        return list(self._last_lines)

    def start(self, repositories: Sequence[Path], models: Sequence[str], log: LogLine) -> None:
        """Starts the process with these models of these repositories. It ends with this process,
        even if this one is killed."""
        self.clear()
        self._drained.clear()
        self._last_lines.clear()
        self.loaded.clear()
        self.failed.clear()
        self.stub_died = False
        with self._starting:
            if self._stopped:
                raise FusewireError("the server was stopped while it started")
            launched = self._launched = launch.start(
                self._command(repositories, models),
                self._workplace,
                self._control_key,
                working_directory=self._backends,  # the stub imports from here first
                libraries=self._installation.libraries,
            )
        process = launched.process
        assert process.stdout is not None
        # A signal may end this between any two steps: `_threads` has only threads that run.
        self._threads = []
        self._run(self._read_log, process.stdout, log)
        self._run(_end_with, process.pid)

    def _run(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        thread.start()
        self._threads.append(thread)

    def stubs(self) -> list[processes.Stub]:
        """Returns the running stubs of this server."""
        children = processes.children(self.pid).items()
        running = [pid for pid, state in children if state == "running"]
        return [stub for pid in running if (stub := processes.stub(pid)) is not None]

    def leave_rotation(self) -> None:
        """Makes the server and its models not ready from now on. They still answer requests."""
        self._tell(_UNREADY)

    def stop(self, serving: bool = True) -> None:
        """Ends the process: it accepts no more requests, requests in flight finish within the exit
        timeout, then models unload. Requests that have not finished by then get an error. A server
        that was not `serving` yet has nothing to finish and is killed, as is one that does not end
        in time: it also waits for connections whose clients send no more.

        The server cannot unload a model that lost a stub or failed to load, and would wait for
        ever. So it is killed when its time is over, at once if a stub died. It cannot be started
        again.
        """
        with self._starting:
            self._stopped = True
        if serving and self.running():
            self._tell(_CLOSED)
            processes.kill(self.pid, signal.SIGTERM)
            deadline = time.monotonic() + self._settings.exit_timeout_s
            draining = True
            while self.running() and time.monotonic() < deadline:
                if draining and self._drained.wait(0.02):
                    draining = False
                    now = time.monotonic()
                    # To Triton a request is in flight until a model has read it, not answered it.
                    deadline = now if self.stub_died else max(deadline, now + _UNLOAD_S)
                time.sleep(0.02)
            if draining or not self.stub_died:
                self._end_requests()
        self.clear()

    def _end_requests(self) -> None:
        """Ends the remaining requests by killing their processes, which gives their clients an
        error (csrc/tritonserver/lost_instances.cc)."""
        for stub in self.stubs():
            processes.kill(stub.pid)
        deadline = time.monotonic() + _TOLD_S
        while self.running() and time.monotonic() < deadline:
            time.sleep(0.02)

    def clear(self) -> None:
        """Ends what is left of the process, and removes its shared memory and its temporary
        folders."""
        launched, self._launched = self._launched, None
        if launched is not None:
            if launched.process.poll() is None:  # otherwise its process id may be reused
                processes.kill_group(launched.process.pid)
            launched.process.wait()
            for thread in self._threads:
                thread.join(_END_S)
            launched.input.close()
        remove_traces(self._workplace)

    def reap(self, zombies: Iterable[int]) -> None:
        """Reaps children that were killed or crashed, as tritonserver does not. Afterwards nothing
        shows that they died."""
        self._tell(*zombies)

    def _tell(self, *words: int) -> None:
        launched = self._launched
        if launched is None:
            return
        with contextlib.suppress(OSError, ValueError):  # the server has ended
            for word in words:
                launched.input.write(struct.pack("i", word))

    def regions(self) -> list[str]:
        """Returns the names of the shared memory regions that the server made, one per stub."""
        return [
            path.name
            for path in SHARED_MEMORY.glob(f"{self._region_prefix}*")
            if _STUB_REGION.fullmatch(path.name.removeprefix(self._region_prefix))
        ]

    def remove_regions(self, names: Iterable[str]) -> None:
        for name in names:
            with contextlib.suppress(OSError):
                (SHARED_MEMORY / name).unlink()

    def _assemble(self) -> None:
        """Makes the backend directory, with our backend and Python's beside it. They are copies:
        the server refuses links that lead out of the directory."""
        ours = self._backends / "fusewire"
        ours.mkdir(parents=True)
        # The stub ignores PYTHONPATH, so the entry file sets the import path of these packages.
        shutil.copy(_backend_model(), ours / "fusewire_model.py")
        (ours / "model.py").write_text(_ENTRY.format(path=import_path()))
        python = self._backends / "python"
        python.mkdir()
        for path in self._installation.python_backend.iterdir():
            if path.is_file():
                shutil.copy(path, python / path.name)
        shutil.copy(self._installation.stub, python / "triton_python_backend_stub")
        launch.prepare(self._workplace)

    def _command(self, repositories: Sequence[Path], models: Sequence[str]) -> list[str]:
        return tritonserver_command.command(
            self._installation,
            self._settings,
            self._endpoint,
            repositories=repositories,
            models=models,
            backends=self._backends,
            region_prefix=self._region_prefix,
            on_gpus=self._on_gpus,
        )

    def _read_log(self, output: IO[str], log: LogLine) -> None:
        level, usage = "I", False
        with output:
            for line in output:
                line = line.rstrip()
                # The message on an invalid flag is one line before or after 400 lines of usage.
                usage = line.startswith("Usage: tritonserver") or (
                    usage and not line.startswith("Bad option")
                )
                if usage:
                    continue
                begins = _LOG_LINE.match(line)
                if begins:
                    level = begins[1]
                self._last_lines.append(line)
                self.changes += "successfully loaded '" in line or "successfully unloaded '" in line
                if loaded := re.search(r"successfully loaded '([^']+)'", line):
                    self.loaded.add(loaded[1])
                    self.loaded_at[loaded[1]] = time.monotonic()
                if failed := re.search(r"failed to load '([^']+)'", line):
                    self.failed.add(failed[1])
                if "All models are stopped, unloading models" in line:
                    self._drained.set()
                if level in _SHOWN[self._settings.log_level] and _HARMLESS not in line:
                    log(level, line)


def _backend_model() -> Path:
    """Returns model.py: inside the package where that is installed, beside it in the source
    tree."""
    package = Path(fusewire.__file__).parent
    for path in (package / "serving" / "instance" / "triton_model.py", package.parent / "model.py"):
        if path.is_file():
            return path
    raise ConfigurationError(
        "model.py: not found beside the package fusewire, wanted the backend's entry file; "
        "install fusewire again"
    )


def _end_with(server: int) -> None:
    """Waits until the server ends, then ends its stubs and waits for them. A stub that is being
    loaded would wait for the server for ever, and keep its inherited ports and connections open."""
    with contextlib.suppress(ChildProcessError):  # another thread has waited for it already
        os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
    processes.kill_group(server)
    processes.wait_for_group(server, _END_S)
