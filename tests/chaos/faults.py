"""What is done to a service, and within what time it must answer again."""

from __future__ import annotations

import random
import signal
from dataclasses import dataclass

from tests.attacks.service import Service
from tests.chaos.clients import ENCODER, GENERATOR

SERVER = "server"
KILL, FREEZE = "kill", "freeze"
_SIGNALS = {KILL: signal.SIGKILL, FREEZE: signal.SIGSTOP}


@dataclass(frozen=True)
class Fault:
    """`target`: a model, one process of which it befalls, or the server's own process."""

    kind: str
    target: str

    def strike(self, service: Service) -> None:
        of_server = self.target == SERVER
        process = service.tritonserver() if of_server else service.stub(self.target)
        process.send_signal(_SIGNALS[self.kind])

    @property
    def stops(self) -> tuple[str, ...]:
        """The models that answer no more until it is healed."""
        return (ENCODER, GENERATOR) if self.target == SERVER else (self.target,)


def plan(kills: int, server_kills: int, freezes: int, seed: int) -> list[Fault]:
    """Faults of the models alternate; those of the server are spread among them, as starts of the
    server back off."""
    chance = random.Random(seed)
    models = (ENCODER, GENERATOR)
    faults = [Fault(KILL, models[number % 2]) for number in range(kills)]
    faults += [Fault(FREEZE, models[number % 2]) for number in range(freezes)]
    chance.shuffle(faults)
    every = (len(faults) + server_kills) // max(server_kills, 1)
    for number in range(server_kills):
        faults.insert(number * every + every // 2, Fault(KILL, SERVER))
    return faults
