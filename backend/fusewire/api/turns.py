"""Whose turn it is to submit, where several threads have more prompts than the engine admits."""

from __future__ import annotations

import threading

from fusewire.engine.finished import Finished


class Turns:
    """Calls that found no room wait in a queue. The first has the next room: else the call whose
    requests end, which wakes for each of them, would fill every place with its own next prompts,
    and others would wait for the end of its list. Calls are known by their inboxes, which wake
    them; each looks again by itself after a while."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Finished] = []

    def may_give(self, call: Finished) -> bool:
        """Whether a call may submit now. Otherwise it waits, and the first looks for room."""
        with self._lock:
            if not self._waiting or self._waiting[0] is call:
                return True
            if call not in self._waiting:
                self._waiting.append(call)
            self._waiting[0].wake()
            return False

    def found_no_room(self, call: Finished, *, gave: bool) -> None:
        """Lets a call wait: behind the others if it has submitted something in its turn."""
        with self._lock:
            if gave and call in self._waiting:
                self._waiting.remove(call)
            if call not in self._waiting:
                self._waiting.append(call)

    def leave(self, call: Finished) -> None:
        """Takes note that a call submits nothing more, or nothing now."""
        with self._lock:
            if call in self._waiting:
                self._waiting.remove(call)
                for first in self._waiting[:1]:
                    first.wake()
