"""Runs attacks one after the other, each against a watched service, and judges what was seen."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from tests.attacks import traces
from tests.attacks.attack import Attack, Kind, Skip, Stage
from tests.attacks.folders import Folders
from tests.attacks.requests import BROKEN, OK, REFUSED, TYPED
from tests.attacks.service import NotReady, Service
from tests.attacks.witness import Seen, Witness

SLOWEST_S = 1.0
GROWTH_BYTES = 100 << 20
_SETTLED_S = 20.0  # for memory to be given back
_STOPPED_S = 20.0


@dataclass
class Result:
    """A row of the table."""

    name: str
    slowest_s: float | None = None
    errors: int = 0
    healed_s: float | None = None
    memory: tuple[int, int, int] | None = None  # before, peak, after, in bytes
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    skipped: str = ""

    @property
    def verdict(self) -> str:
        return "skipped" if self.skipped else "FAILED" if self.failures else "ok"


class Watched:
    """A ready service with its witness."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.witness = Witness(service.addresses)
        if self.witness.all_answered(0, 30) is None:
            self.witness.stop()
            service.end()
            bad = [one for one in self.witness.seen if one.outcome.kind != OK][-1:]
            raise NotReady(f"the witness's requests are not answered: {bad}")
        self.start_bytes = self.settled_bytes()
        self.usable = True  # by the next attack

    def settled_bytes(self) -> int:
        """Once two seconds brought less than a MiB; the first requests take what they need."""
        deadline = time.monotonic() + _SETTLED_S
        while time.monotonic() < deadline:
            memory = self.service.memory
            recent = [used for when, used in memory if when > time.monotonic() - 2]
            if len(recent) > 5 and max(recent) - min(recent) < 1 << 20:
                break
            time.sleep(0.2)
        return self.service.memory[-1][1]


