"""What follows where a test kills the process of a model."""

from __future__ import annotations

import re

from fusewire.serving.supervisor.server import Server

# Of tritonserver, before it prints its stack for a second or two, and the lines of that.
_CRASHES = re.compile(r"terminate called|Signal \((6|11)\) received|\s*\d+# ")


class Recovery:
    """From the next death on: true once the model is loaded again, or the whole server was started
    again, as now and then tritonserver 2.51 crashes over a process that died with a request in its
    hands. While it crashes, some of it goes on: a model may be loaded again and answer."""

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
