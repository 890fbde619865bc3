"""The worker's side: it loads once, then answers calls, within limits of the operating system.

The parent writes the configuration and then calls, one after another, to the socket that is the
worker's standard input. The worker ends with that stream.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from fusewire.errors import FusewireError
from fusewire.parent_death import die_with
from fusewire.passed_errors import as_values
from fusewire.worker_processes.messages import BrokenMessage, encoded, receive
from fusewire.worker_processes.process import OUT_OF_MEMORY

# CPU time of all threads for loading. The parent's deadline comes first, unless it is stopped.
_LOAD_CPU_S = 60
_MOST_FILES = 32

# The message of a call -> its result, and the bytes of its body if it has one.
Call = Callable[[Mapping[str, Any]], tuple[Any, memoryview | None]]


class Loaded(NamedTuple):
    """A loaded configuration: the worker's description, the function that answers calls, the memory
    that a call may take in addition, and the CPU time of all threads that it may take."""

    description: Any
    call: Call
    call_bytes: int
    call_cpu_s: int = 60


Load = Callable[[Mapping[str, Any]], Loaded]


def serve(owner: int, load: Load) -> None:
    """Serves until the owner closes the connection. `owner`: the process id of the parent."""
    die_with(owner)
    with socket.socket(fileno=os.dup(0)) as connection:
        try:
            loaded: list[Loaded] = []
            configuration = receive(connection)
            _answer(connection, lambda: _loaded(load, configuration, loaded))
            while loaded:
                message = receive(connection, most_body_bytes=sys.maxsize)  # memory is limited
                _limit_cpu(loaded[0].call_cpu_s)
                _answer(connection, lambda: loaded[0].call(message))  # noqa: B023
                del message
        except (BrokenMessage, OSError):
            return  # the parent has closed the connection
        except MemoryError:
            _out_of_memory()


def limit_memory(more_bytes: int) -> None:
    """Limits memory to `more_bytes` in addition to what the process has now."""
    pages = Path("/proc/self/statm").read_text().split()[0]
    _limit(resource.RLIMIT_AS, int(pages) * resource.getpagesize() + more_bytes)


def _loaded(
    load: Load, configuration: Mapping[str, Any], loaded: list[Loaded]
) -> tuple[Any, memoryview | None]:
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit_cpu(_LOAD_CPU_S)
    loaded.append(load(configuration))
    limit_memory(loaded[0].call_bytes)
    _limit(resource.RLIMIT_NOFILE, _MOST_FILES)
    # From here on stderr is discarded: panics of a library would fill the log.
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    return loaded[0].description, None


def _answer(connection: socket.socket, work: Callable[[], tuple[Any, memoryview | None]]) -> None:
    body = None
    try:
        result, body = work()
        answer = {"result": result} | ({"body_bytes": body.nbytes} if body is not None else {})
    except FusewireError as error:
        answer = {"error": as_values(error)}
    except MemoryError:
        _out_of_memory()
    connection.sendall(encoded(answer))
    if body is not None:
        connection.sendall(body)


def _out_of_memory() -> NoReturn:
    os._exit(OUT_OF_MEMORY)  # exit at once: cleaning up takes memory


def _limit(kind: int, most: int) -> None:
    """Sets the soft limit, to at most the hard limit."""
    hard = resource.getrlimit(kind)[1]
    soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (soft, hard))


def _limit_cpu(more_s: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + more_s)
