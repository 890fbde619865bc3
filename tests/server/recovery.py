"""The recovery of a server after a test has killed the process of a model."""

from __future__ import annotations

import re

from fusewire.serving.supervisor.server import Server

# tritonserver's output before it prints its stack, which takes a second or two, and the stack.
_CRASHES = re.compile(r"terminate called|Signal \((6|11)\) received|\s*\d+# ")


class Recovery:
    """Made before a kill; true once the model is loaded again, or the whole server was restarted.
    tritonserver 2.51 sometimes crashes when a process dies with a request. While it crashes, parts
    of it go on: a model may be reloaded and answer."""

    def __init__(self, server: Server) -> None:
        self._process, self._watchdog = server.process, server.watchdog
        self._reloads, self._restarts = self._watchdog.reloads, self._watchdog.restarts
        self._crashes = False

    @property
    def server_died(self) -> bool:
        return self._watchdog.restarts > self._restarts

    def __bool__(self) -> bool:
        reloaded = self._watchdog.reloads > self._reloads
        if any(map(_CRASHES.match, self._process.last_lines)) or not self._process.running():
            self._crashes = True
        return self.server_died or (reloaded and not self._crashes)
