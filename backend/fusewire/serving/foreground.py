"""`fusewire serve`: a server in the foreground, in words or JSON lines, until a signal."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from fusewire.serving.config import Deployment, ServerSettings
from fusewire.serving.server import Server


class _Stopped(BaseException):
    """A signal asked for the end."""


def serve_until_signalled(
    sources: Sequence[Path | str],
    settings: ServerSettings,
    model_settings: dict[str, object],
    deployment: Deployment,
    as_json: bool,
) -> int:
    """Serves until SIGTERM or SIGINT (exit code 0), or until the watchdog gives up (1).

    Raises ServerFailed or ConfigurationError when it cannot start. Leaves no process, shared
    memory or temporary folder behind.
    """
    out = Console(highlight=False, soft_wrap=True)
    err = Console(stderr=True, highlight=False, soft_wrap=True)

    def report(text: str) -> None:
        stamp = time.strftime("%H:%M:%S")
        if as_json:
            _line(out, event="watchdog", text=text)
        else:
            err.print(f"{stamp} {text}", markup=False)

    def log(level: str, line: str) -> None:
        err.print(line, markup=False)

    server = Server(
        sources,
        settings,
        model_settings=model_settings,
        deployment=deployment,
        log=log,
        report=report,
    )
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
    _goodbye(out, err, server, as_json)
    return code


def _announce(out: Console, server: Server, as_json: bool) -> None:
    at = server.endpoint
    http, grpc = f"{at.host}:{at.http_port}", f"{at.host}:{at.grpc_port}"
    metrics = f"{at.host}:{at.metrics_port}/metrics"
    if as_json:
        _line(
            out,
            event="ready",
            models=server.models,
            devices={model: server.device(model) for model in server.models},
            left_out=server.left_out,
            http=http,
            grpc=grpc,
            metrics=metrics,
            openai=server.door and server.door.address,
        )
        return
    placed = [f"{model} on {server.device(model)}" for model in server.models]
    out.print(f"serving {', '.join(placed)}", markup=False)
    if server.left_out:
        out.print(f"  without weights, left out: {', '.join(server.left_out)}", markup=False)
    out.print(f"  gRPC     {grpc}\n  HTTP     http://{http}\n  metrics  http://{metrics}")
    if server.door is not None:
        out.print(f"  OpenAI   http://{server.door.address}/v1")
    out.print(f"  ask      fusewire ask TASK TEXT --address {grpc}\nCtrl-C stops it.")


def _goodbye(out: Console, err: Console, server: Server, as_json: bool) -> None:
    watchdog = server.watchdog
    if as_json:
        _line(out, event="stopped", reloads=watchdog.reloads, restarts=watchdog.restarts)
    elif watchdog.reloads or watchdog.restarts:
        err.print(
            f"stopped; the watchdog reloaded models {watchdog.reloads} times and restarted the "
            f"server {watchdog.restarts} times"
        )
    else:
        err.print("stopped")


def _line(out: Console, **event: Any) -> None:
    out.print(json.dumps(event), markup=False)
    out.file.flush()


def _stop(number: int, frame: FrameType | None) -> None:
    raise _Stopped


def _on_signals(handler: Any) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)
