"""Images are read in processes: a crash affects only the request that caused it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from fusewire.errors import InvalidInput, Unavailable
from fusewire.images import ImageWorkers
from fusewire.images import workers as workers_module
from fusewire.images.preprocess import Preprocessing
from fusewire.images.processor_config import preprocessing_of
from fusewire.worker_processes import process

from tests.images import files

CLIP = {
    "size": {"shortest_edge": 40},
    "crop_size": {"height": 32, "width": 32},
    "do_center_crop": True,
    "do_convert_rgb": True,
}
PREPROCESSING = preprocessing_of(CLIP, "clip")


@pytest.fixture
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses one reading thread, so that the next image goes to the same process."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})


@pytest.fixture
def workers() -> Iterator[ImageWorkers]:
    workers = ImageWorkers(PREPROCESSING, apart=True)
    yield workers
    workers.close()


def pids(workers: ImageWorkers) -> list[int]:
    assert workers._processes is not None
    return [each.pid for each in workers._processes._all if not each.ended]


@pytest.mark.parametrize("settings", [{}, CLIP, {"do_resize": False, "do_normalize": False}])
def test_preprocessing_is_the_same_in_another_process(settings):
    given = preprocessing_of(settings, "vit")
    assert Preprocessing.of_values(given.values()) == given


def test_pixels_are_those_that_threads_read(workers):
    photos = [files.photo(20 + index, 30, seed=index) for index in range(20)]
    for found, photo in zip(workers.read(photos), photos, strict=True):
        np.testing.assert_array_equal(found, PREPROCESSING(photo))
        assert found.dtype == np.float32


def test_many_requests_share_the_processes(workers):
    photos = [files.photo(20, 20 + index, seed=index) for index in range(40)]
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda photo: workers.read([photo])[0], photos))
    for found, photo in zip(answers, photos, strict=True):
        np.testing.assert_array_equal(found, PREPROCESSING(photo))
    assert 1 <= len(pids(workers)) <= workers.threads


def test_a_damaged_image_has_the_error_of_its_own(workers):
    photo = files.photo(200, 200)
    with pytest.raises(InvalidInput, match=r"^image 1: image: got a damaged or truncated PNG"):
        workers.read([photo, photo[: len(photo) // 2], photo])
    assert len(workers.read([photo])) == 1


def test_a_process_that_was_killed_while_it_rested_is_replaced(one_core, workers):
    photo = files.photo(20, 20)
    wanted = workers.read([photo])[0]
    for pid in pids(workers):
        os.kill(pid, signal.SIGKILL)
    np.testing.assert_array_equal(workers.read([photo])[0], wanted)


def test_a_process_that_dies_of_an_image_answers_for_it_alone(workers, monkeypatch):
    photo, bad = files.photo(20, 20), files.photo(21, 21)
    harm = (
        f"c = program.Preprocessing.__call__; w = lambda s, d: 1 / 0 if len(d) == {len(bad)} else"
    )
    _before_the_program(monkeypatch, f"{harm} c(s, d); program.Preprocessing.__call__ = w")
    with pytest.raises(Unavailable, match=r"^image process: got exit status 1, twice"):
        workers.read([bad])
    assert len(workers.read([photo])) == 1


@pytest.mark.parametrize(
    ("statement", "start_s", "got"),
    [
        ("import time; time.sleep(60)", 0.2, "it takes over 0.2 s"),
        ("import os; os._exit(3)", 30.0, "it takes too much memory"),
        ("import os; os._exit(1)", 30.0, "exit status 1"),
    ],
)
def test_an_image_is_not_blamed_where_no_process_starts(
    workers, monkeypatch, statement, start_s, got
):
    photo = files.photo(20, 20)
    with monkeypatch.context() as patched:
        patched.setattr(process, "START_S", start_s)
        _before_the_program(patched, statement)
        with pytest.raises(
            Unavailable, match=rf"^image process: got none \({got}\).*; try again later$"
        ):
            workers.read([photo])
    assert len(workers.read([photo])) == 1


def test_an_image_is_not_blamed_where_the_system_has_no_room_for_a_process(workers, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patched:
        patched.setattr(process.subprocess, "Popen", full)
        with pytest.raises(Unavailable, match=r"temporarily unavailable\).*; try again later$"):
            workers.read([files.photo(20, 20)])


def test_memory_of_an_image_is_bounded(workers, monkeypatch):
    _before_the_program(monkeypatch, "program.CALL_BYTES = 1 << 24")
    with pytest.raises(InvalidInput, match=r"cannot be read \(it takes too much memory\)"):
        workers.read([files.photo(3000, 3000)])


def test_time_of_an_image_is_bounded(one_core, workers, monkeypatch):
    photo = files.photo(20, 20)
    workers.read([photo])
    monkeypatch.setattr(workers_module, "DEADLINE_S", 0.05)
    for pid in pids(workers):
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(InvalidInput, match=r"cannot be read \(it takes over 0.05 s\)"):
        workers.read([photo])


def test_processes_end_with_their_owner():
    before = set(threading.enumerate())
    workers = ImageWorkers(PREPROCESSING, apart=True)
    assert not pids(workers), "they start when they are needed"
    workers.read([files.photo(20, 20)])
    [pid] = pids(workers)
    workers.close()
    assert not Path(f"/proc/{pid}").exists()
    assert set(threading.enumerate()) <= before


def _before_the_program(monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    """Executes the statement in each process after its module, `program`, is imported."""
    begun = f"{statement}\nprogram.main("
    monkeypatch.setattr(process, "_PROGRAM", process._PROGRAM.replace("program.main(", begun))
