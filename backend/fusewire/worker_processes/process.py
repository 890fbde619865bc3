"""One worker process, from its start to its end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusewire.import_path import import_path
from fusewire.passed_errors import error_of
from fusewire.worker_processes.messages import (
    MOST_BYTES,
    BrokenMessage,
    ConnectionClosed,
    encoded,
    receive,
)

# For loading a folder: tokenizers with hundreds of thousands of tokens take seconds.
START_S = 30.0
# The worker's exit status where its limit of memory is reached.
OUT_OF_MEMORY = 3
# From the end of its connection to the end of the process, which is at once where a core is free.
_EXIT_S = 5.0

# Isolated from the working folder and from PYTHON* variables; imports what its owner imports.
_PROGRAM = """\
import sys
sys.path[:] = sys.argv[3:]
import importlib
program = importlib.import_module(sys.argv[2])
program.main(int(sys.argv[1]))
"""
# All that a worker may know of its owner's environment: no keys, no tokens.
_VARIABLES = (
    "PATH",
    "LD_LIBRARY_PATH",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "TZ",
    "TOKENIZERS_PARALLELISM",
)
_MOST_THREADS = 4  # for a batch of texts


class WorkerDied(Exception):
    """The process ended, or sent what is no message."""

    def __init__(self, status: int) -> None:
        """`status`: the exit status; negative, the signal."""
        # Rust aborts where there is no memory.
        self.out_of_memory = status in (OUT_OF_MEMORY, -signal.SIGABRT)
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        super().__init__("it takes too much memory" if self.out_of_memory else how)


class WorkerLate(Exception):
    """The process had not answered when its time was over, and was killed."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"it takes over {timeout_s:g} s")


class WorkerProcess:
    """A running worker. One thread starts and calls it: the kernel ends the worker with that thread
    (PR_SET_PDEATHSIG), even if its process is killed. `kill` may come from any thread."""

    def __init__(self, program: str, configuration: Mapping[str, Any]) -> None:
        """`program`: the module whose `main` is the worker's, see `program.serve`. `configuration`:
        what it loads. Call `load` next."""
        self._configuration = configuration
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [_python(), "-I", "-c", _PROGRAM, str(os.getpid()), program, *import_path()],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=_environment(),
                cwd="/",
                start_new_session=True,  # Ctrl-C is its owner's to handle
            )

    @property
    def ended(self) -> bool:
        """Whether it was closed, or failed."""
        return self._connection.fileno() < 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def load(self) -> Mapping[str, Any]:
        """What the worker says of itself, once it is loaded; CheckpointError, and as `call`."""
        return dict(self.call(encoded(self._configuration), START_S)["result"])

    def call(
        self,
        message: bytes,
        timeout_s: float,
        body: bytes | memoryview = b"",
        most_body_bytes: int = MOST_BYTES,
    ) -> Mapping[str, Any]:
        """The worker's answer: its `result`, and perhaps a `body` of at most `most_body_bytes`.
        Raises the worker's error; WorkerLate and WorkerDied, after which there is no process any
        more. `body`: that of the message."""
        deadline = time.monotonic() + timeout_s
        try:
            self._connection.settimeout(timeout_s)
            self._connection.sendall(message)
            self._connection.sendall(body)
            answer = receive(self._connection, deadline, most_body_bytes)
            if "result" in answer:
                return dict(answer)
            error = error_of(answer["error"])
        except TimeoutError:
            self.kill()
            self.close()
            raise WorkerLate(timeout_s) from None
        except (OSError, ConnectionClosed):
            raise WorkerDied(self.close()) from None
        except (BrokenMessage, KeyError, TypeError):
            self.kill()
            raise WorkerDied(self.close()) from None
        raise error

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> int:
        """Ends the process, unless it has; its status."""
        self._connection.close()
        # One that exits by itself has closed its end: its own status says more than our signal.
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(_EXIT_S)
        self.kill()
        return self._process.wait()


def _python() -> str:
    """Triton's stub has a Python inside and is none: embedded or not, it uses the first on PATH."""
    own = Path(sys.executable or "")
    if own.name.startswith("python") and own.is_file():
        return str(own)
    return shutil.which("python3") or "python3"


def _environment() -> dict[str, str]:
    threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    return {
        **{name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "RAYON_NUM_THREADS": os.environ.get("RAYON_NUM_THREADS", str(threads)),
        "OPENBLAS_NUM_THREADS": "1",  # numpy's, which would start threads that nothing uses
        "MALLOC_ARENA_MAX": "1",  # an arena of each thread would count as 64 MiB of its memory
    }
