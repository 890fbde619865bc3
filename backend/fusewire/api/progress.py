"""A progress bar on standard error, drawn by the working thread itself, a few times per second."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

REFRESH_S = 0.25


class ProgressBar:
    """A context manager. Nothing is drawn if standard error is not a terminal, or if the work ends
    before the first refresh."""

    def __init__(self, total: int, unit: str, *, shown: bool) -> None:
        """`total`: the number of items. `unit`: their name, in the plural."""
        console = Console(stderr=True)
        self._shown = shown and (console.is_terminal or console.is_jupyter)
        # Without rich's own thread, which would compete with the working threads for the GIL.
        self._progress = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(f"{unit} {{task.fields[rates]}}"),
            TimeRemainingColumn(),
            console=console,
            auto_refresh=False,
        )
        self._task = self._progress.add_task("", total=total, rates="")
        self._began = time.perf_counter()
        self._due = self._began + REFRESH_S
        self._drawn = False

    def update(self, done: int, **counts: int) -> None:
        """`done`: items done so far. `counts`: counts so far by unit, shown per second."""
        now = time.perf_counter()
        if not self._shown or now < self._due:
            return
        if not self._drawn:
            self._progress.start()
            self._drawn = True
        self._due = now + REFRESH_S
        elapsed = now - self._began
        rates = ", ".join(f"{count / elapsed:,.0f} {unit}/s" for unit, count in counts.items())
        self._progress.update(self._task, completed=done, rates=rates)
        self._progress.refresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if not self._drawn:
            return
        if kind is None:  # no exception
            self._progress.update(self._task, completed=self._progress.tasks[0].total)
        self._progress.refresh()
        self._progress.stop()
