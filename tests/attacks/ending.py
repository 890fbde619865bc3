"""What is left of heals, of signals, and of a supervisor that was killed: nothing."""

from __future__ import annotations

import contextlib
import signal
from concurrent.futures import ThreadPoolExecutor

import psutil

from tests.attacks.attack import EVERYWHERE, HONEST, Stage, attack
from tests.attacks.requests import OK, over_grpc

_HEALS = 3
_HEALED_S = 15.0
_STOPPED_S = 20.0
_READY_S = 30.0


def _answers(stage: Stage) -> bool:
    return over_grpc(stage.target.addresses["grpc"], "minilm", "again", 0, 5).kind == OK


@attack(HONEST, breaks=EVERYWHERE, heals_s=_HEALED_S)
def healed_again_and_again(stage: Stage) -> None:
    """Killed instances leave no zombies and no shared memory."""
    stage.until(lambda: _answers(stage), 5, "the encoder answers")
    before = len(stage.target.regions())
    for _ in range(_HEALS):
        stage.target.stub("minilm").kill()
        stage.until(lambda: not _answers(stage), 5, "a killed instance answers no more")
        stage.until(lambda: _answers(stage), _HEALED_S, "the encoder answers again")

    def zombies() -> int:
        count = 0
        for process in stage.target.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                count += process.status() == psutil.STATUS_ZOMBIE
        return count

    def clean() -> bool:
        return zombies() == 0 and len(stage.target.regions()) <= before

    with contextlib.suppress(AssertionError):
        stage.until(clean, 10, "")
    found = f"{zombies()} zombies, {len(stage.target.regions()) - before} regions more"
    stage.note(found)
    assert clean(), f"after {_HEALS} heals: {found}"


def _drains(stage: Stage, number: signal.Signals) -> None:
    """The signal ends the service, after the request in flight."""
    service = stage.make((), HONEST.flags)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(over_grpc, service.addresses["grpc"], "gpt", "Once", 500, 20)
        stage.hold(0.3)  # for it to arrive
        service.signal(number)
        outcome = running.result()
    code = service.wait(_STOPPED_S)
    stage.note(f"exit code {code}, the request in flight: {outcome.kind}")
    assert code == 0, f"{number.name}: exit code {code}, wanted 0"
    assert outcome.kind == OK, outcome


@attack(None)
def sighup(stage: Stage) -> None:
    _drains(stage, signal.SIGHUP)


@attack(None)
def sigquit(stage: Stage) -> None:
    _drains(stage, signal.SIGQUIT)


@attack(None)
def sigterm(stage: Stage) -> None:
    """A normal stop, and its log."""
    _drains(stage, signal.SIGTERM)


@attack(None)
def killed_supervisor(stage: Stage) -> None:
    """After `kill -9` a new start takes the same ports at once, and nothing is left of the old."""
    first = stage.make((), HONEST.flags)
    first.signal(signal.SIGKILL)
    second = stage.make((), HONEST.flags, after=first)
    outcome = over_grpc(second.addresses["grpc"], "minilm", "again", 0, 5)
    assert outcome.kind == OK, outcome
    stage.until(lambda: not first.processes(), _READY_S, "the killed service's processes end")
    second.signal(signal.SIGTERM)
    assert second.wait(_STOPPED_S) == 0
