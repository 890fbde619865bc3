"""Loading and unloading models of a running server: over gRPC, where each call has its own thread.

Over HTTP a load holds, until the model is there, one of the threads that send the pieces of streams
(server issue 8958). A few hundred pieces may wait for such a thread, and tritonserver drops what
comes then without a word. The stream lacks that text; where it is the end that is dropped, its
client waits for ever, and the model's process stays though the model be unloaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from fusewire.serving.endpoint import CONTROL_HEADER, Endpoint, EndpointError

_NO_ANSWER = ("StatusCode.UNAVAILABLE", "StatusCode.DEADLINE_EXCEEDED")


class Control:
    """Loads and unloads the models of one server; EndpointError where that fails."""

    def __init__(self, endpoint: Endpoint, key: str) -> None:
        self._address = f"{endpoint.reachable}:{endpoint.grpc_port}"
        self._headers = {f"triton-grpc-protocol-{CONTROL_HEADER}": key}

    def load(self, model: str, config: dict[str, Any] | None, timeout_s: float) -> None:
        """`config`: in place of the repository's. Returns when the model is ready."""
        text = None if config is None else json.dumps(config)
        with self._client() as client:
            client.load_model(model, self._headers, config=text, client_timeout=timeout_s)

    def unload(self, model: str, timeout_s: float) -> None:
        """Returns when the model accepts no more requests; running ones are completed."""
        with self._client() as client:
            client.unload_model(model, self._headers, client_timeout=timeout_s)

    @contextmanager
    def _client(self) -> Iterator[Any]:
        # A client for each call: the server may be another by the next. No proxy, as over HTTP.
        direct = [("grpc.enable_http_proxy", 0)]
        try:
            with triton.InferenceServerClient(self._address, channel_args=direct) as client:
                yield client
        except InferenceServerException as error:
            status = 0 if error.status() in _NO_ANSWER else 400
            raise EndpointError(status, error.message() or "") from None
