"""The interface of a task: how it reads a request, which head of the model it needs, how it
replies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fusewire.batch import Batch
from fusewire.settings import EngineSettings
from fusewire.tasks.inputs import InputRules, Pairs, TextInputs
from fusewire.tasks.rows import Query
from fusewire.tasks.text_encoder import TextEncoder
from fusewire.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from fusewire.models.task_heads import TaskHead

Reply = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Item:
    """One sequence of a micro-batch, and the request that it belongs to."""

    query: Query
    tokens: Any  # as in Query.tokens


class Inputs(Protocol):
    """Checks a request's tensors and splits them into rows."""

    def read(
        self,
        inputs: Mapping[str, NDArray[Any]],
        given: Iterable[str],
        settings: EngineSettings,
    ) -> Query:
        """Returns the query of a request. `given`: the names of the parameters in the request,
        whose values `settings` include. Raises InvalidInput. Thread-safe."""


class Reader(Protocol):
    """Converts rows to the model's sequences."""

    threads: int  # maximum number of threads in `encode` at once

    def start(self, queries: Iterable[Query]) -> None:
        """Starts to read these queries in threads, where the reader has any; `encode` then waits
        for them."""

    def encode(self, queries: Sequence[Query]) -> Mapping[int, Exception]:
        """Sets `tokens` of each query. Returns the errors by the query's index."""

    def close(self) -> None:
        """Ends its threads and processes, if it has any."""


class Task(ABC):
    """One task of one loaded model. Stateless between calls, except for caches.

    A new task is a subclass that names a head of models/task_heads.py, its tensors in contract.py,
    its parameters in parameters.py and a row in registry.py. A new kind of input is a type of rows
    in rows.py, which a task reads from tensors (`inputs`), converts to the model's sequences
    (`reader`) and packs (`pack`): inputs.py and text_encoder.py for texts, image_inputs.py and
    image_reader.py for images.
    """

    name: ClassVar[str]
    images: ClassVar[bool] = False  # for folders of images
    pairs: ClassVar[Pairs] = "refused"
    ranks: bool = False  # scores documents, which may be empty
    needs_offsets: ClassVar[bool] = False  # maps tokens back to characters
    reads_windows: ClassVar[bool] = False  # reads a long second text in windows

    def __init__(self, model: Any, tokenizer: Tokenizer | None, settings: EngineSettings) -> None:
        """`model`: an EncoderModel, or an ImageTextModel for a task of images. Raises
        CheckpointError."""
        if self.needs_offsets and tokenizer is not None:
            tokenizer.require_offsets(self.name)
        self.model = model
        self.tokenizer = tokenizer

    def text_limit(self) -> int | None:
        """Returns the longest sequence according to the folder's files, or None where they have no
        limit."""
        return self.tokenizer.max_length if self.tokenizer else None

    def prompt(self, settings: EngineSettings) -> str:
        """Returns the prefix of every text. Raises InvalidInput."""
        return ""

    def inputs(self, max_length: int) -> Inputs:
        """Returns what makes a Query from a request's tensors. `max_length`: limit of the
        deployment."""
        has_tokenizer = self.tokenizer is not None
        rules = InputRules(self.name, self.pairs, has_tokenizer, max_length, self.ranks)
        return TextInputs(rules, self.prompt)

    def reader(self, max_length: int, *, apart: bool = False) -> Reader:
        """Returns what fills in `Query.tokens`. `apart`: make one for another thread, or for images
        one with its own processes."""
        tokenizer = self.tokenizer
        return TextEncoder(
            tokenizer.twin() if tokenizer and apart else tokenizer,
            max_length,
            windows=self.reads_windows,
            offsets=self.needs_offsets,
            vocab_size=self.model.vocab_size,
            type_vocab_size=self.model.type_vocab_size,
        )

    def pack(self, items: Sequence[Item]) -> Any:
        """Packs the items of a micro-batch for the model and the head. The result has `tokens`."""
        return Batch.pack([item.tokens.sequence for item in items])

    def check(self, query: Query) -> None:  # noqa: B027 (nothing to refuse by default)
        """Raises InvalidInput for errors that only show after tokenisation."""

    @abstractmethod
    def head(self) -> TaskHead:
        """Returns the function from hidden states to what `reply` needs for each sequence. Called
        once."""

    def head_options(self, settings: EngineSettings) -> Any:
        """Returns the argument of the head for the sequences of a request with these settings."""
        return None

    @abstractmethod
    def reply(self, query: Query, results: list[list[Any]]) -> Reply:
        """Returns the request's outputs from the head's `results[row][window]`. Rows are the first
        dimension of each output."""


def strings(values: Sequence[str]) -> NDArray[Any]:
    """Returns a STRING output [n, 1] of UTF-8 bytes."""
    array = np.empty((len(values), 1), object)
    array[:, 0] = [value.encode() for value in values]
    return array
