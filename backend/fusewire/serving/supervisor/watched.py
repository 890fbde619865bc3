"""What a watchdog watches and heals: the parts of one server."""

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
    """`start`: starts the process, which has died, with these models; returns when it answers.
    `lost`: called with a model, a process of which has died, and a time (time.monotonic): of the
    requests that began before then some are lost."""

    process: EmbeddedServer
    control: Control
    pins: Pins
    repositories: Sequence[Path]
    settings: ServerSettings
    start: Callable[[Sequence[str]], None]
    lost: Callable[[str, float], None]
