"""The supervisor's calls to its running server: is it alive, which models are served, load a model.

Models are loaded over gRPC, where each call has its own thread. A load over HTTP blocks one of the
threads that send the pieces of streams until the model is ready (server issue 8958). A few hundred
pieces may wait for such a thread; tritonserver silently drops further ones. The stream then lacks
their text. If its end is dropped, its client waits for ever, and the model's process stays even
after the model is unloaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from fusewire.serving.endpoint import CONTROL_HEADER, Endpoint, EndpointError

_NO_ANSWER = ("StatusCode.UNAVAILABLE", "StatusCode.DEADLINE_EXCEEDED")


class Control:
    """The restricted calls of one server, and those that need no key. Raises EndpointError where a
    call fails."""

    def __init__(self, endpoint: Endpoint, key: str, load_timeout_s: float) -> None:
        self.endpoint = endpoint
        self._key = key
        self._load_timeout_s = load_timeout_s
        self._address = f"{endpoint.reachable}:{endpoint.grpc_port}"
        self._headers = {f"triton-grpc-protocol-{CONTROL_HEADER}": key}

    def live(self) -> bool:
        """Whether the server answers within two seconds, on a new connection."""
        with suppress(EndpointError):
            self.endpoint.call("health/live", timeout_s=2)
            return True
        return False

    def index(self, timeout_s: float = 10.0) -> list[dict[str, Any]]:
        """Returns the server's index of models and their states."""
        rows = self.endpoint.call(
            "repository/index", {}, timeout_s=timeout_s, control_key=self._key
        )
        return rows if isinstance(rows, list) else []

    def load(self, model: str, config: dict[str, Any] | None = None) -> None:
        """Loads a model, or reloads a changed one. Returns when it is ready. `config`: replaces
        that of the repository."""
        text = None if config is None else json.dumps(config)
        with self._client() as client:
            client.load_model(
                model, self._headers, config=text, client_timeout=self._load_timeout_s
            )

    def unload(self, model: str) -> None:
        """Unloads a model. Returns when it accepts no more requests; running ones are completed."""
        with self._client() as client:
            client.unload_model(model, self._headers, client_timeout=self._load_timeout_s)

    @contextmanager
    def _client(self) -> Iterator[Any]:
        # A new client for each call, as the server may be restarted in between. No proxy, as over
        # HTTP.
        direct = [("grpc.enable_http_proxy", 0)]
        try:
            with triton.InferenceServerClient(self._address, channel_args=direct) as client:
                yield client
        except InferenceServerException as error:
            status = 0 if error.status() in _NO_ANSWER else 400
            raise EndpointError(status, error.message() or "") from None
