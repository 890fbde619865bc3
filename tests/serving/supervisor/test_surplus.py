"""Which processes of a model are left over, by children that idle or compute."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from fusewire.serving.supervisor.processes import Stub, times
from fusewire.serving.supervisor.surplus import Surplus

from tests.server.asking import until

BEGUN = "print(flush=True);"
IDLES, COMPUTES = f"{BEGUN} input()", f"{BEGUN} exec('while True: pass')"
PATIENCE_S = 0.5


@pytest.fixture
def start() -> Iterator[Callable[[str], Stub]]:
    children: list[subprocess.Popen[bytes]] = []

    def start(program: str) -> Stub:
        child = subprocess.Popen(
            [sys.executable, "-ISc", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline()  # done with starting
        time.sleep(0.02)  # the next one is younger: the kernel counts in hundredths of a second
        return Stub(child.pid, "m", "1", "m_0_0")

    yield start
    for child in children:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            assert pipe is not None
            pipe.close()


def ended(stubs: list[Stub], wanted: int, loaded_at: float) -> list[int]:
    """What is to be ended after a while."""
    surplus = Surplus(PATIENCE_S)
    assert surplus.idle(stubs, wanted, loaded_at) == []
    time.sleep(PATIENCE_S + 0.1)
    return surplus.idle(stubs, wanted, loaded_at)


def test_the_oldest_that_idles_is_left_over(start: Callable[[str], Stub]) -> None:
    old, new = start(IDLES), start(IDLES)
    assert ended([new, old], 1, time.monotonic()) == [old.pid]


def test_one_that_computes_finishes_what_it_began(start: Callable[[str], Stub]) -> None:
    old, new = start(COMPUTES), start(IDLES)
    loaded_at, surplus = time.monotonic(), Surplus(PATIENCE_S)
    assert surplus.idle([old, new], 1, loaded_at) == []
    used_s = times(old.pid).used_s
    time.sleep(PATIENCE_S)
    # Clearly more than one that idles takes, however many others want the cores.
    until(lambda: times(old.pid).used_s - used_s > 0.1 + 0.05 * (time.monotonic() - loaded_at))
    assert surplus.idle([old, new], 1, loaded_at) == []


def test_none_is_left_over_while_another_loads(start: Callable[[str], Stub]) -> None:
    old = start(IDLES)
    loaded_at = time.monotonic() - 0.1
    assert ended([old, start(IDLES)], 1, loaded_at) == []


def test_all_instances_of_a_model_are_wanted(start: Callable[[str], Stub]) -> None:
    assert ended([start(IDLES), start(IDLES)], 2, time.monotonic()) == []
