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

# Deadline for loading: tokenizers with hundreds of thousands of tokens take seconds.
START_S = 30.0
# The worker's exit status when it reaches its memory limit.
OUT_OF_MEMORY = 3
# Time from the end of the connection to the end of the process; it ends at once if a core is free.
_EXIT_S = 5.0

# Isolated from the working directory and from PYTHON* variables, with its parent's import path.
_PROGRAM = """\
import sys
sys.path[:] = sys.argv[3:]
import importlib
program = importlib.import_module(sys.argv[2])
program.main(int(sys.argv[1]))
"""
# The environment variables that are passed to a worker: no keys, no tokens.
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
    """The process ended, or sent something that is not a message."""

    def __init__(self, status: int) -> None:
        """`status`: the exit status; if negative, the signal."""
        # Rust aborts when it is out of memory.
        self.out_of_memory = status in (OUT_OF_MEMORY, -signal.SIGABRT)
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        super().__init__("it takes too much memory" if self.out_of_memory else how)


class WorkerLate(Exception):
    """The process did not answer before its deadline, and was killed."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"it takes over {timeout_s:g} s")


class WorkerProcess:
    """A running worker. A single thread starts and calls it: the Linux kernel kills the worker when
    that thread ends (PR_SET_PDEATHSIG), even if its process is killed. `kill` may be called from
    any thread."""

    def __init__(self, program: str, configuration: Mapping[str, Any]) -> None:
        """`program`: the module whose `main` the worker runs, see `program.serve`. `configuration`:
        what the worker loads. `load` has to be called next."""
        self._configuration = configuration
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [_python(), "-I", "-c", _PROGRAM, str(os.getpid()), program, *import_path()],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=_environment(),
                cwd="/",
                start_new_session=True,  # only the parent handles Ctrl-C
            )

    @property
    def ended(self) -> bool:
        """Whether it was closed or has failed."""
        return self._connection.fileno() < 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def load(self) -> Mapping[str, Any]:
        """Waits until the worker is loaded and returns its description. Raises CheckpointError, and
        the errors of `call`."""
        return dict(self.call(encoded(self._configuration), START_S)["result"])

    def call(
        self,
        message: bytes,
        timeout_s: float,
        body: bytes | memoryview = b"",
        most_body_bytes: int = MOST_BYTES,
    ) -> Mapping[str, Any]:
        """Returns the worker's answer: its `result`, and perhaps a `body` of at most
        `most_body_bytes`. Raises the worker's error; WorkerLate and WorkerDied, after which the
        process has ended. `body`: the body of the message."""
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
        """Ends the process if it is running. Returns its exit status."""
        self._connection.close()
        # Wait for a process that exits by itself: its own status tells more than our signal.
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(_EXIT_S)
        self.kill()
        return self._process.wait()


def _python() -> str:
    """Returns the Python interpreter. Triton's stub embeds Python and is not an interpreter itself;
    it uses the first Python on PATH."""
    own = Path(sys.executable or "")
    if own.name.startswith("python") and own.is_file():
        return str(own)
    return shutil.which("python3") or "python3"


def _environment() -> dict[str, str]:
    threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    return {
        **{name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "RAYON_NUM_THREADS": os.environ.get("RAYON_NUM_THREADS", str(threads)),
        "OPENBLAS_NUM_THREADS": "1",  # numpy would start threads that are not used
        "MALLOC_ARENA_MAX": "1",  # an arena per thread would count as 64 MiB of memory each
    }
