"""A `fusewire serve` process for as long as a `with` block lasts."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def served(folder: Path, name: str, *flags: str, **more: Path) -> Iterator[dict[str, str]]:
    """Yields the server's addresses (`grpc`, `http`, `metrics`) on free loopback ports. `flags`: of
    `fusewire serve`; `more`: folders of further models, by name."""
    sources = [f"{name}={folder}" for name, folder in ({name: folder} | more).items()]
    command = [sys.executable, "-m", "fusewire", "serve", *sources, "--json", *flags]
    for port in ("grpc-port", "http-port", "metrics-port"):
        command += [f"--{port}", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] == "ready":
                break
            print(line.strip(), file=sys.stderr)
        else:
            raise SystemExit(f"fusewire serve: ended ({process.wait()}) before it was ready")
        yield event
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
        process.wait()
