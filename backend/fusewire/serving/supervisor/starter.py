"""Starts a server's process and waits until it answers, for the first start and restarts."""

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
from fusewire.serving.supervisor.unheard import Unheard, last_words

_log = logging.getLogger(__name__)
Loading = Callable[[set[str], Sequence[str]], None]  # loaded so far, all


class ServerFailed(FusewireError):
    """The server did not start, or did not stay alive."""


# Signals by which tritonserver itself crashes.
_CRASHES = (-signal.SIGABRT, -signal.SIGSEGV)


class _Crashed(ServerFailed):
    """The server crashed with one of these signals."""


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
        """`log`: called with the server's log lines of the set level."""
        self._process = process
        self._control = control
        self._repositories = repositories
        self._settings = settings
        self._log = log
        self._starting = False
        self.serving = False  # whether the last start has succeeded

    def start(self, models: Sequence[str], loading: Loading = lambda loaded, models: None) -> None:
        """Starts the process, and waits until it has tried to load these models and answers.

        Raises ServerFailed where it does not; after a crash it is started once more. The caller
        checks which models are ready then.
        """
        try:
            self._start(models, loading)
        except _Crashed as error:
            # Rarely it cannot take a lock in the memory that it shares with a model, which raises
            # an exception that it does not catch. Often it crashes when several models do not load
            # (24.10).
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
                    f"tritonserver {_ended(code, models)}; {last_words(process)}"
                )
            if unheard.keep_waiting():
                raise ServerFailed(
                    f"{self._waiting(models)}: a model's process died before it could tell why, "
                    f"and tritonserver waits for it for ever; {last_words(process)}"
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

    def _log_line(self, level: str, line: str) -> None:
        # ServerFailed reports errors at the start, so they are not logged as well.
        if not self._starting:
            self._log(level, line)


def _ended(code: int | None, models: Sequence[str]) -> str:
    """Returns how the process ended, and a remedy for a crash, which its output does not
    explain."""
    if code is None or code >= 0:
        return "exited while starting"
    how = f"ended by {signal.Signals(-code).name} while starting"
    if code not in _CRASHES or len(models) < 2:
        return how
    return f"{how}, as it may where several models do not load: serve each alone to see which"
