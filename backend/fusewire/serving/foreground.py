"""`fusewire serve`: a server in the foreground, with text or JSON output, until a signal."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

from rich.console import Console

from fusewire.errors import FusewireError
from fusewire.serving import announcement, exposure, log_format
from fusewire.serving.config import ServerSettings
from fusewire.serving.server import Server
from fusewire.serving.sources import Source


class _Stopped(BaseException):
    """A signal asked for the end."""


def serve_until_signalled(
    sources: Sequence[Source], settings: ServerSettings, as_json: bool
) -> int:
    """Serves until SIGTERM or SIGINT (exit code 0), or until the watchdog gives up (1).

    Where it cannot start, it raises ServerFailed or ConfigurationError; with JSON logs it logs the
    error and returns 2. Leaves no process, shared memory or temporary folder behind.
    """
    out = Console(highlight=False, soft_wrap=True)
    err = Console(stderr=True, highlight=False, soft_wrap=True)
    with log_format.written(settings.log_format, settings.log_level, err):
        try:
            return _serve(sources, settings, as_json, out, err)
        except FusewireError as error:
            if settings.log_format == "text":
                raise
            log_format.SERVE.error("%s", error)
            return 2


def _serve(
    sources: Sequence[Source],
    settings: ServerSettings,
    as_json: bool,
    out: Console,
    err: Console,
) -> int:
    def report(text: str) -> None:
        if as_json:
            _line(out, event="watchdog", text=text)
        else:
            log_format.WATCHDOG.warning("%s", text)

    server = Server(sources, settings, log=log_format.triton_line, report=report)
    code = 0
    try:
        _on_signals(_stop)
        with err.status("starting") as status:

            def loading(loaded: set[str], models: Sequence[str]) -> None:
                waiting = [name for name in models if name not in loaded]
                done = f"{len(models) - len(waiting)} of {len(models)} models loaded"
                status.update(f"{done}; loading {', '.join(waiting)}" if waiting else done)

            server.start(loading)
        _announce(out, server, as_json)
        while server.watchdog.failed is None:
            time.sleep(0.2)
        code = 1
    except _Stopped:
        pass
    finally:
        _on_signals(signal.SIG_IGN)  # a second Ctrl-C must not interrupt the clearing away
        server.stop()
        _on_signals(signal.SIG_DFL)
    _goodbye(out, server, as_json)
    return code


def _announce(out: Console, server: Server, as_json: bool) -> None:
    ready = announcement.facts(server)
    if as_json:
        _line(out, event="ready", **ready)
    elif server.settings.log_format == "json":
        log_format.SERVE.info("ready", extra={"fields": ready})
    else:
        out.print("\n".join(announcement.lines(server)), markup=False, emoji=False)
    openai = server.openai.address if server.openai is not None else None
    exposed = exposure.warning(server.settings, server.endpoint, openai)
    for words in (exposed, exposure.idle_key(server.settings, openai)):
        if words:
            log_format.SERVE.warning("%s", words)


def _goodbye(out: Console, server: Server, as_json: bool) -> None:
    done = {"reloads": server.watchdog.reloads, "restarts": server.watchdog.restarts}
    if as_json:
        _line(out, event="stopped", **done)
    else:
        log_format.SERVE.info("stopped", extra={"fields": done})


def _line(out: Console, **event: Any) -> None:
    out.print(json.dumps(event), markup=False)
    out.file.flush()


def _stop(number: int, frame: FrameType | None) -> None:
    raise _Stopped


def _on_signals(handler: Any) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)
