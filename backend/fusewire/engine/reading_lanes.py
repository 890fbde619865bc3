"""Where requests are read beside the thread that submits them: longer texts are tokenised, images
decoded, the heaviest apart from the others."""

from __future__ import annotations

import threading

from fusewire.engine.encoder import EncoderEngine
from fusewire.engine.request import Work
from fusewire.tasks.task import Reader
from fusewire.text.work_queue import LONG_CHARACTERS, MOST_WAITING, WorkQueue

# Most characters of texts that the submitting thread tokenises itself: about a millisecond's work.
SHORT_CHARACTERS = 2048
# Pixels of a request's encoded images beyond which it is heavy: about a second's work of a core.
LONG_PIXELS = 1 << 25
_MOST_WAITING = 1024
_MOST_LARGE_IMAGES = 64


class Lane:
    """Threads that read one request after the other."""

    def __init__(self, engine: EncoderEngine, what: str, most_waiting: int) -> None:
        """`what`: how the error begins where too many wait."""
        self._engine = engine
        self._lock = threading.Lock()
        self._reader: Reader | None = None
        self.queue = WorkQueue(what, most_waiting, threads=engine.reading_threads)

    def reader(self) -> Reader:
        """The lane's reader, made when the first request comes: tokenizers take memory."""
        with self._lock:
            if self._reader is None:
                self._reader = self._engine.new_reader()
            return self._reader

    def close(self) -> None:
        """Ends the lane's threads, when all that it reads has ended."""
        self.queue.close(0.0)
        with self._lock:
            if self._reader is not None:
                self._reader.close()


class ReadingLanes:
    """The lanes of one engine."""

    def __init__(self, engine: EncoderEngine) -> None:
        self._engine = engine
        self._images = engine.reads_images
        if self._images:
            self._middle = Lane(engine, "image: got images", _MOST_WAITING)
            self._long = Lane(engine, f"image: got over {LONG_PIXELS} pixels", _MOST_LARGE_IMAGES)
        else:
            what = "text_input: got over {} characters"
            self._middle = Lane(engine, what.format(SHORT_CHARACTERS), _MOST_WAITING)
            self._long = Lane(engine, what.format(LONG_CHARACTERS), MOST_WAITING)

    def quick(self, work: Work) -> bool:
        """Whether the thread that submits it reads it: no long texts, and of images the headers."""
        return work.request.characters <= LONG_CHARACTERS

    def lane(self, work: Work) -> Lane | None:
        """The lane of a request; None where the thread that submits it tokenises it at once."""
        if self._images:
            pixels = work.query.undecoded_pixels if work.query else 0
            if pixels:
                return self._long if pixels > LONG_PIXELS else self._middle
        characters = work.request.characters
        if characters <= SHORT_CHARACTERS:
            return None
        return self._long if characters > LONG_CHARACTERS else self._middle

    def close(self) -> None:
        for lane in (self._middle, self._long):
            lane.close()
