"""The encoder engine: requests in, answers out, no request harmed by another.

The way of a call: read and check each request (tasks), tokenise all texts at once, plan
micro-batches over all sequences of all requests (scheduler), pack, encode, head, reply.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from fusewire import kernels
from fusewire.engine.batch import Batch
from fusewire.engine.scheduler import halves, plan
from fusewire.engine.settings import EngineSettings
from fusewire.errors import ConfigurationError, FusewireError
from fusewire.models import load_model
from fusewire.tasks.contract import contract
from fusewire.tasks.inputs import InputRules, read_rows
from fusewire.tasks.parameters import Value, check_settings, override
from fusewire.tasks.registry import TASK_TYPES
from fusewire.tasks.rows import Query
from fusewire.tasks.task import Item
from fusewire.tasks.text import TextEncoder
from fusewire.tasks.tokenizer import Tokenizer, limit_tokenizer_threads

if TYPE_CHECKING:
    from fusewire.models import EncoderModel

_log = logging.getLogger(__name__)


class ComputeFailed(FusewireError):
    """The server's fault while computing an answer: out of memory, or a defect."""


def _never() -> bool:
    return False


@dataclass(eq=False)
class Request:
    """A client's tensors (each with the batch dimension first) and parameters.

    Texts are object arrays of bytes, ids int64. `cancelled` is asked on reading and before each
    micro-batch but the first.
    """

    inputs: dict[str, NDArray[Any]]
    parameters: dict[str, Value] = field(default_factory=dict)
    cancelled: Callable[[], bool] = _never


@dataclass
class Counts:
    """What one call of `answer` did. `padding_tokens` is measured: rows that the model computed
    less the tokens that requests had."""

    sequences: int = 0
    tokens: int = 0
    padding_tokens: int = 0
    micro_batches: int = 0
    tokenize_seconds: float = 0.0
    compute_seconds: float = 0.0


Answer = dict[str, NDArray[Any]] | FusewireError | None


