"""Ways to ask a model that generates: over HTTP, and over gRPC as a stream."""

from __future__ import annotations

import http.client
import json
import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from fusewire.serving.supervisor.server import Server
from tritonclient.utils import InferenceServerException

_WITHIN_S = 120


class Stream:
    """One request on a gRPC stream of its own, under way since it was made."""

    def __init__(
        self, server: Server, model: str, prompt: str, outputs: tuple[str, ...] = (), **given: Any
    ) -> None:
        """`given`: parameters of generation; `outputs`: what to return beside the text."""
        at = server.endpoint
        self._client = triton.InferenceServerClient(f"{at.reachable}:{at.grpc_port}")
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._client.start_stream(lambda result, error: self._events.put(error or result))
        inputs = [
            _input("text_input", prompt),
            _input("stream", True),
            _input("sampling_parameters", json.dumps(given)),
            *(_input(f"return_{name}", True) for name in outputs),
        ]
        self._client.async_stream_infer(model, inputs, enable_empty_final_response=True)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.cancel()
        self._client.close()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The responses up to the final one; raises the error that ends them."""
        while True:
            event = self._events.get(timeout=_WITHIN_S)
            if isinstance(event, InferenceServerException):
                raise event
            response = event.get_response()
            if response.outputs:
                yield {each.name: event.as_numpy(each.name) for each in response.outputs}
            if response.parameters["triton_final_response"].bool_param:
                return

    def text(self) -> str:
        """All that is still to come."""
        return "".join(each["text_output"][0].decode() for each in self)

    def cancel(self) -> None:
        self._client.stop_stream(cancel_requests=True)


def generate(server: Server, model: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """(status, answer) of `generate` over HTTP."""
    connection, response = _post(server, f"{model}/generate", body)
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


def generate_stream(server: Server, model: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of `generate_stream` over HTTP; leaving early closes the connection."""
    return events(server, model, {"stream": True, **body})


def events(server: Server, model: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """As `generate_stream`, of a body as it is."""
    connection, response = _post(server, f"{model}/generate_stream", body)
    try:
        for line in response:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])
    finally:
        response.close()
        connection.close()


def asked(prompt: str, **given: Any) -> dict[str, Any]:
    """The body of a request over HTTP."""
    return {"text_input": prompt, "sampling_parameters": json.dumps(given)}


def _post(
    server: Server, path: str, body: dict[str, Any]
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    at = server.endpoint
    connection = http.client.HTTPConnection(at.reachable, at.http_port, timeout=_WITHIN_S)
    connection.request("POST", f"/v2/models/{path}", json.dumps(body))
    return connection, connection.getresponse()


def _input(name: str, value: str | bool) -> triton.InferInput:
    text = isinstance(value, str)
    tensor = triton.InferInput(name, [1], "BYTES" if text else "BOOL")
    array = np.array([value.encode()], object) if text else np.array([value], bool)  # type: ignore[union-attr]
    tensor.set_data_from_numpy(array)
    return tensor
