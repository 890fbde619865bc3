"""The tables of faults and of memory over many requests."""

from __future__ import annotations

from typing import Any

from benchmarks import chaos_report

WHERE = {"cpu": "a processor", "cpus": [0, 1], "versions": {"fusewire": "1"}, "time": "2026-01-02T"}


def struck(name: str, healed_s: float | None, **changes: Any) -> dict[str, Any]:
    counts = dict.fromkeys(("requests", "ok", "typed", "refused", "broken", "late"), 0)
    row = WHERE | counts | {"name": name, "healed_s": healed_s, "limit_s": 6.0, "failures": []}
    return row | changes


def test_faults_of_a_kind_are_counted_together() -> None:
    rows = [
        struck("kill encoder", 1.0, requests=10, ok=8, typed=2),
        struck("kill encoder", 2.0, requests=20, ok=19, refused=1),
        struck("freeze encoder", None, failures=["never healed"], late=3),
        WHERE | {"name": "end", "seconds": 0.4, "failures": []},
    ]
    lines = chaos_report.chaos_table(rows).splitlines()
    assert lines[4:6] == [
        "| kill encoder | 2 | 1.5 | 2.0 | 6.0 | 30 | 27 | 2 | 1 | 0 | 0 | 0 |",
        "| freeze encoder | 1 | never | never | 6.0 | 0 | 0 | 0 | 0 | 0 | 3 | 1 |",
    ]
    assert lines[-3:] == [
        "Left behind at the end: no process, memory or file.",
        "",
        "2026-01-02, a processor, 2 cores; fusewire 1.",
    ]


def test_what_was_left_behind_is_named() -> None:
    end = WHERE | {"name": "end", "seconds": 9.0, "failures": ["a process", "a file"]}
    assert "at the end: a process; a file." in chaos_report.chaos_table([end])


def test_memory_is_told_of_each_process() -> None:
    each = {"server": 0.118, "instance": 0.001, "supervisor": 0.0}
    held = {"server": 14.2, "instance": 59.5, "supervisor": 48.3}
    row = WHERE | {"case": "grpc encode", "requests": 200_000, "requests_per_s": 1546.6}
    row |= {"mb_per_10000_requests": each, "mb_at_the_end": held}
    lines = chaos_report.soak_table([row]).splitlines()
    assert lines[4] == "| grpc encode | 200000 | 1547 | 0.12 (14) | 0.00 (60) | 0.00 (48) |"
