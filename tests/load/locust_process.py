"""Locust, ended when it has asked enough: its start alone takes seconds on a busy machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.server.asking import until


def run_locust(
    file: str, profile: str, *options: str, enough: Callable[[], bool]
) -> subprocess.CompletedProcess[str]:
    """Runs a profile of the locustfile until `enough()`, or its end."""
    path = str(Path(__file__).with_name(file))
    command = [sys.executable, "-m", "locust", "-f", path, profile, "--headless", "--only-summary"]
    command += ["-t", "120s", "--stop-timeout", "10", *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            until(lambda: enough() or process.poll() is not None)
            process.terminate()
            # A process that an open connection keeps alive would run into the timeout.
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    return subprocess.CompletedProcess(command, process.returncode, out, err)
