"""A process for one side of a comparison."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.worker import Handler, Worker


def spinning() -> Handler:
    """A thread spins from the first question on; answers are the CPU seconds of the process."""

    def spin() -> None:
        while True:
            pass

    threading.Thread(target=spin, daemon=True).start()
    return lambda question: time.process_time()


def test_threads_that_spin_take_no_time_between_questions() -> None:
    with Worker("spinning", spinning) as worker:
        begin = worker.ask(None)
        time.sleep(1.0)
        assert worker.ask(None) - begin < 0.5


def test_an_error_has_the_traceback_of_the_process() -> None:
    with Worker("broken", int, "x") as worker:
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"(?s)broken: .*invalid literal for int"):
                worker.ask(None)


def test_a_program_ends_though_it_closes_no_worker() -> None:
    program = (
        "from benchmarks.worker import Worker\n"
        "from tests.benchmarks.test_worker import spinning\n"
        "if __name__ == '__main__':\n"
        "    worker = Worker('spinning', spinning)\n"
        "    worker.ask(None)\n"
        "    print(worker.pid)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], timeout=60, capture_output=True, text=True, check=True
    )
    assert not Path(f"/proc/{int(ended.stdout)}").exists()
