"""What the supervisor and the process of the OpenAI endpoint send each other: JSON objects, a line
each.

To the process, on its stdin: a Configuration, then the messages `open`, `lost` and `close`. From
it, on the pipe that is its stdout at the start: the events `alive`, `left_out` and `loaded` of a
model, `ready` and `error`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from fusewire.serving.config import ServerSettings
from fusewire.serving.endpoint import Endpoint
from fusewire.serving.setting import secrets

ALIVE_EVERY_S = 1.0
# After the time for requests in flight, for their errors to reach clients that read.
REFUSAL_S = 2


class ModelSource(BaseModel):
    """What a model is loaded from: its version folder, and its configuration in Triton's JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: Path
    config: dict[str, Any]


class Configuration(BaseModel):
    """`supervisor`: its process id. `listener`: the file descriptor of the socket, which is bound.
    `endpoint`: Triton's. `models`: all of the server's. `sources`: of those with a version folder,
    by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    supervisor: int
    listener: int
    endpoint: Endpoint
    models: tuple[str, ...]
    sources: dict[str, ModelSource]
    settings: ServerSettings

    def line(self) -> bytes:
        """The configuration in one line, without the control key, which the endpoint has no use
        for."""
        hidden = {"settings": set(secrets(ServerSettings))}
        return self.model_dump_json(exclude=hidden).encode() + b"\n"


def line(event: str, **fields: Any) -> bytes:
    """A message or event."""
    return json.dumps({"event": event, **fields}).encode() + b"\n"
