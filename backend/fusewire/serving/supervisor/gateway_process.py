"""The supervisor's handle of one process of the OpenAI endpoint."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from typing import Any

from fusewire.serving.environment import API_KEY, of_own_process
from fusewire.serving.supervisor import processes

_COMMAND = (sys.executable, "-P", "-m", "fusewire.serving.openai")
_READ_BYTES = 1 << 16


class Ended(Exception):
    """The process has ended."""


class GatewayProcess:
    """Starts the process, which ends with the thread that started it (PR_SET_PDEATHSIG)."""

    def __init__(self, listener: int, configuration: bytes) -> None:
        """`listener`: the file descriptor that it inherits. Raises OSError where it cannot be
        started."""
        environment = of_own_process()
        if API_KEY in os.environ:
            environment[API_KEY] = os.environ[API_KEY]
        self._lock = threading.Lock()  # guards `_unsent`
        self._unsent = bytearray()
        self._events: collections.deque[dict[str, Any]] = collections.deque()
        self._received = b""
        self._process = subprocess.Popen(
            _COMMAND,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            pass_fds=(listener,),
            start_new_session=True,  # the supervisor handles Ctrl-C; `end` kills the group
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)
        self.send(configuration)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, line: bytes) -> None:
        """Sends a line now, or as soon as the process reads. Never waits. Thread-safe."""
        with self._lock:
            self._unsent += line
            self._flush()

    def event(self, timeout_s: float) -> dict[str, Any] | None:
        """Returns the next event of the process, or None when there was none in time. Raises
        Ended."""
        if not self._events and not self._receive(timeout_s):
            return None
        return self._events.popleft() if self._events else None

    def end(self) -> str:
        """Ends what is left of the process and of its children. Returns how it ended."""
        # Its id is not reused before the call of `wait`.
        processes.kill_group(self._process.pid)
        with self._process:  # closes the pipes
            code = self._process.wait()
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def _flush(self) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._unsent:
                del self._unsent[: os.write(self._to, self._unsent)]

    def _receive(self, timeout_s: float) -> bool:
        """Returns whether data came in time."""
        with self._lock:
            self._flush()
        poll = select.poll()
        poll.register(self._from, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            if self._has_exited():  # while a child of it keeps the pipe open
                raise Ended
            return False
        read = os.read(self._from, _READ_BYTES)
        if not read:
            raise Ended
        *lines, self._received = (self._received + read).split(b"\n")
        self._events.extend(json.loads(line) for line in lines)
        return True

    def _has_exited(self) -> bool:
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, options) is not None
