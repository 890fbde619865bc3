"""What the watchdog reads in /proc."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from fusewire.serving.supervisor import processes

# As tritonserver 2.51 starts it.
STUB = (
    "/backends/python/triton_python_backend_stub",
    "/repository/minilm/3/model.py",
    "fusewire_1_a_43ede36b",
    "1048576",
    "1048576",
    "8193",
    "/backends/python",
    "336",
    "minilm_0_1",
    "/backends/fusewire",
)


def command_line(*words: str) -> bytes:
    return b"".join(word.encode() + b"\0" for word in words)


def test_a_killed_child_is_seen_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert processes.children(os.getpid())[child.pid] == "running"
        processes.kill(child.pid)
        deadline = time.monotonic() + 10
        while processes.children(os.getpid())[child.pid] != "died":
            assert time.monotonic() < deadline
    finally:
        child.kill()
        child.wait()
    assert child.pid not in processes.children(os.getpid())
    processes.kill(child.pid)  # gone already: no error


def test_a_child_that_ended_well_has_not_died() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    try:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
        assert processes.children(os.getpid())[child.pid] == "ended"
    finally:
        child.wait()


def test_a_group_lives_as_long_as_one_of_it() -> None:
    leader = subprocess.Popen(["sh", "-c", "sleep 60 & wait"], start_new_session=True)
    try:
        assert not processes.wait_for_group(leader.pid, 0.05)
        processes.kill_group(leader.pid)
        assert processes.wait_for_group(leader.pid, 10)
    finally:
        leader.wait()


def test_a_stub_names_model_version_and_instance() -> None:
    assert processes.stub_of(7, command_line(*STUB)) == processes.Stub(
        7, "minilm", "3", "minilm_0_1", "fusewire_1_a_43ede36b"
    )


def test_other_processes_are_no_stubs() -> None:
    assert processes.stub_of(7, command_line("/usr/bin/python3", *STUB[1:])) is None
    assert processes.stub_of(7, command_line(STUB[0])) is None
    assert processes.stub_of(7, b"") is None
    assert processes.stub(os.getpid()) is None
    assert processes.stub(2**22 + 1) is None
