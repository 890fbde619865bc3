"""A request, its answer, and what was done for it: what the encoder engine takes and gives."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from fusewire.errors import ComputeFailed, FusewireError, OutOfMemory
from fusewire.tasks.parameters import Value
from fusewire.tasks.rows import Query
from fusewire.tasks.task import Item

if TYPE_CHECKING:
    from fusewire.engine.backlog import Reservation
    from fusewire.engine.expectation import Expected

_log = logging.getLogger(__name__)

# What Unavailable says where a request comes too late.
CLOSED = (
    "engine: got a request while it stops, wanted one before; send it to another server, or load "
    "the model again"
)
CANCELLED = "cancelled: got a cancelled request, which is not computed"


@dataclass(eq=False)
class Request:
    """A client's tensors (each with the batch dimension first) and parameters. Texts are object
    arrays of bytes, ids int64."""

    inputs: dict[str, NDArray[Any]]
    parameters: dict[str, Value] = field(default_factory=dict)
    priority: int = 0  # lower numbers first, as in vLLM
    tenant: str = ""  # who shares the engine fairly with others
    probe: bool = False  # whether the server sent it to see whether it is answered

    @property
    def characters(self) -> int:
        """The length of its texts in bytes: what tokenising takes time for."""
        return sum(
            len(text)
            for name, array in self.inputs.items()
            if array.dtype == object and name != "image"
            for text in array.flat
            if isinstance(text, bytes)
        )


Outputs = dict[str, NDArray[Any]]
Answer = Outputs | FusewireError


@dataclass(eq=False)
class Work:
    """A request on its way: what is known of it so far."""

    request: Request
    deadline: float | None = None  # by time.monotonic()
    callback: Callable[[Answer], None] | None = None  # for its answer
    arrived: float = field(default_factory=time.monotonic)
    cancelled: bool = False  # set from any thread
    due: float = inf  # by time.monotonic(), when it should be answered: the order of those waiting
    reserved: Reservation | None = None  # its reservation of the engine's time
    taken_at: float = 0.0  # by time.monotonic()
    expected: Expected | None = None  # before it is tokenised
    lane: object = None  # the one that tokenises it; None: the thread that submits it
    query: Query | None = None  # once read
    items: list[Item] = field(default_factory=list)  # once tokenised: its sequences, in order
    given: int = 0  # items that are computed, or about to be
    results: dict[int, Any] = field(default_factory=dict)  # what the head found, by item
    answer: Answer | None = None
    ended: bool = False  # it was called back

    @property
    def lengths_left(self) -> list[int]:
        """Lengths in tokens of the sequences that were not given to the device yet."""
        return [len(item.tokens) for item in self.items[self.given :]]

    @property
    def predicted_s(self) -> float:
        """Predicted seconds of what was not given to the device yet."""
        return self.reserved.seconds if self.reserved else 0.0

    @property
    def computed(self) -> bool:
        return bool(self.items) and len(self.results) == len(self.items)

    def cancel(self) -> None:
        self.cancelled = True


Member = tuple[Work, int]  # one sequence: whose, and which of its items


@dataclass
class Counts:
    """What was done for some requests.

    `padding_tokens` is measured: rows that the model computed less the tokens that requests had.
    `graph_hits`: micro-batches that replayed a recorded forward; `graph_misses`: those small enough
    for one, whose shape was not recorded yet. `compute_seconds` leaves out what the device did
    while texts were tokenised; `predicted_seconds` is what the cost table predicted for the
    micro-batches. `queue_seconds`: how long each request whose first sequence was given to the
    device had waited for that.
    """

    sequences: int = 0
    tokens: int = 0
    padding_tokens: int = 0
    micro_batches: int = 0
    graph_hits: int = 0
    graph_misses: int = 0
    tokenize_seconds: float = 0.0
    compute_seconds: float = 0.0
    predicted_seconds: float = 0.0
    queue_seconds: list[float] = field(default_factory=list)


def failure(error: Exception) -> FusewireError:
    """The answer for an exception: ours as they are; of others the traceback goes to the log and
    only what happened to the client."""
    if isinstance(error, FusewireError):
        return error
    _log.error("computing an answer failed", exc_info=error)
    if isinstance(error, MemoryError):  # kernels.OutOfMemory is one
        return OutOfMemory(
            "memory: got a batch that does not fit, wanted room for it; send fewer or shorter "
            "texts at once, or lower max_batch_tokens"
        )
    return ComputeFailed(
        f"compute: got {type(error).__name__}, wanted an answer; this is a defect of the server, "
        "whose log has the details"
    )
