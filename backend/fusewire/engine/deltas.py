"""What a request is answered, to iterate over."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterator
from typing import Self

from fusewire.engine.best_of import BestOf
from fusewire.engine.continuation import Delta
from fusewire.errors import FusewireError


class Deltas(Iterator[Delta]):
    """Each Delta as it comes, until all texts have ended; raises the error that ends the request.

    Closed or dropped, it cancels what has not ended.
    """

    def __init__(
        self,
        n: int,
        sequences: int,
        events: queue.SimpleQueue[Delta | FusewireError],
        cancel: Callable[[], None],
    ) -> None:
        self._left = n  # texts that have not ended
        self._answer = BestOf(n, sequences)
        self._events = events
        self._cancel = cancel
        self._ready: deque[Delta] = deque()

    def __next__(self) -> Delta:
        while self._left and not self._ready:
            for event in self._answer.add(self._events.get()):
                if isinstance(event, FusewireError):
                    self._left = 0
                    raise event
                self._ready.append(event)
        if not self._left:
            raise StopIteration
        delta = self._ready.popleft()
        self._left -= delta.finish_reason is not None
        return delta

    def close(self) -> None:
        if self._left:
            self._left = 0
            self._cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
