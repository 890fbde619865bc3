"""The OpenAI endpoint in a process of its own, in front of no server.

    python -m tests.server.openai_endpoint VERSION '{"connections": {"READ_TIMEOUT_S": 1}}'

VERSION is the version folder of its one model, in its repository entry; the JSON has values for
constants of the endpoint's modules. It prints its port when it is ready.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import socket
import sys
from pathlib import Path

from fusewire.serving.config import ServerSettings
from fusewire.serving.endpoint import Endpoint
from fusewire.serving.gateway_protocol import Configuration, ModelSource
from fusewire.serving.model_config import as_json, read
from fusewire.serving.repository import CONFIG


def main(version: Path, constants: dict[str, dict[str, float]]) -> None:
    for module, values in constants.items():
        for name, value in values.items():
            there = importlib.import_module(f"fusewire.serving.openai.{module}")
            assert hasattr(there, name), name
            setattr(there, name, value)
    # Only now, as it takes some constants for its own.
    from fusewire.serving.openai.listener import Listener

    entry = version.parent
    bound = socket.create_server(("127.0.0.1", 0), backlog=2048)
    configuration = Configuration(
        supervisor=os.getpid(),
        listener=bound.fileno(),
        endpoint=Endpoint("127.0.0.1", 1, 1, 1),
        models=("tiny",),
        sources={"tiny": ModelSource(folder=version, config=as_json(read(entry / CONFIG)))},
        settings=ServerSettings(access_log=False),
    )
    port = bound.getsockname()[1]
    asyncio.run(Listener(configuration).serve(lambda: print(port, flush=True)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
