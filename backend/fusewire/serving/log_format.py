"""Log lines of `fusewire serve`: as text, or as one JSON object per line.

A record may have `extra={"fields": {…}}`, values for machines that follow its message.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import re
import sys
import time
from collections.abc import Iterator
from logging.handlers import QueueHandler, QueueListener
from typing import Any

from rich.console import Console

from fusewire.serving.server_settings import LogFormat, LogLevel

SERVE = logging.getLogger("fusewire.serve")
WATCHDOG = logging.getLogger("fusewire.watchdog")
TRITONSERVER = logging.getLogger("fusewire.tritonserver")
_LEVELS = {
    "error": logging.ERROR,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "verbose": logging.DEBUG,
}
_MOST_WAITING = 10_000  # records, while the log is not read
_FINISH_S = 1.0
# Matches "W1122 15:21:29.103917 4711 model.cc:12] words". Further lines of an entry have no prefix.
_TRITON_LINE = re.compile(r"^([IWEF])\d{4} [\d:.]+ \d+ (\S+:\d+)\] ?(.*)$")
_OF_LETTER = {
    "I": logging.INFO,
    "W": logging.WARNING,
    "E": logging.ERROR,
    "F": logging.CRITICAL,
}


class TextFormatter(logging.Formatter):
    """`2026-11-22T15:21:29.103Z warning fusewire.watchdog: words key=value …`, in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={_shown(value)}" for key, value in _fields(record).items())
        start = f"{_stamp(record)} {record.levelname.lower()} {record.name}"
        return f"{start}: {record.getMessage()}{fields}{_trace(self, record)}"


class JsonFormatter(logging.Formatter):
    """`{"timestamp": …, "level": …, "logger": …, "message": …}` and the record's fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "timestamp": _stamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for key, value in _fields(record).items():
            line.setdefault(key, value)
        if trace := _trace(self, record):
            line["exception"] = trace.strip()
        return json.dumps(line, ensure_ascii=False, default=str)


class LogConsole(Console):
    """Writes each line whole and unchanged, and nothing after a broken pipe, for which rich would
    end the writing thread."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, soft_wrap=True)

    def on_broken_pipe(self) -> None:
        self.quiet = True


class ConsoleHandler(logging.Handler):
    """Writes above the status that a console shows."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def createLock(self) -> None:
        """Creates no lock: a single thread writes, and logging would wait for the lock when the
        program ends."""
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._console.print(self.format(record), markup=False, emoji=False)
        except Exception:
            self.handleError(record)


class BoundedQueueHandler(QueueHandler):
    """Never waits for the reader of the log: drops and counts the records for which the queue is
    full."""

    def __init__(self, records: queue.Queue[logging.LogRecord]) -> None:
        super().__init__(records)
        self._records = records
        self._dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # unchanged, since it stays in this process

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            if self._dropped:
                words = f"{self._dropped} log lines dropped, as nobody read them"
                attributes = {"name": SERVE.name, "levelno": logging.WARNING, "msg": words}
                attributes["levelname"] = "WARNING"
                self._records.put_nowait(logging.makeLogRecord(attributes))
                self._dropped = 0
            self._records.put_nowait(record)
        except queue.Full:
            self._dropped += 1


@contextlib.contextmanager
def written(log_format: LogFormat, level: LogLevel, console: Console) -> Iterator[None]:
    """Writes the log of this process to the console, which must not wrap lines, from a separate
    thread. Reports of `serve`, its watchdog and the access log are written at every level."""
    shown = ConsoleHandler(console)
    shown.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    records: queue.Queue[logging.LogRecord] = queue.Queue(_MOST_WAITING)
    handler = BoundedQueueHandler(records)
    writer = QueueListener(records, shown)
    writer.start()
    levels = {logging.getLogger("fusewire"): _LEVELS[level]}
    levels |= dict.fromkeys((SERVE, WATCHDOG, logging.getLogger("fusewire.access")), logging.INFO)
    before = {logger: logger.level for logger in levels}
    logging.getLogger().addHandler(handler)
    try:
        for logger, lowest in levels.items():
            logger.setLevel(lowest)
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        for logger, lowest in before.items():
            logger.setLevel(lowest)
        _finish(records, writer)


def _finish(records: queue.Queue[logging.LogRecord], writer: QueueListener) -> None:
    """Writes the remaining records, if they are read in time."""
    until = time.monotonic() + _FINISH_S
    while records.unfinished_tasks and time.monotonic() < until:
        time.sleep(0.01)
    if not records.unfinished_tasks:
        writer.stop()
    else:  # at exit the interpreter would flush stderr, and wait for the thread
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def triton_line(letter: str, line: str) -> None:
    """Logs a line of tritonserver. `letter`: the level of the entry that the line belongs to."""
    begins = _TRITON_LINE.match(line)
    fields = {"source": begins[2]} if begins else {}
    message = begins[3] if begins else line
    if message.startswith('"'):  # newer releases quote it
        with contextlib.suppress(ValueError):
            message = str(json.loads(message))
    if not message:
        return  # empty lines around its tables
    TRITONSERVER.log(_OF_LETTER.get(letter, logging.INFO), "%s", message, extra={"fields": fields})


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}


def _shown(value: object) -> str:
    text = str(value)
    return text if text and text.isprintable() and not set(' "=') & set(text) else json.dumps(text)


def _stamp(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return "\n" + formatter.formatException(record.exc_info) if record.exc_info else ""
