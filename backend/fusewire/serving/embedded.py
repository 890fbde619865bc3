"""One tritonserver process with our backend in it: assembled, started and removed."""

from __future__ import annotations

import collections
import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import fusewire
from fusewire import devices
from fusewire.errors import ConfigurationError, FusewireError
from fusewire.serving import processes
from fusewire.serving.config import ServerSettings
from fusewire.serving.endpoint import CONTROL_HEADER, Endpoint
from fusewire.serving.environment import without_secrets
from fusewire.serving.installation import Installation

# Restricted to holders of the control key: load code, map memory, read or redirect logs.
RESTRICTED_APIS = "shared-memory,model-repository,trace,logging"
_SHARED_MEMORY = Path("/dev/shm")
_LOG_LINE = re.compile(r"^([IWE])\d{4} ")
# Logged as an error by every start on a machine without CUDA, and no error there.
_HARMLESS = "CudaDriverHelper has not been initialized"
_SHOWN = {"error": "E", "warning": "EW", "info": "EWI", "verbose": "EWI"}
# Triton lets go of a healthy Python model within two to three seconds.
_UNLOAD_S = 5.0
# The server's HTTP threads put a body of the type that curl -d and urllib send
# (application/x-www-form-urlencoded) on their stacks, twice, and die where it does not fit. A
# stack is address space until it is used, but where memory is not overcommitted it counts. The
# soft limit at a program's start is what its threads get ("unlimited": 2 MiB).
_STACK_BYTES = 256 << 20
# Given a process id and a program: becomes the program, with large stacks as far as the hard limit
# allows. It ends (PR_SET_PDEATHSIG) when that process, its parent, does. A `preexec_fn` would run
# Python in a fork of this process, and that crashes now and then where gRPC has threads.
_DYING_WITH_PARENT = f"""\
import ctypes, os, resource, sys
ctypes.CDLL(None).prctl(1, {signal.SIGTERM:d})
hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
soft = {_STACK_BYTES} if hard == resource.RLIM_INFINITY else min({_STACK_BYTES}, hard)
resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
_ENTRY = """\
import sys

sys.path[:0] = {path!r}

