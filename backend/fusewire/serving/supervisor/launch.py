"""Starts tritonserver with a preloaded shared object (csrc/tritonserver/preload.cc), so that its
command line does not show the control key, and that the server ends with its supervisor.

Files of the server and its stubs are accessible to this user only: umask, temporary folder, shared
memory.
"""

from __future__ import annotations

import io
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import fusewire
from fusewire.errors import ConfigurationError
from fusewire.serving.environment import without_secrets
from fusewire.serving.supervisor import tritonserver_command, workplace

_PRELOAD = "tritonserver_preload.so"
_TEMPORARY = "tmp"
# The server's HTTP threads copy a body of the type that curl -d and urllib send
# (application/x-www-form-urlencoded) to their stacks, twice, and crash where it does not fit. A
# stack is only address space until it is used, but counts as memory without overcommit. Threads get
# the soft limit at the start of the program ("unlimited": 2 MiB).
_STACK_BYTES = 256 << 20
# $1: stack in KiB, $2: library to preload into the following program, before those of the user.
_SHELL = 'ulimit -Ss "$1"; export LD_PRELOAD="$2${LD_PRELOAD:+:$LD_PRELOAD}"; shift 2; exec "$@"'


@dataclass(frozen=True)
class Launched:
    """A server's process, the leader of its own process group. The group ends when `input` is
    closed."""

    process: subprocess.Popen[str]
    input: io.FileIO  # C ints: process ids of children to be reaped, or stages of the end


def prepare(folder: Path) -> None:
    """Copies the files that `start` needs into a server's folder. Raises ConfigurationError where
    the shared object is missing: without it every user could see the control key."""
    built = Path(fusewire.__file__).parent / _PRELOAD
    if not built.is_file():
        raise ConfigurationError(
            f"{_PRELOAD}: not found in the package fusewire, wanted to keep the control key out of "
            "tritonserver's command line; install fusewire again, or build it: cmake --build build"
        )
    # LD_PRELOAD splits paths at spaces and colons, so it gets a path relative to our own folder.
    shutil.copy(built, folder / _PRELOAD)
    for name in (_TEMPORARY, workplace.RECORDED):
        (folder / name).mkdir(mode=0o700)


def start(
    command: Sequence[str],
    folder: Path,
    control_key: str,
    *,
    working_directory: Path,
    libraries: Sequence[Path],
) -> Launched:
    """Starts the server. `folder`: its prepared folder. `libraries`: folders for its loader."""
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    stack_bytes = _STACK_BYTES if hard == resource.RLIM_INFINITY else min(_STACK_BYTES, hard)
    preload = f"./{os.path.relpath(folder / _PRELOAD, working_directory)}"  # ./ makes it a path
    shell = ["/bin/sh", "-c", _SHELL, "sh", str(stack_bytes >> 10), preload]
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    try:
        process = subprocess.Popen(
            [*shell, *command],
            env=_environment(folder, control_key, libraries),
            cwd=working_directory,
            stdin=reads,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            umask=0o077,
            start_new_session=True,  # Ctrl-C is handled here
        )
    except BaseException:
        os.close(writes)
        raise
    finally:
        os.close(reads)
    return Launched(process, io.FileIO(writes, "w"))


def _environment(folder: Path, control_key: str, libraries: Sequence[Path]) -> dict[str, str]:
    environment = without_secrets(os.environ)
    # The stub uses the first python3 of PATH, and its virtual environment.
    programs = str(Path(sys.executable).parent)
    environment["PATH"] = os.pathsep.join([programs, environment.get("PATH", os.defpath)])
    paths = [*map(str, libraries), *filter(None, [environment.get("LD_LIBRARY_PATH")])]
    environment["LD_LIBRARY_PATH"] = os.pathsep.join(paths)
    environment["PYTHONUNBUFFERED"] = "1"
    environment["TMPDIR"] = str(folder / _TEMPORARY)
    shared = str(workplace.SHARED_MEMORY / workplace.region_prefix(folder))
    environment["FUSEWIRE_ADMISSION_BLOCKS"] = f"{shared}admission_"
    environment["FUSEWIRE_CANCELLATIONS"] = f"{shared}cancellations"
    environment["FUSEWIRE_TEMPORARY_FOLDERS"] = str(folder / workplace.RECORDED)
    return environment | tritonserver_command.secrets(control_key)
