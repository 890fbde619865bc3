"""Connections that are opened and say nothing."""

from __future__ import annotations

import contextlib
import socket

from tests.attacks.attack import EVERYWHERE, HONEST, Kind, Stage, attack
from tests.attacks.requests import connected

COUNT = 1100
_HOLD_S = 6.0
# As `ulimit -n 1024` leaves it. What tritonserver's own ports do with more connections than files
# is tritonserver's; that the service lives and heals is ours.
NARROW = Kind("narrow", flags=HONEST.flags, nofile=1024)


def _idle(stage: Stage, entrance: str) -> None:
    opened: list[socket.socket] = []
    with contextlib.ExitStack() as stack:
        for _ in range(COUNT):
            try:
                opened.append(stack.enter_context(connected(stage.target.addresses[entrance])))
            except OSError:  # a bounded number of connections is a good answer too
                break
        stage.note(f"{len(opened)} connections")
        stage.hold(_HOLD_S)
    assert stage.target.exit_code is None, "the service ended"


@attack(HONEST)
def idle_openai(stage: Stage) -> None:
    _idle(stage, "openai")


@attack(HONEST)
def idle_http(stage: Stage) -> None:
    _idle(stage, "http")


@attack(HONEST)
def idle_grpc(stage: Stage) -> None:
    _idle(stage, "grpc")


@attack(NARROW)
def idle_openai_1024_files(stage: Stage) -> None:
    _idle(stage, "openai")


@attack(NARROW, breaks=EVERYWHERE, heals_s=15)
def idle_http_1024_files(stage: Stage) -> None:
    _idle(stage, "http")


@attack(NARROW, breaks=EVERYWHERE, heals_s=15)
def idle_grpc_1024_files(stage: Stage) -> None:
    _idle(stage, "grpc")
