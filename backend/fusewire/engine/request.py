"""A request, its answer, and what a call did: what the engine takes and gives."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from fusewire.errors import FusewireError
from fusewire.tasks.parameters import Value
from fusewire.tasks.rows import Query

_log = logging.getLogger(__name__)

# What Unavailable says where a request comes too late.
CLOSED = "server: got a request while it stops, wanted one before; send it to another server"


class ComputeFailed(FusewireError):
    """The server's fault while computing an answer: out of memory, or a defect."""


def _never() -> bool:
    return False


@dataclass(eq=False)
class Request:
    """A client's tensors (each with the batch dimension first) and parameters.

    Texts are object arrays of bytes, ids int64. `cancelled` is asked on reading and before each
    micro-batch but the first. `query`: where it was read and tokenised before.
    """

    inputs: dict[str, NDArray[Any]]
    parameters: dict[str, Value] = field(default_factory=dict)
    cancelled: Callable[[], bool] = _never
    query: Query | None = None

    @property
    def characters(self) -> int:
        """Of its texts: what tokenising takes time for."""
        return sum(
            len(text)
            for array in self.inputs.values()
            if array.dtype == object
            for text in array.flat
            if isinstance(text, bytes)
        )


# Outputs by name, the request's own error, or None for one that was cancelled.
Answer = dict[str, NDArray[Any]] | FusewireError | None


@dataclass
class Counts:
    """What one call of `answer` did.

    `padding_tokens` is measured: rows that the model computed less the tokens that requests had.
    `graph_hits`: micro-batches that replayed a recorded forward; `graph_misses`: those small enough
    for one, whose shape was not recorded yet. `compute_seconds` leaves out what the device did
    while texts were tokenised.
    """

    sequences: int = 0
    tokens: int = 0
    padding_tokens: int = 0
    micro_batches: int = 0
    graph_hits: int = 0
    graph_misses: int = 0
    tokenize_seconds: float = 0.0
    compute_seconds: float = 0.0


def out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "out of memory" in str(error).lower()


def failure(error: Exception) -> FusewireError:
    """The answer for an exception: ours as they are; of others the traceback goes to the log and
    only what happened to the client."""
    if isinstance(error, FusewireError):
        return error
    _log.error("computing an answer failed", exc_info=error)
    if out_of_memory(error):
        return ComputeFailed(
            "memory: got a batch that does not fit, wanted room for it; send fewer or shorter "
            "texts at once, or lower max_batch_tokens"
        )
    return ComputeFailed(
        f"compute: got {type(error).__name__}, wanted an answer; this is a defect of the server, "
        "whose log has the details"
    )
