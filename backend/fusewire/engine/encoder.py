"""The encoder engine: requests in, answers out, no request harmed by another.

The way of a call: read and check each request (tasks), tokenise texts, plan micro-batches over the
sequences of all requests (scheduler), pack, encode, head (micro_batches), reply.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fusewire import kernels
from fusewire.engine.micro_batches import MicroBatches
from fusewire.engine.request import Answer, ComputeFailed, Counts, Request, failure
from fusewire.engine.settings import EngineSettings
from fusewire.errors import ConfigurationError, InvalidInput
from fusewire.models import load_model
from fusewire.placement import Placement
from fusewire.tasks.contract import contract
from fusewire.tasks.inputs import InputRules, read_rows
from fusewire.tasks.parameters import check_settings, override
from fusewire.tasks.registry import TASK_TYPES
from fusewire.tasks.rows import IdRow, Query, TextRow
from fusewire.tasks.task import Item
from fusewire.tasks.text import TextEncoder
from fusewire.tasks.tokenizer import Tokenizer, limit_tokenizer_threads

if TYPE_CHECKING:
    from fusewire.models import EncoderModel

__all__ = ["Answer", "ComputeFailed", "Counts", "EncoderEngine", "Request"]

# Fewer than texts have in any language: a group of texts has no more than about a micro-batch.
_CHARACTERS_PER_TOKEN = 4


class EncoderEngine:
    """Answers requests for one task of one model folder. One thread at a time."""

    def __init__(
        self,
        folder: Path | str,
        task: str,
        settings: EngineSettings | None = None,
        model: EncoderModel | None = None,
        device: str = "cpu",
    ) -> None:
        """Loads the folder onto `device` (cpu, cuda, cuda:<index>) and records its forwards where
        the device can (CheckpointError, ConfigurationError), or takes a model loaded for `task`
        from it as it is."""
        contract(task)
        settings = settings or EngineSettings()
        check_settings(settings, task)
        if settings.threads:
            kernels.set_num_threads(settings.threads)
        limit_tokenizer_threads(settings.threads)
        self.task = task
        self.settings = settings
        self.model = model if model is not None else _loaded(folder, task, settings, device)
        self.vocab_size = self.model.vocab_size
        self.last_counts = Counts()
        self._tokenizer = tokenizer = Tokenizer.load(Path(folder))
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
        self._texts = self._text_encoder(tokenizer)

    def answer(
        self, requests: Sequence[Request], computed: Callable[[int], None] | None = None
    ) -> list[Answer]:
        """Answers in the order of `requests`. Never raises for a request. `computed`: called with
        the number of sequences of each micro-batch, when it is done."""
        counts = self.last_counts = Counts()
        hits, misses = self.model.replay_counts
        answers: list[Answer] = [None] * len(requests)
        queries = self._read(requests, answers)
        run = MicroBatches(self.model, self._task, requests, answers, counts, computed)
        tokenized: dict[int, Query] = {}
        for group in self._groups(queries):
            wanted = run.wanted(group)
            group = {index: query for index, query in group.items() if index in wanted}
            self._tokenize(group, answers)
            tokenized |= group
            sequences = [
                (index, Item(query, tokens))
                for index, query in group.items()
                for windows in query.tokens
                for tokens in windows
            ]
            run.compute(sequences, self.settings.max_batch_tokens)
        run.finish()
        counts.graph_hits = self.model.replay_counts[0] - hits
        counts.graph_misses = self.model.replay_counts[1] - misses
        self._reply(tokenized, run, answers)
        return answers

    def prepare(self, request: Request) -> None:
        """Reads and tokenises a request that `answer` then need only compute, beside the thread of
        `answer`; FusewireError. One thread at a time."""
        if request.cancelled():
            return
        query = self._query(request)
        if errors := self._texts_beside.encode([query]):
            raise errors[0]
        self._task.check(query)
        request.query = query

    @cached_property
    def _texts_beside(self) -> TextEncoder:
        return self._text_encoder(self._tokenizer and self._tokenizer.twin())

    def _text_encoder(self, tokenizer: Tokenizer | None) -> TextEncoder:
        return TextEncoder(
            tokenizer,
            self.max_length,
            windows=self._task.reads_windows,
            offsets=self._task.needs_offsets,
            vocab_size=self.vocab_size,
            type_vocab_size=self.model.type_vocab_size,
        )

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
                queries[index] = request.query or self._query(request)
            except Exception as error:
                answers[index] = failure(error)
        return queries

    def _query(self, request: Request) -> Query:
        settings = override(self.settings, request.parameters, self.task, self.max_length)
        rules = self._rules
        if settings.max_length is not None:
            rules = replace(rules, max_length=settings.max_length)
        rows = read_rows(request.inputs, rules)
        for name in {"prompt", "prompt_name"} & request.parameters.keys():
            if isinstance(rows[0], IdRow):
                got, wanted = "it together with input_ids", "it only with texts"
                raise InvalidInput(name, got, wanted, "put the prompt's ids before the others")
        return Query(settings, rows, self._task.prompt(settings))

    def _groups(self, queries: dict[int, Query]) -> Iterator[dict[int, Query]]:
        """The queries in order, cut where their texts come to about a micro-batch: while the device
        computes that, the texts of the next are tokenised."""
        group: dict[int, Query] = {}
        room = budget = self.settings.max_batch_tokens * _CHARACTERS_PER_TOKEN
        for index, query in queries.items():
            group[index] = query
            for row in query.rows:
                if isinstance(row, TextRow):
                    room -= len(row.text) + len(row.pair or "")
            if room <= 0:
                yield group
                group, room = {}, budget
        if group:
            yield group

    def _tokenize(self, queries: dict[int, Query], answers: list[Answer]) -> None:
        """Fills in the tokens; queries that fail leave `queries` with their answer set."""
        began = time.perf_counter()
        order = [index for index, query in queries.items() if not query.tokens]
        try:
            errors = self._texts.encode([queries[index] for index in order])
        except Exception as error:
            errors = dict.fromkeys(range(len(order)), failure(error))
        for place, index in enumerate(order):
            try:
                if place in errors:
                    raise copy(errors[place])
                self._task.check(queries[index])
            except Exception as error:
                answers[index] = failure(error)
                del queries[index]
        self.last_counts.tokenize_seconds += time.perf_counter() - began

    def _reply(self, queries: dict[int, Query], run: MicroBatches, answers: list[Answer]) -> None:
        """Replies to each query all of whose sequences were computed."""
        first = 0
        for index, query in queries.items():
            count = sum(len(windows) for windows in query.tokens)
            results = run.results(first, count)
            first += count
            if answers[index] is not None or results is None:
                continue
            found = iter(results)
            try:
                answers[index] = self._task.reply(
                    query, [[next(found) for _ in windows] for windows in query.tokens]
                )
            except Exception as error:
                answers[index] = failure(error)


def _loaded(folder: Path | str, task: str, settings: EngineSettings, device: str) -> EncoderModel:
    place = Placement(device, settings.dtype)
    try:
        model = load_model(folder, task, place)
        if settings.graphs:
            model.record_forwards(settings.max_batch_tokens)
    except kernels.Error as error:  # no room, or no kernels for this model on this device
        raise ConfigurationError(f"{place.device}: {error}") from None
    return model
