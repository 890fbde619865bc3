"""Starting a server's process and waiting until it answers: the first time, and again."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fusewire.errors import FusewireError
from fusewire.serving.config import ServerSettings
from fusewire.serving.supervisor.control import Control
from fusewire.serving.supervisor.embedded import EmbeddedServer, LogLine
from fusewire.serving.supervisor.unheard import Unheard

_log = logging.getLogger(__name__)
Loading = Callable[[set[str], Sequence[str]], None]  # loaded so far, all


class ServerFailed(FusewireError):
    """The server did not start, or did not stay alive."""


# How tritonserver itself crashes.
_CRASHES = (-signal.SIGABRT, -signal.SIGSEGV)


class _Crashed(ServerFailed):
    """The server crashed in one of these ways."""


class Starter:
    """Starts one server."""

    def __init__(
        self,
        process: EmbeddedServer,
        control: Control,
        repositories: Sequence[Path],
        settings: ServerSettings,
        log: LogLine,
    ) -> None:
        """`log`: gets the server's log lines of the set level."""
        self._process = process
        self._control = control
        self._repositories = repositories
        self._settings = settings
        self._log = log
        self._starting = False
        self.serving = False  # the last start has succeeded

    def start(self, models: Sequence[str], loading: Loading = lambda loaded, models: None) -> None:
        """Starts the process and waits until it has tried to load these models, and answers.

        ServerFailed where it does not; one that crashes is started once more. Which models are
        ready then is the caller's question.
        """
        try:
            self._start(models, loading)
        except _Crashed as error:
            # Rarely a lock in the memory that it shares with a model cannot be taken, an exception
            # that it does not catch; and often several models that do not load end it (24.10).
            _log.warning("%s\nit is started once more", error)
            self._start(models, loading)

    def _start(self, models: Sequence[str], loading: Loading) -> None:
        process, timeout_s = self._process, self._settings.start_timeout_s
        self.serving = False
        self._starting = self._settings.log_level in ("error", "warning")
        process.start(self._repositories, models, self._log_line)
        deadline, unheard = time.monotonic() + timeout_s, Unheard(process)
        while not self._control.live():
            if not process.running():
                code = process.exit_code()
                raise (_Crashed if code in _CRASHES else ServerFailed)(
                    f"tritonserver {_ended(code, models)}; {self._last_words()}"
                )
            if unheard.keep_waiting():
                raise ServerFailed(
                    f"{self._waiting(models)}: a model's process died before it could tell why, "
                    f"and tritonserver waits for it for ever; {self._last_words()}"
                )
            if time.monotonic() > deadline:
                raise ServerFailed(
                    f"not ready after {timeout_s:.0f} s, still loading: {self._waiting(models)}; "
                    "give more time with --start-timeout-s"
                )
            loading(process.loaded, models)
            time.sleep(0.05)
        loading(set(models), models)
        self._starting = False
        self.serving = True

    def _waiting(self, models: Sequence[str]) -> str:
        return ", ".join(sorted(set(models) - self._process.loaded - self._process.failed))

    def _last_words(self) -> str:
        last = "\n".join([line for line in self._process.last_lines if line][-8:])
        return f"the end of its output:\n{last}"

    def _log_line(self, level: str, line: str) -> None:
        # Errors while starting are reported by ServerFailed, not by the server's log as well.
        if not self._starting:
            self._log(level, line)


def _ended(code: int | None, models: Sequence[str]) -> str:
    """How it ended, and what to do about a crash, of which its output says nothing."""
    if code is None or code >= 0:
        return "exited while starting"
    how = f"ended by {signal.Signals(-code).name} while starting"
    if code not in _CRASHES or len(models) < 2:
        return how
    return f"{how}, as it may where several models do not load: serve each alone to see which"
