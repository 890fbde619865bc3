"""The numbers of a report, from a log and counters that are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fusewire_client import ModelStatistics

from tests.load.report import (
    Run,
    Sample,
    Times,
    batch_sizes,
    markdown,
    plot,
    read_log,
    summary,
)

STREAM = {"gRPC": 90.0, "first token": 20.0, "inter-token": 3.5}


def counters(requests: int, inferences: int, executions: int) -> ModelStatistics:
    return ModelStatistics("m", "1", requests, 0, inferences, executions, requests * 0.002, 0.0)


def run_of(times: list[float], ms: list[float], errors: dict[str, int]) -> Run:
    samples = [
        Sample(100.0, counters(10, 10, 10)),
        Sample(101.0, counters(10, 10, 10)),
        Sample(102.0, counters(40, 70, 20)),
        Sample(103.0, counters(110, 110, 30)),
    ]
    return Run("ClosedLoop", 8, None, Times(np.array(times), np.array(ms)), errors, samples)


def test_a_summary_counts_only_this_run() -> None:
    times = list(np.linspace(100, 110, 101))
    one = summary(run_of(times, list(range(101)), {"Unavailable: busy": 2}))
    assert one["requests"] == 101
    assert one["failures"] == 2
    assert one["requests_per_s"] == 10.1
    assert (one["p50_ms"], one["p95_ms"], one["p99_ms"]) == (50.0, 95.0, 99.0)
    assert one["executions"] == 20
    assert one["mean_batch"] == 5.0
    assert one["queue_ms"] == 2.0


def test_batch_sizes_leave_out_idle_seconds() -> None:
    assert batch_sizes(run_of([100.0, 103.0], [1, 1], {})) == ([1.0, 2.0], [6.0, 4.0])


def test_samples_outside_the_load_do_not_count() -> None:
    one = summary(run_of([100.5, 102.5], [1, 1], {}))
    assert (one["executions"], one["mean_batch"]) == (10, 6.0)
    with pytest.raises(ValueError, match="wanted longer"):
        summary(run_of([100.5, 101.5], [1, 1], {}))


def test_a_log_is_read_in_the_order_of_time(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    rows = ["2.0,gRPC,5,1,", '1.0,gRPC,7,0,"E: a, b"', '3.0,gRPC,6,0,"E: a, b"']
    log.write_text("\n".join(["time,type,ms,ok,error", *rows]) + "\n")
    whole, errors, streams = read_log(log)
    assert whole.time.tolist() == [1.0, 2.0, 3.0]
    assert whole.ms.tolist() == [7.0, 5.0, 6.0]
    assert errors == {"E: a, b": 2}
    assert streams == {}


def test_streams_have_times_to_first_token_and_between_tokens(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    rows = [f"{100 + at},{kind},{ms},1," for at in range(4) for kind, ms in STREAM.items()]
    log.write_text("\n".join(["time,type,ms,ok,error", *rows]) + "\n")
    whole, errors, streams = read_log(log)
    assert (len(whole.ms), errors) == (4, {})
    samples = run_of([100.0], [1.0], {}).samples
    run = Run("ClosedLoopStreams", 8, None, whole, errors, samples, streams)
    one = summary(run)
    assert (one["requests"], one["p50_ms"]) == (4, 90.0)
    assert (one["first_token_p99_ms"], one["inter_token_p50_ms"]) == (20.0, 3.5)
    assert "| 90.0 | 90.0 | 90.0 | 20.0 | 20.0 | 3.5 | 3.5 |" in markdown([one], {})
    plot([run], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_report_shows_failures_and_a_plot(tmp_path: Path) -> None:
    run = run_of([100.0, 101.5, 103.0], [1, 2, 3], {"Unavailable: busy": 1})
    text = markdown([summary(run)], {"model": "m"})
    assert "| ClosedLoop | 8 | 3 | 1 |" in text
    assert "- 1 x Unavailable: busy" in text
    plot([run, run], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
