from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Goal:
    """One sentence of what was wanted, with what was measured."""

    what: str
    wanted: str
    measured: str
    reached: bool
