"""The parts of one server that a watchdog watches and heals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fusewire.serving.config import ServerSettings
from fusewire.serving.supervisor.control import Control
from fusewire.serving.supervisor.embedded import EmbeddedServer
from fusewire.serving.supervisor.pins import Pins


@dataclass(frozen=True)
class Watched:
    """`start`: restarts the process, which has died, with these models, and returns when it
    answers. `lost`: called with a model, of which a process has died, and a time (time.monotonic);
    some of the requests that began before this time are lost."""

    process: EmbeddedServer
    control: Control
    pins: Pins
    repositories: Sequence[Path]
    settings: ServerSettings
    start: Callable[[Sequence[str]], None]
    lost: Callable[[str, float], None]
