"""The process of the OpenAI endpoint is killed, or stands still: the other ports do not notice."""

from __future__ import annotations

import signal
import time

from tests.attacks.attack import HONEST, Stage, attack
from tests.attacks.requests import OK, post

_KILLED_S, _STOPPED_S = 10.0, 30.0
_BODY = {"model": "minilm", "input": "again"}


def _lose(stage: Stage, number: signal.Signals, within_s: float) -> None:
    gateway = stage.target.gateway()
    assert gateway.pid != stage.target.pid, "the OpenAI endpoint runs in the supervisor's process"
    gateway.send_signal(number)
    began = time.monotonic()

    def again() -> bool:
        at = stage.target.addresses["openai"]
        return post(at, "/v1/embeddings", _BODY, timeout_s=2).kind == OK

    stage.until(again, within_s, "the OpenAI endpoint answers again")
    stage.note(f"healed after {time.monotonic() - began:.1f} s")


@attack(HONEST, breaks=("openai", "gateway"), heals_s=5)
def killed_gateway(stage: Stage) -> None:
    _lose(stage, signal.SIGKILL, _KILLED_S)


@attack(HONEST, breaks=("openai", "gateway"), heals_s=5)
def stopped_gateway(stage: Stage) -> None:
    _lose(stage, signal.SIGSTOP, _STOPPED_S)
