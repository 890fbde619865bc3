"""Log lines as text and as JSON: our own, tritonserver's, and those with fields."""

from __future__ import annotations

import io
import json
import logging
import queue
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from fusewire.serving import log_format
from rich.console import Console

STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


class Written(io.StringIO):
    """What the console got, once all of it was written."""

    def lines(self) -> list[str]:
        (handler,) = (
            each
            for each in logging.getLogger().handlers
            if isinstance(each, log_format.BoundedQueueHandler)
        )
        handler.queue.join()  # type: ignore[union-attr]
        return self.getvalue().splitlines()


@pytest.fixture
def written() -> Written:
    return Written()


@pytest.fixture
def configured(written: Written, request: pytest.FixtureRequest) -> Iterator[None]:
    with log_format.written(*request.param, Console(file=written, soft_wrap=True, width=20)):
        yield


@pytest.mark.parametrize("configured", [("text", "warning")], indirect=True)
@pytest.mark.usefixtures("configured")
def test_a_text_line_has_time_level_logger_message_and_fields(written: Written) -> None:
    logger = logging.getLogger("fusewire.some")
    logger.warning("[red]it[/red] :smile: %s", 1, extra={"fields": {"a": 1, "b": "x y"}})
    logger.info("below the level")
    (line,) = written.lines()
    assert re.fullmatch(
        rf'{STAMP} warning fusewire\.some: \[red\]it\[/red\] :smile: 1 a=1 b="x y"', line
    )


@pytest.mark.parametrize("configured", [("json", "info")], indirect=True)
@pytest.mark.usefixtures("configured")
def test_a_json_line_has_the_fields_as_keys(written: Written) -> None:
    logger = logging.getLogger("fusewire.some")
    logger.info("two\nlines", extra={"fields": {"status": 200, "level": "not taken"}})
    try:
        raise KeyError("x")
    except KeyError:
        logger.exception("it failed")
    first, second = map(json.loads, written.lines())
    assert re.fullmatch(STAMP, first.pop("timestamp"))
    assert first == {
        "level": "info",
        "logger": "fusewire.some",
        "message": "two\nlines",
        "status": 200,
    }
    assert second["exception"].endswith("KeyError: 'x'")


@pytest.mark.parametrize("configured", [("json", "info")], indirect=True)
@pytest.mark.usefixtures("configured")
def test_a_line_of_tritonserver_is_taken_apart(written: Written) -> None:
    log_format.triton_line("W", 'W1122 15:21:29.103917 47 model.cc:12] "got \\"x\\""')
    log_format.triton_line("W", "| a table | of that line |")
    log_format.triton_line("W", "")
    first, second = map(json.loads, written.lines())
    assert (first["level"], first["message"], first["source"]) == (
        "warning",
        'got "x"',
        "model.cc:12",
    )
    assert (second["level"], second["message"]) == ("warning", "| a table | of that line |")


@pytest.mark.parametrize("configured", [("text", "error")], indirect=True)
@pytest.mark.usefixtures("configured")
def test_the_watchdog_and_the_access_log_are_written_at_every_level(written: Written) -> None:
    log_format.WATCHDOG.warning("a model was loaded again")
    logging.getLogger("fusewire.access").info("POST")
    logging.getLogger("fusewire.some").warning("below the level")
    assert len(written.lines()) == 2


def test_a_reader_that_stops_blocks_neither_the_logger_nor_the_end() -> None:
    program = """\
import logging, sys, time
from fusewire.serving import log_format
began = time.monotonic()
with log_format.written("text", "info", log_format.LogConsole(stderr=True)):
    for number in range(20_000):
        log_format.SERVE.info("%s", number)
    print(time.monotonic() - began, flush=True)
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert float(process.stdout.readline()) < 60
            assert process.wait(60) == 0  # nothing was read
        finally:
            process.kill()


def test_dropped_lines_are_counted() -> None:
    records: queue.Queue[logging.LogRecord] = queue.Queue(2)
    handler = log_format.BoundedQueueHandler(records)
    for number in range(5):
        handler.handle(logging.makeLogRecord({"msg": str(number)}))
    assert [records.get().msg for _ in range(2)] == ["0", "1"]
    handler.handle(logging.makeLogRecord({"msg": "5"}))
    assert [records.get().msg for _ in range(2)] == [
        "3 log lines dropped, as nobody read them",
        "5",
    ]
