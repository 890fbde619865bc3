from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Goal:
    """One goal, with the measured value."""

    what: str
    wanted: str
    measured: str
    reached: bool
