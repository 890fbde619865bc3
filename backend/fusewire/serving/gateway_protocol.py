"""The messages between the supervisor and the process of the OpenAI endpoint: JSON objects, one per
line.

To the process, on its stdin: a Configuration, then the messages `open`, `lost` and `close`. From
the process, on the pipe that is its stdout at the start: the events `alive`, `left_out` and
`loaded` of a model, `ready` and `error`.
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
# Time after the limit for requests in flight, in which their errors reach clients.
REFUSAL_S = 2


class ModelSource(BaseModel):
    """The version folder that a model is loaded from, and its configuration in Triton's JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: Path
    config: dict[str, Any]


class Configuration(BaseModel):
    """`supervisor`: its process id. `listener`: the file descriptor of the bound socket.
    `endpoint`: that of Triton. `models`: all models of the server. `sources`: those of the models
    with a version folder, by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    supervisor: int
    listener: int
    endpoint: Endpoint
    models: tuple[str, ...]
    sources: dict[str, ModelSource]
    settings: ServerSettings

    def line(self) -> bytes:
        """Returns the configuration as one line, without the control key, which the endpoint does
        not use."""
        hidden = {"settings": set(secrets(ServerSettings))}
        return self.model_dump_json(exclude=hidden).encode() + b"\n"


def line(event: str, **fields: Any) -> bytes:
    """Returns a message or event as one line."""
    return json.dumps({"event": event, **fields}).encode() + b"\n"