from fusewire_model import TritonPythonModel
"""

LogLine = Callable[[str, str], None]  # level letter, line


class EmbeddedServer:
    """A running tritonserver. `start` returns at once; readiness is the caller's question."""

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
        """`workplace`: an empty folder for the backend directory, removed by the caller.
        `on_gpus`: whether a model computes on one."""
        self._installation = installation
        self._settings = settings
        self._endpoint = endpoint
        self._backends = workplace / "backends"
        self._control_key = control_key
        self._on_gpus = on_gpus
        self._region_prefix = f"fusewire_{os.getpid()}_{secrets.token_hex(4)}_"
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._drained = threading.Event()
        self._starting = threading.Lock()
        self._stopped = False
        self.last_lines: collections.deque[str] = collections.deque(maxlen=30)
        self.loaded: set[str] = set()
        self.loaded_at: dict[str, float] = {}  # the last time
        self.stub_died = False
        self._assemble()

    @property
    def pid(self) -> int:
        """The process id, -1 when there is no process (a watcher may ask at any moment)."""
        process = self._process
        return -1 if process is None else process.pid

    def exit_code(self) -> int | None:
        """Negative: ended by that signal. None while it runs, or when there is no process."""
        process = self._process
        return None if process is None else process.poll()

    def running(self) -> bool:
        process = self._process
        return process is not None and process.poll() is None

    def start(self, repositories: Sequence[Path], models: Sequence[str], log: LogLine) -> None:
        """Starts the process with these models of these repositories.

        The process ends with the thread that calls this, even if that is killed.
        """
        self.clear()
        self._drained.clear()
        self.last_lines.clear()
        self.loaded.clear()
        self.stub_died = False
        with self._starting:
            if self._stopped:
                raise FusewireError("the server was stopped while it started")
            start = [sys.executable, "-ISc", _DYING_WITH_PARENT, str(os.getpid())]
            process = self._process = subprocess.Popen(
                [*start, *self._command(repositories, models)],
                env=self._environment(),
                cwd=self._backends,  # the stub imports from its working folder first
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C is ours to handle
            )
        assert process.stdout is not None
        self._reader = threading.Thread(
            target=self._read_log, args=(process.stdout, log), daemon=True
        )
        self._reader.start()
        threading.Thread(target=_end_with, args=(process.pid,), daemon=True).start()

    def stubs(self) -> list[processes.Stub]:
        """The stubs of this server that are alive."""
        living = [pid for pid, dead in processes.children(self.pid).items() if not dead]
        return [stub for pid in living if (stub := processes.stub(pid)) is not None]

    def stop(self, serving: bool = True) -> None:
        """Ends the process: requests in flight finish within the exit timeout, then models unload.
        One that was not `serving` yet has nothing to finish and is killed.

        The server cannot unload a model that lost a stub or failed to load, and would wait in
        vain; so it is killed when unloading takes longer than it does, at once if a stub died.
        It is not started again.
        """
        with self._starting:
            self._stopped = True
        if serving and self.running():
            processes.kill(self.pid, signal.SIGTERM)
            deadline = time.monotonic() + self._settings.exit_timeout_s + _UNLOAD_S
            draining = True
            while self.running() and time.monotonic() < deadline:
                if draining and self._drained.wait(0.02):
                    draining = False
                    deadline = time.monotonic() + (0 if self.stub_died else _UNLOAD_S)
                time.sleep(0.02)
        self.clear()

    def clear(self) -> None:
        """Ends whatever is left of the process and removes its shared memory."""
        process, self._process = self._process, None
        if process is not None:
            if process.poll() is None:  # else its process id is not ours any more
                processes.kill_group(process.pid)
            process.wait()
            if self._reader is not None:
                self._reader.join(5)
        for region in _SHARED_MEMORY.glob(f"{self._region_prefix}*"):
            with contextlib.suppress(OSError):
                region.unlink()

    def _assemble(self) -> None:
        """The backend directory: ours, and Python's beside it (copies: the server refuses links
        that lead out of the directory)."""
        ours = self._backends / "fusewire"
        ours.mkdir(parents=True)
        # The stub ignores PYTHONPATH, so the entry file carries the path to these same packages.
        shutil.copy(_backend_model(), ours / "fusewire_model.py")
        (ours / "model.py").write_text(_ENTRY.format(path=_import_path()))
        python = self._backends / "python"
        python.mkdir()
        for path in self._installation.python_backend.iterdir():
            if path.is_file():
                shutil.copy(path, python / path.name)
        shutil.copy(self._installation.stub, python / "triton_python_backend_stub")

    def _command(self, repositories: Sequence[Path], models: Sequence[str]) -> list[str]:
        settings, at = self._settings, self._endpoint
        gpus = devices.found() if self._on_gpus else []
        restricted = f"{RESTRICTED_APIS}:{CONTROL_HEADER}={self._control_key}"
        return [
            str(self._installation.tritonserver),
            *(f"--model-repository={path}" for path in repositories),
            f"--backend-directory={self._backends}",
            f"--http-address={at.host}",
            f"--http-port={at.http_port}",
            f"--grpc-address={at.host}",
            f"--grpc-port={at.grpc_port}",
            f"--metrics-address={at.host}",
            f"--metrics-port={at.metrics_port}",
            # The watchdog reloads models, which needs explicit model control: restricted by a key.
            "--model-control-mode=explicit",
            *(f"--load-model={name}" for name in models),
            f"--http-restricted-api={restricted}",
            f"--grpc-restricted-protocol={restricted}",
            "--exit-on-error=false",  # so that the index says what failed, and why
            "--strict-readiness=true",
            "--disable-auto-complete-config",
            f"--exit-timeout-secs={settings.exit_timeout_s}",
            f"--log-verbose={1 if settings.log_level == 'verbose' else 0}",
            f"--backend-config=python,shm-region-prefix-name={self._region_prefix}",
            "--metrics-config=summary_latencies=true",  # quantiles, where counters give means
            f"--allow-gpu-metrics={str(self._on_gpus).lower()}",
            # Tensors pass between server and stub in the host's memory; the stubs have the GPU's.
            "--pinned-memory-pool-byte-size=0",
            *(f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in gpus),
            *settings.tritonserver_args,
        ]

    def _environment(self) -> dict[str, str]:
        environment = without_secrets(os.environ)
        # The stub takes the first python3 for its own, and with it a virtual environment.
        programs = str(Path(sys.executable).parent)
        environment["PATH"] = os.pathsep.join([programs, environment.get("PATH", os.defpath)])
        libraries = [str(path) for path in self._installation.libraries]
        if environment.get("LD_LIBRARY_PATH"):
            libraries.append(environment["LD_LIBRARY_PATH"])
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(libraries)
        environment["PYTHONUNBUFFERED"] = "1"
        return environment

    def _read_log(self, words: IO[str], log: LogLine) -> None:
        level, usage = "I", False
        with words:
            for line in words:
                line = line.rstrip()
                # About a flag that is wrong it says a line before, or after, 400 lines of usage.
                usage = line.startswith("Usage: tritonserver") or (
                    usage and not line.startswith("Bad option")
                )
                if usage:
                    continue
                begins = _LOG_LINE.match(line)
                if begins:
                    level = begins[1]
                self.last_lines.append(line)
                if loaded := re.search(r"successfully loaded '([^']+)'", line):
                    self.loaded.add(loaded[1])
                    self.loaded_at[loaded[1]] = time.monotonic()
                if "All models are stopped, unloading models" in line:
                    self._drained.set()
                if level in _SHOWN[self._settings.log_level] and _HARMLESS not in line:
                    log(level, line)


def _backend_model() -> Path:
    """model.py: inside the package where that is installed, beside it in the source tree."""
    package = Path(fusewire.__file__).parent
    for path in (package / "serving" / "triton_model.py", package.parent / "model.py"):
        if path.is_file():
            return path
    raise ConfigurationError(
        "model.py: not found beside the package fusewire, wanted the backend's entry file; "
        "install fusewire again"
    )


def _import_path() -> list[str]:
    """Where this process imports from, this fusewire first."""
    paths = [Path(fusewire.__file__).parent.parent, *(Path(path) for path in sys.path if path)]
    return list(dict.fromkeys(str(path.absolute()) for path in paths if path.exists()))


def _end_with(server: int) -> None:
    """Waits until the server ends, then ends its stubs. One that was being loaded would wait for
    the server for ever, and keep open the connections that it inherited, whose clients then wait
    too."""
    with contextlib.suppress(ChildProcessError):  # its end was noticed elsewhere first
        os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
    processes.kill_group(server)
