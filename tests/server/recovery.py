"""The recovery of a server after a test has killed the process of a model."""

from __future__ import annotations

import re
import time

from fusewire.serving.supervisor.server import Server

# tritonserver's output before it prints its stack, and the stack.
_CRASHES = re.compile(r"terminate called|Signal \((6|11)\) received|\s*\d+# ")

# Seconds from these lines to the end of the process, many times as long as it takes. A server that
# still runs then did not crash: an earlier process's last lines may be read late.
CRASH_S = 15.0


class Recovery:
    """Made before a kill; true once the model is loaded again, or the whole server was restarted.
    tritonserver 2.51 sometimes crashes when a process dies with a request. While it crashes, parts
    of it go on: a model may be reloaded and answer."""

    def __init__(self, server: Server) -> None:
        self._process, self._watchdog = server.process, server.watchdog
        self._reloads, self._restarts = self._watchdog.reloads, self._watchdog.restarts
        self._crash_seen_at: float | None = None

    @property
    def server_died(self) -> bool:
        return self._watchdog.restarts > self._restarts

    def __bool__(self) -> bool:
        reloaded = self._watchdog.reloads > self._reloads
        if self._crash_seen_at is None and any(map(_CRASHES.match, self._process.last_lines)):
            self._crash_seen_at = time.monotonic()
        if self.server_died or not reloaded or not self._process.running():
            return self.server_died
        return self._crash_seen_at is None or time.monotonic() > self._crash_seen_at + CRASH_S
