"""Locust with our users, headless, against a server in this process."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.client.fake_triton import FakeTriton, serve_grpc
from tests.load.locust_process import run_locust
from tests.load.report import read_log
from tests.load.traffic import texts

ENOUGH = 240  # requests, of a run


@pytest.fixture
def server() -> FakeTriton:
    return FakeTriton()


@pytest.fixture
def address(server: FakeTriton) -> Iterator[str]:
    service, port = serve_grpc(server)
    yield f"127.0.0.1:{port}"
    server.released.set()
    service.stop(None)


def locust(
    profile: str, server: FakeTriton, address: str, log: Path, *options: str
) -> subprocess.CompletedProcess[str]:
    of = ["--host", address, "--texts", "16", "--request-log", str(log), *options]
    return run_locust("locustfile.py", profile, *of, enough=lambda: len(server.seen) > ENOUGH)


def test_closed_loop_users_ask_together(address: str, server: FakeTriton, tmp_path: Path) -> None:
    server.delay_s = 0.02
    done = locust("ClosedLoop", server, address, tmp_path / "log", "-u", "8", "-r", "8")
    assert done.returncode == 0, done.stderr
    whole, errors, _ = read_log(tmp_path / "log")
    assert not errors
    assert len(whole.ms) > 50
    assert np.median(whole.ms) >= 20
    assert server.most_under_way > 4  # without init_gevent all users take turns


def test_poisson_arrivals_keep_their_rate_when_the_server_is_slow(
    address: str, server: FakeTriton, tmp_path: Path
) -> None:
    server.delay_s = 0.1  # a closed loop of 2 users would reach 20 requests a second
    done = locust(
        "Poisson", server, address, tmp_path / "log", "-u", "2", "-r", "2", "--rate", "60"
    )
    assert done.returncode == 0, done.stderr
    whole, errors, _ = read_log(tmp_path / "log")
    assert not errors
    gaps = np.diff(np.sort(whole.time - whole.ms / 1e3))
    assert 40 < 1 / gaps.mean() < 80
    assert 0.6 < gaps.std() / gaps.mean() < 1.5  # 1 for a Poisson process


def test_a_wrong_answer_is_a_failure(address: str, server: FakeTriton, tmp_path: Path) -> None:
    right = server.infer

    def turned(*arguments) -> dict[str, np.ndarray]:  # type: ignore[no-untyped-def]
        answer = right(*arguments)
        late = len(server.seen) > 40  # the first ones are what answers are compared with
        return {"embedding": answer["embedding"][:, ::-1].copy()} if late else answer

    server.infer = turned  # type: ignore[method-assign]
    done = locust("ClosedLoop", server, address, tmp_path / "log", "-u", "2", "-r", "2")
    assert done.returncode == 1
    whole, errors, _ = read_log(tmp_path / "log")
    assert len(whole.ms) - 24 <= sum(errors.values()) < len(whole.ms)
    assert all("cosine" in error for error in errors)


def test_texts_are_seeded_and_of_all_lengths() -> None:
    assert texts(64, 3) == texts(64, 3) != texts(64, 4)
    lengths = sorted(len(text.split()) for text in texts(200, 0))
    assert lengths[0] == 1
    assert lengths[-1] > 90
    assert 5 < lengths[100] < 20
