"""What /proc and the cgroups say about memory."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fusewire.serving.supervisor import memory

MIB = 1 << 20


def test_memory_that_is_written_to_counts() -> None:
    before = memory.resident(os.getpid()).anonymous_bytes
    # No memory that was freed before.
    with mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE) as block:
        block.write(b"1" * (64 * MIB))
        assert memory.resident(os.getpid()).anonymous_bytes - before > 60 * MIB


def test_memory_that_processes_share_counts_apart() -> None:
    before = memory.resident(os.getpid())
    with mmap.mmap(-1, 64 * MIB) as block:
        block.write(b"1" * (64 * MIB))
        after = memory.resident(os.getpid())
    assert after.shared_bytes - before.shared_bytes > 60 * MIB
    assert after.anonymous_bytes - before.anonymous_bytes < 60 * MIB
    assert after.file_bytes > 0


def test_a_process_that_has_ended_has_no_memory() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert memory.resident(child.pid) == memory.Resident()  # a zombie
    child.wait()
    assert memory.resident(child.pid) == memory.Resident()


@pytest.mark.parametrize(
    ("own", "files", "limit_mib"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "512"}, 512),
        ("0::/a/b\n", {"a/b/memory.max": "256", "a/memory.max": "512"}, 256),
        ("0::/\n", {"memory.max": "128"}, 128),
        ("0::/of/the/host\n", {"memory.max": "64"}, 64),  # in a container without a namespace
        ("5:cpu,memory:/c\n", {"memory/c/memory.limit_in_bytes": "32"}, 32),
        ("4:cpu:/c\n5:memory:/host\n", {"memory/memory.limit_in_bytes": "16"}, 16),
    ],
)
def test_the_smallest_limit_of_the_cgroups_counts(
    tmp_path: Path, own: str, files: dict[str, str], limit_mib: int
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(own)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if text == "max" else str(int(text) * MIB) + "\n")
    assert memory.total_bytes(tmp_path) == limit_mib * MIB


def test_without_limits_the_machine_counts(tmp_path: Path) -> None:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory.total_bytes(tmp_path) == pages