class Run:
    """One run through some attacks; services live as long as attacks need the same kind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "models").mkdir(parents=True)
        self._folders = Folders(folder / "models")
        self._numbers = count()
        self._watched: Watched | None = None
        self._kind: Kind | None = None

    def results(self, attacks: Sequence[Attack]) -> Iterator[Result]:
        for attack in attacks:
            if self._watched is not None and (self._kind != attack.on or not self._watched.usable):
                yield self._stopped()
            result = self._result(attack)
            first_s = result.slowest_s
            if first_s is not None and result.failures == [_too_slow(first_s)]:
                # Other work on the machine holds requests up as well, but hardly in both runs.
                result = self._result(attack)
                result.notes.append(f"run again: at first a normal request took {first_s:.1f} s")
            yield result
        if self._watched is not None:
            yield self._stopped()

    def _result(self, attack: Attack) -> Result:
        result = Result(attack.name)
        stage = Stage(self._folders, self._make, notes=result.notes)
        made: list[Service] = []

        def make(*arguments: object, **named: object) -> Service:
            made.append(self._make(*arguments, **named))
            return made[-1]

        stage.make = make
        try:
            if attack.on is None:
                self._run(attack, stage, result)
                for service in made:
                    result.failures += traces.left_by(service)
            else:
                if self._watched is None:
                    self._kind = attack.on
                    sources = attack.on.sources(self._folders)
                    service = self._make(sources, attack.on.flags, nofile=attack.on.nofile)
                    self._watched = Watched(service)
                stage.service = self._watched.service
                self._judged(attack, stage, result, self._watched)
        except NotReady as error:
            result.failures.append(f"a service did not start: {error}")
        finally:
            for service in made:
                service.end()
        return result

    def _run(self, attack: Attack, stage: Stage, result: Result) -> None:
        try:
            attack.run(stage)
        except Skip as reason:
            result.skipped = str(reason)
        except AssertionError as error:
            result.failures.append(str(error) or "a check failed")
        except (OSError, NotReady) as error:
            result.failures.append(f"{type(error).__name__}: {error}")

    def _judged(self, attack: Attack, stage: Stage, result: Result, watched: Watched) -> None:
        service, witness = watched.service, watched.witness
        before, began = service.memory[-1][1], time.monotonic()
        self._run(attack, stage, result)
        ended = time.monotonic()
        # Every kind of request is seen once more, after healing where there is something to heal.
        healed = None
        if service.exit_code is None:
            healed = witness.all_answered(ended, max(attack.heals_s, 10.0))
        watched.usable = healed is not None and not service.over_limit
        if service.over_limit:
            result.failures.append(
                "the service took more memory than the run allows, and was ended"
            )
        elif service.exit_code is not None:
            last = (service.log().splitlines() or [""])[-1][:120]
            result.failures.append(f"the service ended: exit code {service.exit_code} ({last})")
        elif healed is None:
            result.failures.append("not every kind of request was answered again")
        until = time.monotonic() if healed is None else healed
        if attack.breaks:
            result.healed_s = until - ended
        _judge(witness.between(began, until), attack.breaks, result)
        if service.exit_code is None:
            service.used_since(until)
            after = _settled(service, before)
            watched.start_bytes += attack.keeps_bytes
            result.memory = before, max(before, after, *service.used_since(began)), after
            if after - before > GROWTH_BYTES + attack.keeps_bytes:
                result.failures.append(f"{(after - before) >> 20} MB of memory did not come back")

    def _stopped(self) -> Result:
        """Stops the service that runs, as an operator does, and looks for what is left."""
        assert self._watched is not None
        assert self._kind is not None
        watched, self._watched = self._watched, None
        service = watched.service
        result = Result(f"(stop of {self._kind.name})")
        watched.witness.stop()
        log_before_stop = len(service.log())
        if service.exit_code is None:
            after = _settled(service, watched.start_bytes)
            result.memory = watched.start_bytes, max(used for _, used in service.memory), after
            if after - watched.start_bytes > GROWTH_BYTES:
                grown = (after - watched.start_bytes) >> 20
                result.failures.append(f"{grown} MB of memory did not come back")
            began = time.monotonic()
            service.supervisor().terminate()
            code = service.wait(_STOPPED_S)
            result.notes.append(f"exit code {code} after {time.monotonic() - began:.1f} s")
            if code != 0:
                result.failures.append(f"SIGTERM: exit code {code}, wanted 0")
        left = traces.left_by(service, log_before_stop)
        if left:
            more = f" and {len(left) - 4} more" if len(left) > 4 else ""
            result.failures.append(f"left: {', '.join(left[:4])}{more}")
        service.end()
        return result

    def _make(
        self,
        sources: Sequence[str] = (),
        flags: Sequence[str] = (),
        *,
        nofile: int = 0,
        after: Service | None = None,
    ) -> Service:
        """A service with the honest models and these sources, ready."""
        folder = self._folder / f"service{next(self._numbers)}"
        service = Service(
            folder, [*self._folders.honest, *sources], flags, nofile=nofile, after=after
        )
        try:
            service.wait_ready()
        except NotReady:
            service.end()
            raise
        return service


def _judge(seen: Sequence[Seen], breaks: frozenset[str], result: Result) -> None:
    """Where an attack breaks nothing, every normal request is answered, and in time; elsewhere
    errors say what they are."""
    slowest = 0.0
    for one in seen:
        kind = one.outcome.kind
        if one.entrance not in breaks:
            slowest = max(slowest, one.outcome.seconds)
            allowed = {OK}
        elif one.entrance == "openai" and "gateway" not in breaks:
            allowed = {OK, TYPED}  # its process lives, so it has an answer for everyone
        else:
            allowed = {OK, TYPED, REFUSED, BROKEN}
        result.errors += kind != OK
        if kind not in allowed:
            text = f"{one.entrance} {one.model}: {kind} {one.outcome.text}".strip()
            if not any(failure.startswith(text[:24]) for failure in result.failures):
                result.failures.append(text[:160])
    if not frozenset(("grpc", "http", "openai")) <= breaks:
        result.slowest_s = slowest
        if slowest > SLOWEST_S:
            result.failures.append(_too_slow(slowest))


def _too_slow(seconds: float) -> str:
    return f"a normal request took {seconds:.1f} s"


def _settled(service: Service, before: int) -> int:
    """Bytes in use, once they are back, or the time for that is over."""
    deadline = time.monotonic() + _SETTLED_S
    while service.memory[-1][1] - before > GROWTH_BYTES and time.monotonic() < deadline:
        if service.exit_code is not None:
            break
        time.sleep(0.1)
    return service.memory[-1][1]


def raise_limits() -> None:
    """Of open files: attackers have more connections than a shell usually allows."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def lower_priority() -> None:
    """Of the attackers, which share the machine with the service that they attack."""
    os.setpriority(os.PRIO_PROCESS, 0, 5)
