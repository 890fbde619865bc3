"""Starting tritonserver: with a shared object preloaded (csrc/tritonserver/preload.cc), so that no
command line shows the control key and that the server ends with its supervisor.

What it and its stubs write is for this user alone: umask, temporary folder, shared memory.
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
# The server's HTTP threads put a body of the type that curl -d and urllib send
# (application/x-www-form-urlencoded) on their stacks, twice, and die where it does not fit. A
# stack is address space until it is used, but where memory is not overcommitted it counts. The
# soft limit at a program's start is what its threads get ("unlimited": 2 MiB).
_STACK_BYTES = 256 << 20
# $1: stack in KiB, $2: what to preload into the program that follows, before what the user does.
_SHELL = 'ulimit -Ss "$1"; export LD_PRELOAD="$2${LD_PRELOAD:+:$LD_PRELOAD}"; shift 2; exec "$@"'


@dataclass(frozen=True)
class Launched:
    """A server's process, the leader of a group of its own. The group ends when `input` does."""

    process: subprocess.Popen[str]
    input: io.FileIO  # C ints: process ids of children to be reaped, or stages of the end


def prepare(folder: Path) -> None:
    """Puts into a server's folder what `start` needs there. ConfigurationError where the shared
    object is missing: without it the control key would be shown to every user."""
    built = Path(fusewire.__file__).parent / _PRELOAD
    if not built.is_file():
        raise ConfigurationError(
            f"{_PRELOAD}: not found in the package fusewire, wanted to keep the control key out of "
            "tritonserver's command line; install fusewire again, or build it: cmake --build build"
        )
    # LD_PRELOAD takes no path with a space or a colon, so it gets one relative to a folder of ours.
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
    """Starts the server. `folder`: its prepared folder; `libraries`: folders for its loader."""
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    stack_bytes = _STACK_BYTES if hard == resource.RLIM_INFINITY else min(_STACK_BYTES, hard)
    preload = f"./{os.path.relpath(folder / _PRELOAD, working_directory)}"  # else only a name
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
            start_new_session=True,  # Ctrl-C is ours to handle
        )
    except BaseException:
        os.close(writes)
        raise
    finally:
        os.close(reads)
    return Launched(process, io.FileIO(writes, "w"))


def _environment(folder: Path, control_key: str, libraries: Sequence[Path]) -> dict[str, str]:
    environment = without_secrets(os.environ)
    # The stub takes the first python3 for its own, and with it a virtual environment.
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
