"""Requests as they finish: an inbox that wakes its reader once a request, not once a token.

A reader that wakes for each token competes with the engine's thread for the interpreter, and takes
most of its time at small models.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence

from fusewire.engine.best_of import BestOf
from fusewire.engine.continuation import Delta
from fusewire.errors import FusewireError


class Pending:
    """One request of a `Finished` inbox: its events so far."""

    def __init__(self, index: int, n: int, sequences: int) -> None:
        """`index`: the reader's name for it."""
        self.index = index
        self.deltas: list[Delta] = []
        self.error: FusewireError | None = None
        self._n = n
        self._sequences = sequences
        self._open = sequences

    def add(self, event: Delta | FusewireError) -> bool:
        """Takes an event of the engine; returns whether it was the last."""
        if isinstance(event, FusewireError):
            self.error = event
            return True
        self.deltas.append(event)
        if event.finish_reason is None:
            return False
        self._open -= 1
        return not self._open

    def texts(self) -> list[Sequence[Delta]]:
        """The deltas of each of the n texts, in order."""
        if self._sequences == 1:
            return [self.deltas]
        answer = BestOf(self._n, self._sequences)
        found: list[list[Delta]] = [[] for _ in range(self._n)]
        for delta in self.deltas:
            for event in answer.add(delta):
                assert isinstance(event, Delta)
                found[event.index].append(event)
        return [*found]


class Finished(queue.SimpleQueue[Pending | None]):
    """Requests that were submitted with its callback come out of `get` when they have ended; None
    when it was woken."""

    def callback(self, pending: Pending) -> Callable[[Delta | FusewireError], None]:
        def on_event(event: Delta | FusewireError) -> None:
            if pending.add(event):
                self.put(pending)

        return on_event

    def wake(self) -> None:
        """Ends a wait for requests. From any thread."""
        self.put(None)
