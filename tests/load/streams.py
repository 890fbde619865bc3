"""Streams of generated text: over gRPC by our client, and over HTTP from OpenAI's endpoint."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Protocol

from fusewire_client import Client, ClientError

TIMEOUT_S = 60


class StreamFailed(Exception):
    """The server refused a request, or ended its stream with an error."""


class Streams(Protocol):
    """One connection to a model that generates."""

    request_type: str

    def pieces(self, prompt: str, new_tokens: int) -> Iterator[str]:
        """The text as it comes: greedy, exactly so many tokens. StreamFailed."""

    def close(self) -> None: ...


class GrpcStreams:
    request_type = "gRPC"

    def __init__(self, host: str, model: str | None) -> None:
        # A request that had to be repeated is a failure.
        self._client = Client(host, model=model, retries=0, timeout_s=TIMEOUT_S)

    def pieces(self, prompt: str, new_tokens: int) -> Iterator[str]:
        asked = {"max_new_tokens": new_tokens, "ignore_eos": True, "temperature": 0}
        try:
            yield from self._client.generate(prompt, stream=True, **asked)
        except ClientError as error:
            raise StreamFailed(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        self._client.close()


class OpenAIStreams:
    """Server-sent events of /v1/completions, a connection a stream."""

    request_type = "HTTP"

    def __init__(self, host: str, model: str | None) -> None:
        self._host = host.removeprefix("http://").rstrip("/")
        self._model = model or self._only_model()

    def pieces(self, prompt: str, new_tokens: int) -> Iterator[str]:
        asked = {"model": self._model, "prompt": prompt, "stream": True, "temperature": 0}
        asked |= {"max_tokens": new_tokens, "ignore_eos": True}
        try:
            with self._answer("POST", "/v1/completions", json.dumps(asked)) as answer:
                yield from _texts(answer)
        except (OSError, HTTPException) as error:
            raise StreamFailed(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Nothing: each stream has closed its own connection."""

    @contextlib.contextmanager
    def _answer(self, method: str, path: str, body: str | None = None) -> Iterator[HTTPResponse]:
        with contextlib.closing(HTTPConnection(self._host, timeout=TIMEOUT_S)) as connection:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise StreamFailed(f"status {answer.status}: {answer.read().decode()}")
            yield answer

    def _only_model(self) -> str:
        with self._answer("GET", "/v1/models") as answer:
            found = [each["id"] for each in json.load(answer)["data"]]
        if len(found) != 1:
            raise StreamFailed(f"model: got none, expected one of {found}; use --model")
        return str(found[0])


def _texts(answer: HTTPResponse) -> Iterator[str]:
    for line in answer:
        if not line.startswith(b"data: "):
            continue
        data = line.removeprefix(b"data: ").strip()
        if data == b"[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            raise StreamFailed(str(event["error"]))
        yield from (choice["text"] for choice in event["choices"] if choice["text"])
    raise StreamFailed("the stream ended before [DONE]")
