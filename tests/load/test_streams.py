"""Locust users that read streams, against an endpoint in this process."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.load.locust_process import run_locust
from tests.load.report import FIRST_TOKEN, INTER_TOKEN, read_log

NEW_TOKENS, FIRST_S, GAP_S = 5, 0.05, 0.02
ENOUGH = 30  # requests, of a run


class Endpoint(BaseHTTPRequestHandler):
    """OpenAI's streamed completions: a token each GAP_S, of the prompt's first letter."""

    asked = 0
    wrong_after = 1 << 30
    protocol_version = "HTTP/1.0"

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Endpoint.asked += 1
        letter = "?" if Endpoint.asked > Endpoint.wrong_after else given["prompt"][0]
        self.send_response(200)
        self.end_headers()
        for number in range(given["max_tokens"]):
            time.sleep(GAP_S if number else FIRST_S)
            event = json.dumps({"choices": [{"text": letter, "index": 0}]})
            self.wfile.write(f"data: {event}\n\n".encode())
            self.wfile.flush()
        self.wfile.write(b"data: [DONE]\n\n")


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Endpoint, "asked", 0)
    service = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=service.serve_forever, args=(0.01,), daemon=True).start()
    yield f"127.0.0.1:{service.server_address[1]}"
    service.shutdown()
    service.server_close()


def locust(address: str, log: Path, *options: str) -> subprocess.CompletedProcess[str]:
    wanted = Endpoint.asked + ENOUGH
    of = ["--host", address, "--model", "any", "-u", "4", "-r", "4", "--texts", "4"]
    of += ["--new-tokens", str(NEW_TOKENS), "--request-log", str(log), *options]
    return run_locust(
        "locustfile_generation.py", "OpenAIStreams", *of, enough=lambda: Endpoint.asked > wanted
    )


def test_streams_report_their_first_token_and_the_time_between_tokens(
    address: str, tmp_path: Path
) -> None:
    done = locust(address, tmp_path / "log")
    assert done.returncode == 0, done.stderr
    whole, errors, streams = read_log(tmp_path / "log")
    assert not errors
    assert len(whole.ms) > 10
    first, between = np.median(streams[FIRST_TOKEN].ms), np.median(streams[INTER_TOKEN].ms)
    assert first >= 1e3 * FIRST_S
    assert between >= 0.9e3 * GAP_S
    parts = np.sum(streams[FIRST_TOKEN].ms) + (NEW_TOKENS - 1) * np.sum(streams[INTER_TOKEN].ms)
    assert np.sum(whole.ms) == pytest.approx(parts, rel=0.1)


def test_another_text_is_a_failure_unless_allowed(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Endpoint, "wrong_after", 4)  # the first ones are what answers are held to
    assert locust(address, tmp_path / "log").returncode == 1
    whole, errors, streams = read_log(tmp_path / "log")
    assert sum(errors.values()) == len(whole.ms) > 10
    assert all("WrongAnswer: got '?????'" in error for error in errors)
    assert not streams
    assert locust(address, tmp_path / "log", "--any-text").returncode == 0
