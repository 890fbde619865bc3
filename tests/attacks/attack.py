"""What an attack is, and what it gets: a service that is watched, or the means to start its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.attacks.folders import Folders
from tests.attacks.service import Service


class Skip(Exception):
    """The attack cannot be made here, and why."""


@dataclass(frozen=True)
class Kind:
    """How a service is started: its models beside the honest ones, flags and limits."""

    name: str
    sources: Callable[[Folders], Sequence[str]] = lambda folders: ()
    flags: Sequence[str] = ()
    nofile: int = 0  # limit of open files, 0: as the run has it


HONEST = Kind("honest", flags=("--watch-interval-s=1", "--watch-timeout-s=5"))


@dataclass
class Stage:
    """What one attack works with."""

    folders: Folders
    make: Callable[..., Service]  # make(sources, flags, after=…): a service that is ready
    service: Service | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def target(self) -> Service:
        assert self.service is not None
        return self.service

    def note(self, text: str) -> None:
        """For the table."""
        self.notes.append(text)

    def until(self, true: Callable[[], object], seconds: float, what: str) -> float:
        """Waits until `true()`; the seconds that it took. AssertionError says what did not come."""
        began = time.monotonic()
        while not true():
            assert time.monotonic() - began < seconds, f"{what}: not within {seconds:.0f} s"
            assert self.service is None or self.service.exit_code is None, "the service ended"
            time.sleep(0.05)
        return time.monotonic() - began

    def hold(self, seconds: float) -> None:
        """Lets a state last, in which the witness sees how the service does."""
        time.sleep(seconds)


@dataclass(frozen=True)
class Attack:
    """`run` raises AssertionError where the service does not do what is promised."""

    name: str
    subject: str  # the file that it stands in
    run: Callable[[Stage], None]
    on: Kind | None  # None: it starts its own services, which nobody watches
    breaks: frozenset[str]  # entrances that may fail until healed; `gateway`: its process may
    heals_s: float  # after the attack's end
    keeps_bytes: int  # that tritonserver is known to keep, in place of giving all of it back


ATTACKS: dict[str, Attack] = {}


def attack(
    on: Kind | None, *, breaks: Sequence[str] = (), heals_s: float = 0.0, keeps_bytes: int = 0
) -> Callable[[Callable[[Stage], None]], Callable[[Stage], None]]:
    """Registers a function, under its name with dashes."""

    def register(run: Callable[[Stage], None]) -> Callable[[Stage], None]:
        name = run.__name__.replace("_", "-")
        subject = Path(run.__code__.co_filename).stem
        assert name not in ATTACKS, name
        ATTACKS[name] = Attack(name, subject, run, on, frozenset(breaks), heals_s, keeps_bytes)
        return run

    return register


EVERYWHERE = ("grpc", "http", "openai")
