"""Decodes and preprocesses the images of many requests concurrently, while the device computes."""

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

# Each process is a Python with Pillow and numpy. A served model starts as many again when very
# large images are sent.
MOST_PROCESSES = 8
# For one image. The CPU time of a call is limited too.
DEADLINE_S = 60.0
_READS = Reads("image process", "an image", "send a smaller image")


class ImageWorkers:
    """Reads images for one model, in as many threads as there are cores, or in processes. However
    many requests call it, the images that are read at the same time have at most MOST_PIXELS pixels
    in total."""

    def __init__(self, preprocessing: Preprocessing, *, apart: bool = False) -> None:
        """`apart`: read encoded images in separate processes, up to MOST_PROCESSES, which are
        started when they are needed. Threads would compete for Python's interpreter lock with each
        other and with the thread that feeds the device, and the device would wait. In a process, a
        file that crashes a decoder or exhausts its memory affects only its own request."""
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
        """Returns the pixel values [3, height, width] of each image in order. An image is encoded
        or a result of `upright`. Raises InvalidInput for the first image that cannot be read, and
        names it where there are several."""
        return self.start(images)()

    def start(
        self,
        images: Sequence[bytes | PILImage],
        pixels: Sequence[int] = (),
        *,
        first: int | None = None,
    ) -> Callable[[], list[NDArray[np.float32]]]:
        """Starts reading, and returns a function that waits for the images like `read`. `pixels`:
        pixels of each image, where its header has been read. `first`: the index of the first image
        among those of the caller; errors then name an image even where there is one."""
        counts: Sequence[int | None] = pixels or [None] * len(images)
        futures = [
            self._pool.submit(self._read, data, count)
            for data, count in zip(images, counts, strict=True)
        ]

        def finish() -> list[NDArray[np.float32]]:
            try:
                named = len(futures) > 1 or first is not None
                return [
                    _result(future, index if named else None)
                    for index, future in enumerate(futures, first or 0)
                ]
            finally:
                for future in futures:
                    future.cancel()

        return finish

    def close(self) -> None:
        """Ends the threads after the images that they are reading, and cancels the images that wait
        for a thread. Ends processes at once: the images that they are reading, or would have read,
        raise Unavailable."""
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


def _result(future: Future[NDArray[np.float32]], index: int | None) -> NDArray[np.float32]:
    try:
        return future.result()
    except InvalidInput as error:
        raise (error if index is None else error.at(f"image {index}")) from None


class _Room:
    """Limits the pixels that are read at the same time. Images are served in order of arrival, so
    that no large image waits for ever."""

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
