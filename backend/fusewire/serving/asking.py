"""`fusewire ask`: sends requests through the client package and returns the answers as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fusewire.errors import ConfigurationError, FusewireError
from fusewire.serving.shown_answers import STREAMED, TASKS, Shown, embed, generated

# Python arguments in the client's errors -> their form on the command line.
_FLAGS = {
    "model=…": "--model",
    "protocol='grpc'": "leave out --protocol",
    "protocol='http'": "--protocol http",
    "wanted host:port; choose by protocol= and tls=": "wanted HOST:PORT alone; write it so",
}
# Names are always text, although they may look like numbers.
_NAMES = ("model", "version")


class AskFailed(FusewireError):
    """An error of the client, with its message."""


def ask(
    task: str,
    texts: Sequence[str],
    second: Sequence[str],
    address: str,
    protocol: str,
    model: str | None,
    parameters: dict[str, Any],
    *,
    images: bool = False,
) -> Shown:
    """Sends one request of a task and returns the answer to show.

    `texts`: for rerank the query, then the documents; for label, and for embed with `images`, paths
    of files. `second`: the second texts of pairs, the context of a question, or the labels to
    choose from.
    """
    if images and task not in ("embed", "label"):
        raise ConfigurationError(f"images: got them for {task}, wanted embed or label; drop them")
    with _connected(task, address, protocol, model) as client:
        if images and task == "embed":
            return embed(client, list(texts), list(second), parameters, given="images")
        return TASKS[task](client, list(texts), list(second), parameters)


def streams(task: str, parameters: dict[str, Any]) -> bool:
    """Whether the answer to each text comes as `pieces`. It must be a single text, so that the
    pieces concatenate to it."""
    several = parameters.get("n", parameters.get("num_return_sequences"))
    return task in STREAMED and several in (None, 1)


def pieces(
    task: str,
    texts: Sequence[str],
    address: str,
    protocol: str,
    model: str | None,
    parameters: dict[str, Any],
) -> Iterator[str]:
    """Yields the text generated after each prompt, or the answer to each message, in pieces as they
    arrive, each text followed by a newline. `streams` says whether it may be called."""
    with _connected(task, address, protocol, model) as client:
        for text in texts:
            yield from generated(client, task, text, stream=True, **parameters)
            yield "\n"


@contextmanager
def _connected(task: str, address: str, protocol: str, model: str | None) -> Iterator[Any]:
    """Yields a client of the server. Its errors are raised as AskFailed."""
    if task not in TASKS:
        raise ConfigurationError(
            f"task: got {task!r}, wanted one of {', '.join(TASKS)}; choose one of these"
        )
    try:
        import fusewire_client
    except ImportError:
        raise ConfigurationError(
            "fusewire_client: not installed, wanted for `ask`; pip install ./client"
        ) from None
    try:
        with fusewire_client.Client(address, protocol=protocol, model=model, retries=0) as client:  # type: ignore[arg-type]
            try:
                yield client
            except fusewire_client.Unavailable as error:
                if client.ready():
                    raise
                reason = str(error).rpartition(": ")[2]
                raise AskFailed(
                    f"address: got no server that is ready at {address} ({reason}), wanted one; "
                    "start it with `fusewire serve`, or name another with --address"
                ) from None
    except fusewire_client.ClientError as error:
        message = str(error)
        for theirs, ours in _FLAGS.items():
            message = message.replace(theirs, ours)
        raise AskFailed(message) from None


def read_parameters(pairs: Sequence[str]) -> dict[str, Any]:
    """Returns request parameters from `key=value`: JSON values are parsed, anything else is
    text."""
    parameters: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigurationError(
                f"parameter: got {pair!r}, wanted KEY=VALUE; for example truncate=true"
            )
        if key in ("details", "stream"):
            raise ConfigurationError(
                f"parameter: got {key}, wanted one of the model's, as `ask` streams by itself, and "
                "shows all that came with --json; leave it out"
            )
        try:
            parameters[key] = value if key in _NAMES else json.loads(value)
        except ValueError:
            parameters[key] = value
    return parameters
