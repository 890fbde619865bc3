"""Images of many requests are decoded and preprocessed at once, while the device computes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image as PILImage

from fusewire.errors import InvalidInput
from fusewire.images.decode import FIELD, MOST_PIXELS, open_image, rgb
from fusewire.images.preprocess import Preprocessing
from fusewire.worker_processes.of_threads import ProcessOfEachThread, Reads

# Each is a Python with Pillow and numpy. A server's model has as many again where very large images
# come.
MOST_PROCESSES = 8
# For one image; the processor's time of a call is limited too.
DEADLINE_S = 60.0
_READS = Reads("image process", "an image", "send a smaller image")


class ImageWorkers:
    """Reads images for one model, in as many threads as there are cores, or in processes. However
    many requests call it, the images in work have at most MOST_PIXELS pixels together."""

    def __init__(self, preprocessing: Preprocessing, *, apart: bool = False) -> None:
        """`apart`: encoded images are read in processes of their own, up to MOST_PROCESSES, started
        when they are needed. Threads take turns at Python's interpreter, with each other and with
        the one that feeds the device, which then waits. And a file that breaks a decoder, or takes
        its memory, harms only its own request."""
        self._preprocessing = preprocessing
        self._room = _Room(MOST_PIXELS)
        self.threads = len(os.sched_getaffinity(0))
        self._processes = None
        if apart:
            self.threads = min(self.threads, MOST_PROCESSES)
            program = "fusewire.images.worker"
            self._processes = ProcessOfEachThread(program, preprocessing.values(), _READS)
        self._pool = ThreadPoolExecutor(self.threads, "images")

    def read(self, images: Sequence[bytes | PILImage]) -> list[NDArray[np.float32]]:
        """Pixel values [3, height, width] of each image, encoded or as `upright` gives it, in
        order. InvalidInput for the first that cannot be read, which it names where there are
        several."""
        return self.start(images)()

    def start(
        self, images: Sequence[bytes | PILImage], pixels: Sequence[int] = ()
    ) -> Callable[[], list[NDArray[np.float32]]]:
        """Starts reading; what is returned waits for the images, as `read`. `pixels`: of each
        image, where its header was read."""
        counts: Sequence[int | None] = pixels or [None] * len(images)
        futures = [
            self._pool.submit(self._read, data, count)
            for data, count in zip(images, counts, strict=True)
        ]

        def finish() -> list[NDArray[np.float32]]:
            try:
                return [
                    _result(future, index, len(futures)) for index, future in enumerate(futures)
                ]
            finally:
                for future in futures:
                    future.cancel()

        return finish

    def close(self) -> None:
        """Ends the threads after the images in work, and processes at once: what those read, or
        would have, is Unavailable. What waits for threads is cancelled."""
        if self._processes is None:
            self._pool.shutdown(cancel_futures=True)
        else:
            self._processes.kill()
            self._pool.shutdown()
            self._processes.close()

    def _read(self, given: bytes | PILImage, pixels: int | None) -> NDArray[np.float32]:
        if self._processes is not None and isinstance(given, bytes):
            with self._room.for_pixels(_pixels(open_image(given)) if pixels is None else pixels):
                answer = self._processes.call(FIELD, {}, given, DEADLINE_S)
            return answer["body"].view(np.float32).reshape(answer["result"])
        image = open_image(given) if isinstance(given, bytes) else given
        with self._room.for_pixels(_pixels(image)):
            return self._preprocessing.pixel_values(rgb(image))


def _pixels(image: PILImage) -> int:
    return image.width * image.height


def _result(future: Future[NDArray[np.float32]], index: int, images: int) -> NDArray[np.float32]:
    try:
        return future.result()
    except InvalidInput as error:
        raise (error.at(f"image {index}") if images > 1 else error) from None


class _Room:
    """Room for so many pixels in work at once; first come, first served, so that no large image
    waits for ever."""

    def __init__(self, pixels: int) -> None:
        self._free = pixels
        self._first = threading.Lock()
        self._changed = threading.Condition()

    @contextmanager
    def for_pixels(self, pixels: int) -> Iterator[None]:
        with self._first, self._changed:
            self._changed.wait_for(lambda: self._free >= pixels)
            self._free -= pixels
        try:
            yield
        finally:
            with self._changed:
                self._free += pixels
                self._changed.notify()
