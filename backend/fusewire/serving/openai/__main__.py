"""The process of the OpenAI endpoint, which the supervisor starts (serving/supervisor/gateway.py).

This module itself imports no package that may be missing, so that it can report the missing one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING

from fusewire.errors import ConfigurationError, FusewireError
from fusewire.parent_death import die_with
from fusewire.passed_errors import as_values
from fusewire.serving import log_format
from fusewire.serving.backoff import Backoff
from fusewire.serving.gateway_protocol import ALIVE_EVERY_S, Configuration, line

if TYPE_CHECKING:
    from fusewire.serving.openai.listener import Listener

_LONGEST_LINE_BYTES = 1 << 26


def main() -> None:
    """Runs until the message `close` has been carried out, or until stdin ends."""
    events = Events()
    code = asyncio.run(_run(events))
    os._exit(code)  # threads that process a malicious text may never end


class Events:
    """The pipe to the supervisor, which is stdout at the start. Prints are redirected to stderr."""

    def __init__(self) -> None:
        self._pipe = os.dup(sys.stdout.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        os.set_blocking(self._pipe, False)

    def send(self, event: bytes) -> None:
        """Sends without waiting. Events are dropped while the supervisor is stopped and the pipe is
        full."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._pipe, event)


async def _run(events: Events) -> int:
    """Returns the exit code."""
    messages = asyncio.StreamReader(limit=_LONGEST_LINE_BYTES)
    protocol = asyncio.StreamReaderProtocol(messages)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    configuration = Configuration.model_validate_json(await messages.readline())
    die_with(configuration.supervisor)
    settings = configuration.settings
    console = log_format.LogConsole(stderr=True)
    with log_format.written(settings.log_format, settings.log_level, console):
        try:
            listener = _listener(configuration)
        except (FusewireError, OSError) as error:
            events.send(line("error", error=as_values(error)))
            return 2
        for name, fault in listener.models.left_out.items():
            events.send(line("left_out", model=name, error=as_values(fault)))
        opened = asyncio.Event()
        works = [
            asyncio.create_task(_live(events)),
            asyncio.create_task(_obey(messages, listener, opened)),
            asyncio.create_task(_serve(listener, opened, events)),
            asyncio.create_task(_load_left_out(listener, events)),
        ]
        done, _ = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
        for work in done:
            work.result()
        return 0


def _listener(configuration: Configuration) -> Listener:
    try:
        from fusewire.serving.openai.listener import Listener

        return Listener(configuration)
    except ImportError as error:
        raise ConfigurationError(
            f"{error.name}: not installed, wanted for --openai-port; pip install "
            "'fusewire[openai]' ./client"
        ) from None


async def _live(events: Events) -> None:
    """Sends the event `alive` regularly, which shows that the event loop runs."""
    while True:
        events.send(line("alive"))
        await asyncio.sleep(ALIVE_EVERY_S)


async def _obey(messages: asyncio.StreamReader, listener: Listener, opened: asyncio.Event) -> None:
    """Carries out messages, until `close` comes before `open`, or the supervisor ends."""
    while read := await messages.readline():
        message = json.loads(read)
        if message["event"] == "open":
            opened.set()
        elif message["event"] == "lost":
            listener.lost(message["model"], message["began_before"])
        elif message["event"] == "close":
            if not opened.is_set():
                return
            listener.close()


async def _load_left_out(listener: Listener, events: Events) -> None:
    """Retries to load models that could not be loaded, 1, 2, 4 … 60 s apart."""
    backoff = Backoff()
    while True:
        backoff.begin()
        await asyncio.sleep(backoff.wait_s())
        for name in await asyncio.to_thread(listener.models.load_left_out):
            events.send(line("loaded", model=name))


async def _serve(listener: Listener, opened: asyncio.Event, events: Events) -> None:
    await opened.wait()
    await listener.serve(lambda: events.send(line("ready")))


if __name__ == "__main__":
    main()