class EncoderEngine:
    """Answers requests for one task of one model folder. One thread at a time."""

    def __init__(
        self,
        folder: Path | str,
        task: str,
        settings: EngineSettings | None = None,
        model: EncoderModel | None = None,
    ) -> None:
        """Loads the folder (CheckpointError, ConfigurationError), or takes a model loaded for
        `task` from it."""
        contract(task)
        settings = settings or EngineSettings()
        check_settings(settings, task)
        if settings.threads:
            kernels.set_num_threads(settings.threads)
        limit_tokenizer_threads(settings.threads)
        self.task = task
        self.settings = settings
        self.model = model if model is not None else load_model(folder, task)
        self.vocab_size = self.model.vocab_size
        self.last_counts = Counts()
        tokenizer = Tokenizer.load(Path(folder))
        self._task = TASK_TYPES[task](self.model, tokenizer, settings)
        self.max_length = self._longest(settings.max_length)
        self._rules = InputRules(
            task,
            self._task.pairs,
            tokenizer is not None,
            self.vocab_size,
            self.model.type_vocab_size,
            self.max_length,
        )
        self._texts = TextEncoder(
            tokenizer,
            self.max_length,
            windows=self._task.reads_windows,
            offsets=self._task.needs_offsets,
            vocab_size=self.vocab_size,
            type_vocab_size=self.model.type_vocab_size,
            prefix=self._task.prefix,
        )

    def answer(self, requests: Sequence[Request]) -> list[Answer]:
        """Answers in the order of `requests`: outputs by name, the request's own error, or None
        for one that was cancelled. Never raises for a request."""
        self.last_counts = Counts()
        answers: list[Answer] = [None] * len(requests)
        queries = self._read(requests, answers)
        self._tokenize(queries, answers)
        sequences = [
            (index, Item(query, tokens))
            for index, query in queries.items()
            for windows in query.tokens
            for tokens in windows
        ]
        results: dict[int, Any] = {}
        lengths = [len(item.tokens) for _, item in sequences]
        for members in plan(lengths, self.settings.max_batch_tokens):
            self._micro_batch(members, lengths, sequences, requests, results, answers)
        self._reply(queries, sequences, results, answers)
        return answers

    def _longest(self, wanted: int | None) -> int:
        if wanted is None:
            named = self._task.text_limit()
            return min(named or self.model.max_length, self.model.max_length)
        if wanted > self.model.max_length:
            raise ConfigurationError(
                f"max_length: got {wanted}, wanted at most {self.model.max_length}, the positions "
                "that the model has; lower or remove it"
            )
        return wanted

    def _read(self, requests: Sequence[Request], answers: list[Answer]) -> dict[int, Query]:
        queries: dict[int, Query] = {}
        for index, request in enumerate(requests):
            try:
                if request.cancelled():
                    continue
                settings = override(self.settings, request.parameters, self.task, self.max_length)
                rules = self._rules
                if settings.max_length is not None:
                    rules = replace(rules, max_length=settings.max_length)
                queries[index] = Query(settings, read_rows(request.inputs, rules))
            except Exception as error:
                answers[index] = _failure(error)
        return queries

    def _tokenize(self, queries: dict[int, Query], answers: list[Answer]) -> None:
        """Fills in the tokens; queries that fail leave `queries` with their answer set."""
        began = time.perf_counter()
        order = list(queries)
        try:
            errors = self._texts.encode([queries[index] for index in order])
        except Exception as error:
            errors = dict.fromkeys(range(len(order)), _failure(error))
        for place, index in enumerate(order):
            try:
                if place in errors:
                    raise errors[place]
                self._task.check(queries[index])
            except Exception as error:
                answers[index] = _failure(error)
                del queries[index]
        self.last_counts.tokenize_seconds += time.perf_counter() - began

    def _micro_batch(
        self,
        members: list[int],
        lengths: list[int],
        sequences: list[tuple[int, Item]],
        requests: Sequence[Request],
        results: dict[int, Any],
        answers: list[Answer],
        retry: bool = True,
    ) -> None:
        """Computes the sequences `members`; out of memory is tried once more in two halves."""
        # Reading has just asked, and on a server each question is a round trip to its process.
        begun = self.last_counts.micro_batches > 0
        cancelled = {
            index
            for index in {sequences[m][0] for m in members}
            if begun and requests[index].cancelled()
        }
        members = [
            member
            for member in members
            if sequences[member][0] not in cancelled and answers[sequences[member][0]] is None
        ]
        if not members:
            return
        try:
            found = self._compute([sequences[member][1] for member in members])
            results.update(zip(members, found, strict=True))
            return
        except Exception as error:
            if not (retry and _out_of_memory(error) and len(members) > 1):
                failure = _failure(error)
                for member in members:
                    answers[sequences[member][0]] = failure
                return
            _log.warning("out of memory on %d sequences, trying again in halves", len(members))
        for half in halves(members, lengths):
            self._micro_batch(half, lengths, sequences, requests, results, answers, retry=False)

    def _compute(self, items: list[Item]) -> list[Any]:
        began = time.perf_counter()
        try:
            batch = Batch.pack([item.tokens.sequence for item in items])
            hidden = self.model.encode(batch)
            real = sum(len(item.tokens) for item in items)
            results = self._task.head(hidden, batch, items)
            counts = self.last_counts
            counts.sequences += len(items)
            counts.tokens += real
            counts.padding_tokens += self.model.computed_tokens - real
            counts.micro_batches += 1
            return results
        finally:
            self.last_counts.compute_seconds += time.perf_counter() - began

    def _reply(
        self,
        queries: dict[int, Query],
        sequences: list[tuple[int, Item]],
        results: dict[int, Any],
        answers: list[Answer],
    ) -> None:
        """Replies to each query all of whose sequences were computed."""
        first = 0
        for index, query in queries.items():
            count = sum(len(windows) for windows in query.tokens)
            members = range(first, first + count)
            first += count
            if answers[index] is not None or not all(member in results for member in members):
                continue
            found = iter([results[member] for member in members])
            try:
                answers[index] = self._task.reply(
                    query, [[next(found) for _ in windows] for windows in query.tokens]
                )
            except Exception as error:
                answers[index] = _failure(error)


def _out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "out of memory" in str(error).lower()


def _failure(error: Exception) -> FusewireError:
    """The answer for an exception: ours as they are; of others the traceback goes to the log and
    only what happened to the client."""
    if isinstance(error, FusewireError):
        return error
    _log.error("computing an answer failed", exc_info=error)
    if _out_of_memory(error):
        return ComputeFailed(
            "memory: got a batch that does not fit, wanted room for it; send fewer or shorter "
            "texts at once, or lower max_batch_tokens"
        )
    return ComputeFailed(
        f"compute: got {type(error).__name__}, wanted an answer; this is a defect of the server, "
        "whose log has the details"
    )
