"""Log lines of `fusewire serve`: as text, or as one JSON object a line.

A record may carry `extra={"fields": {…}}`, values for machines that follow its message.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import time
from collections.abc import Iterator
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
# As in "W1122 15:21:29.103917 4711 model.cc:12] words"; lines that follow it have no beginning.
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


class ConsoleHandler(logging.Handler):
    """Writes above whatever status a console shows."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._console.print(self.format(record), markup=False, emoji=False)
        except Exception:
            self.handleError(record)


@contextlib.contextmanager
def written(log_format: LogFormat, level: LogLevel, console: Console) -> Iterator[None]:
    """Writes the log of this process to the console, which must not wrap lines. Reports of `serve`
    and its watchdog and the access log pass at every level."""
    handler = ConsoleHandler(console)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
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


def triton_line(letter: str, line: str) -> None:
    """Logs a line of tritonserver's; `letter`: the level of the line it belongs to."""
    begins = _TRITON_LINE.match(line)
    fields = {"source": begins[2]} if begins else {}
    message = begins[3] if begins else line
    if message.startswith('"'):  # newer releases quote it
        with contextlib.suppress(ValueError):
            message = str(json.loads(message))
    if not message:
        return  # around its tables
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
