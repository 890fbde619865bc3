"""What a task is: how it reads a request, what it takes from the model, how it replies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fusewire.engine.batch import Batch
from fusewire.engine.settings import EngineSettings
from fusewire.tasks.inputs import Pairs
from fusewire.tasks.rows import Query, Tokens
from fusewire.tasks.tokenizer import Tokenizer

if TYPE_CHECKING:
    from fusewire.kernels import Tensor
    from fusewire.models import EncoderModel

Reply = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Item:
    """One sequence of a micro-batch, and the request it belongs to."""

    query: Query
    tokens: Tokens


class Task(ABC):
    """One task of one loaded model. Stateless between calls; a new task is a subclass, its tensors
    in contract.py, its parameters in parameters.py and a row in registry.py."""

    name: ClassVar[str]
    pairs: ClassVar[Pairs] = "refused"
    needs_offsets: ClassVar[bool] = False  # maps tokens back to characters
    reads_windows: ClassVar[bool] = False  # reads a long second text in windows

    def __init__(
        self, model: EncoderModel, tokenizer: Tokenizer | None, settings: EngineSettings
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer

    def text_limit(self) -> int | None:
        """The longest sequence that the folder's files name, None where they do not."""
        return self.tokenizer.max_length if self.tokenizer else None

    def prompt(self, settings: EngineSettings) -> str:
        """What stands before every text; InvalidInput."""
        return ""

    def check(self, query: Query) -> None:  # noqa: B027 (nothing to refuse by default)
        """Refuses (InvalidInput) what only shows after tokenising."""

    @abstractmethod
    def head(self, hidden: Tensor, batch: Batch, items: Sequence[Item]) -> list[Any]:
        """What `reply` needs of each sequence, in order; arrays of its own, as `hidden` is reused.

        `hidden`: last hidden states [tokens, hidden] of `batch`, whose sequences are `items`.
        """

    @abstractmethod
    def reply(self, query: Query, results: list[list[Any]]) -> Reply:
        """The request's outputs, from `results[row][window]`; rows lead each output."""


def strings(values: Sequence[str]) -> NDArray[Any]:
    """A STRING output [n, 1] of UTF-8 bytes."""
    array = np.empty((len(values), 1), object)
    array[:, 0] = [value.encode() for value in values]
    return array
