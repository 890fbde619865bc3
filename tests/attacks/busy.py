"""Models with much to do do not hang: each request is answered, and none is reloaded."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tests.attacks.attack import Kind, Stage, attack
from tests.attacks.requests import OK, Outcome, post

_ANSWERED_S = 120.0
_TOKENS = 510
BUSY = Kind(
    "busy",
    sources=lambda folders: [f"larger={folders.larger}"],
    flags=("--watch-interval-s=0.5", "--watch-timeout-s=1", "--threads=1"),
)


def _rows(stage: Stage, rows: int) -> Outcome:
    ids = [5 + n % 100 for n in range(_TOKENS)] * rows
    tensor = {"name": "input_ids", "shape": [rows, _TOKENS], "datatype": "INT64", "data": ids}
    path = "/v2/models/larger/infer"
    at = stage.target.addresses["http"]
    return post(at, path, {"inputs": [tensor]}, timeout_s=_ANSWERED_S)


def _not_reloaded(stage: Stage, pid: int) -> None:
    assert stage.target.stub("larger").pid == pid, "a busy model was taken for one that hangs"


@attack(BUSY)
def largest_request(stage: Stage) -> None:
    """128 rows of 510 tokens take longer than the watchdog waits for a sign of life."""
    pid = stage.target.stub("larger").pid
    answer = _rows(stage, 128)
    stage.note(f"{answer.kind} after {answer.seconds:.1f} s")
    assert answer.kind == OK, answer
    _not_reloaded(stage, pid)


@attack(BUSY)
def many_clients(stage: Stage) -> None:
    """150 clients with a row each."""
    pid = stage.target.stub("larger").pid
    with ThreadPoolExecutor(150) as pool:
        answers = list(pool.map(partial(_rows, stage), [1] * 150))
    good = sum(answer.kind == OK for answer in answers)
    stage.note(f"{good} of 150 answered, the last after {max(a.seconds for a in answers):.1f} s")
    failed = [answer for answer in answers if answer.kind != OK]
    assert not failed, failed[0]
    _not_reloaded(stage, pid)
