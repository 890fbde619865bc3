"""How much audio an engine has at once: its features are memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from fusewire.engine.branches import Event
from fusewire.errors import FusewireError, Overloaded, QueueFull


class HeldAudio:
    """The seconds of all audio inputs that run and wait. From any thread."""

    def __init__(self, most_seconds: float, ends_s: Callable[[], Sequence[float]]) -> None:
        """`ends_s`: the predicted seconds until each request that runs has ended, sorted."""
        self._most = most_seconds
        self._ends_s = ends_s
        self._held = 0.0
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        return self._held

    def take(self, seconds: float) -> None:
        """Takes `seconds` of audio. Overloaded where they are too much beside the others, until
        enough of these have been written down."""
        with self._lock:
            held = self._held
            if held + seconds <= self._most:
                self._held += seconds
                return
        raise Overloaded(
            f"queue: got {held + seconds:.0f} s of audio to transcribe at once, wanted at most "
            f"{self._most:.0f} s (raise max_audio_seconds for more)",
            self._until_there_is_room_s((held + seconds - self._most) / held),
        )

    def leave(self, seconds: float) -> None:
        with self._lock:
            self._held -= seconds

    def until_the_end(
        self, seconds: float, callback: Callable[[Event], None]
    ) -> Callable[[Event], None]:
        """A callback that passes the events of a text on, and gives its `seconds` back with the
        last one."""

        def told(event: Event) -> None:
            if isinstance(event, FusewireError) or event.finish_reason is not None:
                self.leave(seconds)
            callback(event)

        return told

    def _until_there_is_room_s(self, share: float) -> float:
        """Seconds until this share of what runs has ended, as if all had inputs of one length."""
        ends = self._ends_s()
        if not ends:
            return QueueFull.retry_after_s
        return ends[min(int(share * len(ends)), len(ends) - 1)]
