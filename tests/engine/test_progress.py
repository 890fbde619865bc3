"""What an engine tells of its progress, and how long work may take by what it took before."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from fusewire.engine.encoder import EncoderEngine, Request
from fusewire.engine.progress import Progress
from fusewire.settings import EngineSettings

from tests.reference import tiny_checkpoint


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which stands still."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def took(progress: Progress, clock: list[float], tokens: int, seconds: float) -> None:
    progress.begin(tokens)
    clock[0] += seconds
    progress.end(tokens)


def test_work_is_due_after_some_times_what_it_took_before(clock: list[float]) -> None:
    progress = Progress()
    assert progress.due is None
    took(progress, clock, 4096, 3.0)
    progress.begin(4096)
    assert progress.due == clock[0] + 30.0
    progress.end(4096)
    assert progress.due is None
    assert progress.tokens == 8192


def test_more_work_than_ever_before_may_take_longer_in_proportion(clock: list[float]) -> None:
    progress = Progress()
    took(progress, clock, 8, 0.1)
    assert progress.limit_s(8) == pytest.approx(1.0)
    assert progress.limit_s(1024) == pytest.approx(128.0)
    took(progress, clock, 1024, 2.0)
    assert progress.limit_s(1024) == pytest.approx(20.0)
    assert progress.limit_s(2048) == pytest.approx(40.0)


def test_a_slow_machine_is_noticed_and_an_exception_forgotten(clock: list[float]) -> None:
    progress = Progress()
    took(progress, clock, 64, 0.1)
    took(progress, clock, 64, 5.0)
    assert progress.limit_s(64) == pytest.approx(50.0)
    for _ in range(100):
        took(progress, clock, 64, 0.1)
    assert progress.limit_s(64) == pytest.approx(1.0)


def test_a_limit_is_bounded(clock: list[float]) -> None:
    progress = Progress()
    assert 0 < progress.limit_s(1 << 20) <= 3600
    took(progress, clock, 1, 60.0)
    assert progress.limit_s(1 << 20) == 3600
    assert progress.limit_s(1) == 600


def test_less_work_than_ever_before_takes_no_longer(clock: list[float]) -> None:
    progress = Progress()
    took(progress, clock, 4096, 3.0)
    assert progress.limit_s(1) == 30.0


def test_work_that_failed_is_not_due(clock: list[float]) -> None:
    progress = Progress()
    progress.begin(64)
    clock[0] += 7.0
    progress.fail()
    assert progress.due is None
    assert progress.tokens == 0


def test_an_encoder_makes_progress_by_micro_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_checkpoint(tmp_path, "bert")
    engine = EncoderEngine(tmp_path, "embed", EngineSettings(max_batch_tokens=32))
    seen: list[int] = []
    encode = engine.model.encode

    def watched(batch):  # type: ignore[no-untyped-def]
        assert engine.progress.due is not None
        seen.append(engine.progress.tokens)
        return encode(batch)

    monkeypatch.setattr(engine.model, "encode", watched)
    (answer,) = engine.answer([Request({"input_ids": np.full((6, 16), 5, np.int64)})])
    assert isinstance(answer, dict)
    assert seen == [0, 32, 64]
    assert engine.progress.tokens == 96
    assert engine.progress.due is None
    (failed,) = engine.answer([Request({"input_ids": np.full((1, 16), 10**6, np.int64)})])
    assert isinstance(failed, Exception)
    assert engine.progress.due is None
