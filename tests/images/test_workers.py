"""Images of many requests are read concurrently, each with its own error, in bounded memory."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pytest
from fusewire.errors import InvalidInput
from fusewire.images import ImageWorkers
from fusewire.images import workers as workers_module
from fusewire.images.processor_config import preprocessing_of

from tests.images import files

PREPROCESSING = preprocessing_of({"size": 32}, "vit")


@pytest.fixture
def workers():
    workers = ImageWorkers(PREPROCESSING)
    yield workers
    workers.close()


def test_the_images_of_a_request_are_read_in_order(workers):
    photos = [files.photo(20 + index, 30, seed=index) for index in range(20)]
    for found, photo in zip(workers.read(photos), photos, strict=True):
        np.testing.assert_array_equal(found, PREPROCESSING(photo))


def test_of_several_images_the_bad_one_is_named(workers):
    photo = files.photo(20, 20)
    with pytest.raises(InvalidInput, match=r"^image 1: image: got 3 bytes that begin with"):
        workers.read([photo, b"bad", photo])
    with pytest.raises(InvalidInput, match=r"^image: got 3 bytes that begin with"):
        workers.read([b"bad"])
    assert len(workers.read([photo])) == 1


@dataclass
class Watched:
    """A stand-in for a Preprocessing that takes a while and counts the pixels in work."""

    pixels: int = 0
    most_pixels: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def pixel_values(self, image):
        count = image.width * image.height
        with self.lock:
            self.pixels += count
            self.most_pixels = max(self.most_pixels, self.pixels)
        time.sleep(0.002)
        with self.lock:
            self.pixels -= count
        return np.full((1,), count)


def test_images_in_work_have_a_bounded_number_of_pixels(monkeypatch):
    monkeypatch.setattr(workers_module, "MOST_PIXELS", 1000)
    monkeypatch.setattr(workers_module.os, "sched_getaffinity", lambda _: range(8))
    watched = Watched()
    workers = ImageWorkers(watched)
    sizes = [100, 250, 990, 400, 1000, 50, 300, 600] * 4
    photos = [files.photo(size // 10, 10) for size in sizes]
    with ThreadPoolExecutor(4) as clients:
        answers = list(clients.map(workers.read, [photos[at::4] for at in range(4)]))
    workers.close()
    for at, found in enumerate(answers):
        assert [int(each[0]) for each in found] == sizes[at::4]
    assert 500 < watched.most_pixels <= 1000
