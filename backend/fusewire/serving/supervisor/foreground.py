"""`fusewire serve`: a server in the foreground, with text or JSON output, until a signal."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from rich.console import Console

from fusewire.errors import FusewireError
from fusewire.serving import exposure, log_format
from fusewire.serving.config import ServerSettings
from fusewire.serving.supervisor import announcement, open_files
from fusewire.serving.supervisor.server import Server
from fusewire.serving.supervisor.sources import Source

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class _Stopped(BaseException):
    """Raised by a signal that ends the server."""


def serve_until_signalled(
    sources: Sequence[Source], settings: ServerSettings, as_json: bool
) -> int:
    """Serves until SIGTERM, SIGINT, SIGHUP or SIGQUIT (exit code 0). A second signal ends the wait
    for requests in flight.

    Where it cannot start, it raises ServerFailed or ConfigurationError; with JSON logs it logs the
    error and returns 2. Leaves no process, shared memory or temporary folder behind.
    """
    err = log_format.LogConsole(stderr=True)
    with log_format.written(settings.log_format, settings.log_level, err):
        try:
            return _serve(sources, settings, as_json, err)
        except FusewireError as error:
            if settings.log_format == "text":
                raise
            log_format.SERVE.error("%s", error)
            return 2


def _serve(
    sources: Sequence[Source],
    settings: ServerSettings,
    as_json: bool,
    err: Console,
) -> int:
    def report(text: str) -> None:
        if as_json:
            _line(event="watchdog", text=text)
        else:
            log_format.WATCHDOG.warning("%s", text)

    server: Server | None = None
    with _signals() as signals:
        try:
            server = Server(sources, settings, log=log_format.triton_line, report=report)
            signals.server = server
            _start(server, err)
            _announce(server, as_json)
            while True:
                time.sleep(0.2)
        except _Stopped as stopped:
            log_format.SERVE.info("%s", stopped)
        finally:
            signals.stopping = True
            if server is not None:
                server.stop()
    _goodbye(server, as_json)
    return 0


def _start(server: Server, err: Console) -> None:
    with err.status("starting") as status:

        def loading(loaded: set[str], models: Sequence[str]) -> None:
            waiting = [name for name in models if name not in loaded]
            done = f"{len(models) - len(waiting)} of {len(models)} models loaded"
            status.update(f"{done}; loading {', '.join(waiting)}" if waiting else done)

        server.start(loading)


def _announce(server: Server, as_json: bool) -> None:
    ready = announcement.facts(server)
    if as_json:
        _line(event="ready", **ready)
    elif server.settings.log_format == "json":
        log_format.SERVE.info("ready", extra={"fields": ready})
    else:
        _print("\n".join(announcement.lines(server)))
    openai = server.openai.address if server.openai is not None else None
    exposed = exposure.warning(server.settings, server.endpoint, openai)
    idle = exposure.idle_key(server.settings, openai)
    visible = exposure.visible_key(server.settings, sys.argv)
    for words in (exposed, idle, visible, open_files.warning()):
        if words:
            log_format.SERVE.warning("%s", words)


def _goodbye(server: Server | None, as_json: bool) -> None:
    watchdog = None if server is None else server.watchdog
    done = {
        "reloads": 0 if watchdog is None else watchdog.reloads,
        "restarts": 0 if watchdog is None else watchdog.restarts,
    }
    if as_json:
        _line(event="stopped", **done)
    else:
        log_format.SERVE.info("stopped", extra={"fields": done})


def _line(**event: Any) -> None:
    _print(json.dumps(event))


def _print(text: str) -> None:
    # Not with rich, which repeats output that a signal interrupted. A single write per line, as
    # several threads report.
    try:
        print(f"{text}\n", end="", flush=True)
    except OSError:  # the reader is gone; the interpreter would write again at exit
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


class _Signals:
    """The signal handler. The first signal stops serving, another one the wait for requests."""

    def __init__(self) -> None:
        self.server: Server | None = None
        self.stopping = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self.stopping:
            self.stopping = True
            name = signal.Signals(number).name
            raise _Stopped(f"stopping ({name}); a second signal ends requests in flight")
        if self.server is not None:
            self.server.kill()


@contextlib.contextmanager
def _signals() -> Iterator[_Signals]:
    handler = _Signals()
    before = {number: signal.getsignal(number) for number in _ENDING}
    try:
        for number in _ENDING:
            # Under nohup SIGHUP stays ignored.
            if number != signal.SIGHUP or before[number] != signal.SIG_IGN:
                signal.signal(number, handler)
        yield handler
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
