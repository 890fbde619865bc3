"""The worker's program: loads one folder's tokenizer and chat template, then answers calls.

Its owner writes the configuration and then calls to the socket that is its standard input, one
after the other; the end of that stream ends it.
"""

from __future__ import annotations

import gc
import os
import resource
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from fusewire.errors import FusewireError
from fusewire.parent_death import die_with
from fusewire.passed_errors import as_values
from fusewire.text.text_processor import TextProcessor
from fusewire.text.tokenizer_files import tokenizer_file
from fusewire.text_workers.messages import BrokenMessage, encoded, receive
from fusewire.text_workers.process import OUT_OF_MEMORY

METHODS = ("conversation", "count", "echo", "ids", "last_tokens", "pieces", "text")

# Memory of a call, beyond what the loaded worker has: for a template, and for each character of a
# text that it tokenises (measured: 160 to 230 bytes).
CALL_BYTES = 1 << 30
CALL_BYTES_PER_CHARACTER = 512
# Of loading: for a template, and for each byte of a tokenizer's file.
LOAD_BYTES = 1 << 30
LOAD_BYTES_PER_BYTE = 32
# In one call, by all threads. The owner's deadline comes first, unless the owner is stopped.
_CALL_CPU_S = 60
_MOST_FILES = 32


def main(owner: int) -> None:
    """`owner`: its process id."""
    die_with(owner)
    with socket.socket(fileno=os.dup(0)) as connection:
        try:
            configuration = receive(connection)
            loaded: list[TextProcessor] = []
            answer = _answer(lambda: _load(configuration, loaded))
            connection.sendall(encoded(answer))
            while loaded:
                message = receive(connection)
                _limit(resource.RLIMIT_CPU, _cpu_s() + _CALL_CPU_S)
                connection.sendall(encoded(_answer(lambda: _call(loaded[0], message))))  # noqa: B023
                del message
        except (BrokenMessage, OSError):
            return  # the owner has closed
        except MemoryError:
            _out_of_memory()


def _load(configuration: Mapping[str, Any], loaded: list[TextProcessor]) -> Mapping[str, Any]:
    folder = Path(configuration["folder"])
    name = tokenizer_file(folder)
    size = (folder / name).stat().st_size if name else 0
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_CPU, _CALL_CPU_S)
    _limit(resource.RLIMIT_AS, _address_space() + LOAD_BYTES + LOAD_BYTES_PER_BYTE * size)
    file = configuration["chat_template"]
    processor = TextProcessor.load(
        folder,
        None if file is None else Path(file),
        lowercase=configuration["lowercase"],
        max_length=configuration["max_length"],
    )
    gc.collect()
    gc.freeze()
    call_bytes = max(CALL_BYTES, CALL_BYTES_PER_CHARACTER * processor.most_characters)
    _limit(resource.RLIMIT_AS, _address_space() + call_bytes)
    _limit(resource.RLIMIT_NOFILE, _MOST_FILES)
    # From here on all words are answers: a panic of the tokenizer would fill the log.
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    loaded.append(processor)
    return processor.description()


def _call(processor: TextProcessor, message: Mapping[str, Any]) -> Any:
    method = message["method"]
    if method not in METHODS:
        raise FusewireError(f"method: got {method!r}, wanted one of {', '.join(METHODS)}")
    return getattr(processor, method)(message["field"], **message["arguments"])


def _answer(work: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"result": work()}
    except FusewireError as error:
        return {"error": as_values(error)}
    except MemoryError:
        _out_of_memory()


def _out_of_memory() -> NoReturn:
    os._exit(OUT_OF_MEMORY)  # at once: to tidy up takes memory


def _limit(kind: int, most: int) -> None:
    """The soft limit, at most the hard one."""
    hard = resource.getrlimit(kind)[1]
    soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (soft, hard))


def _cpu_s() -> int:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return int(used.ru_utime + used.ru_stime)


def _address_space() -> int:
    pages = Path("/proc/self/statm").read_text().split()[0]
    return int(pages) * resource.getpagesize()
