"""The encoder engine: requests in, answers out, no request harmed by another.

The way of a request: read and check it, tokenise its texts or decode its images (tasks), plan
micro-batches over the sequences of all requests, pack, encode, head (micro_batches), reply.
`answer` goes this way with a list of requests; `encoder_loop` with those that come at any time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path

import numpy as np

from fusewire import kernels
from fusewire.batch import Batch
from fusewire.batch import Sequence as PackedSequence
from fusewire.engine.costs import CostTable, measure
from fusewire.engine.micro_batches import MicroBatches
from fusewire.engine.progress import Progress
from fusewire.engine.request import Answer, Counts, Request, Work, failure
from fusewire.errors import ConfigurationError, FusewireError
from fusewire.models import EncoderModel, ImageTextModel, load_encoder, read_config, reads_images
from fusewire.models.image_text_model import ImageTextBatch
from fusewire.placement import Placement
from fusewire.settings import EngineSettings, check_max_length
from fusewire.tasks.contract import contract
from fusewire.tasks.inputs import InputRules, TextInputs
from fusewire.tasks.parameters import check_settings, override
from fusewire.tasks.registry import task_type
from fusewire.tasks.rows import Query
from fusewire.tasks.task import Item, Reader
from fusewire.text.tokenizer import Tokenizer
from fusewire.text.tokenizer_library import limit_tokenizer_threads

Model = EncoderModel | ImageTextModel

__all__ = ["Answer", "Counts", "EncoderEngine", "Request"]


class EncoderEngine:
    """Answers requests for one task of one model folder. One thread at a time."""

    def __init__(
        self,
        folder: Path | str,
        task: str,
        settings: EngineSettings | None = None,
        model: Model | None = None,
        device: str = "cpu",
        *,
        ranks: bool = False,
    ) -> None:
        """Loads the folder onto `device` (cpu, cuda, cuda:<index>) and records its forwards where
        the device can (CheckpointError, ConfigurationError), or takes a model loaded for `task`
        from it as it is. `ranks`: an empty second text is one, not none, whatever the number of
        labels."""
        contract(task)
        settings = settings or EngineSettings()
        images = isinstance(model, ImageTextModel) or (
            model is None and reads_images(read_config(folder))
        )
        kind = task_type(task, images=images)
        check_settings(settings, task, images=images)
        if settings.threads:
            kernels.set_num_threads(settings.threads)
        limit_tokenizer_threads(settings.threads)
        self.task = task
        self.settings = settings
        self.model = model if model is not None else _loaded(folder, task, settings, device)
        self.last_counts = Counts()
        self.progress = Progress()
        self._task = kind(self.model, Tokenizer.load(Path(folder)), settings)
        self._task.ranks |= ranks
        self._head = self._task.head()
        self.max_length = self._longest(settings.max_length)
        self._inputs = self._task.inputs(self.max_length)
        self._reader = self._task.reader(self.max_length)
        self.costs = CostTable(max_batch_tokens=self.settings.max_batch_tokens)

    def answer(
        self, requests: Sequence[Request], computed: Callable[[int], None] | None = None
    ) -> list[Answer]:
        """Answers in the order of `requests`. Never raises for a request. `computed`: called with
        the number of sequences of each micro-batch, when it is done."""
        works = [Work(request) for request in requests]
        run = self.micro_batches(computed)
        tokenize_seconds = 0.0
        groups = self._groups(self.read(works))
        for index, group in enumerate(groups):
            tokenize_seconds += self.tokenize(group)
            for following in groups[index + 1 : index + 2]:
                self._reader.start([work.query for work in following if work.query is not None])
            members = [(work, place) for work in group for place in range(len(work.items))]
            run.compute(members, self.settings.max_batch_tokens)
        run.finish()
        self.last_counts = run.take_counts()
        self.last_counts.tokenize_seconds = tokenize_seconds
        return [self.reply(work) for work in works]

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self._task.tokenizer

    def measure_costs(self) -> None:
        """Measures what micro-batches cost here, in about half a second; for a model of images
        those of images of the size that it was trained with."""
        model = self.model
        if isinstance(model, ImageTextModel):
            self._measure_images(model)
            return

        def run(lengths: Sequence[int]) -> None:
            sequences = [
                PackedSequence(np.zeros(length, np.int64), np.zeros(length, np.int32))
                for length in lengths
            ]
            model.encode(Batch.pack(sequences))
            model.place.stream.synchronize()

        limits = self.settings.max_batch_tokens, self.max_length
        self.costs = measure(run, *limits, clock=time.perf_counter)

    def _measure_images(self, model: ImageTextModel) -> None:
        tokens, image = self.image_tokens, np.zeros((3, *model.image_size), np.float32)

        def run(lengths: Sequence[int]) -> None:
            model.encode(ImageTextBatch.pack([image] * len(lengths), sum(lengths)))
            model.place.stream.synchronize()

        most = self.settings.max_batch_tokens
        self.costs = measure(run, most, tokens, clock=time.perf_counter, length=tokens)

    def check(self, request: Request) -> None:
        """Raises the FusewireError that a request is refused with before it is computed."""
        work = Work(request)
        if self.read([work]):
            self.tokenize([work])
        if isinstance(work.answer, FusewireError):
            raise work.answer

    def micro_batches(self, computed: Callable[[int], None] | None = None) -> MicroBatches:
        """What runs the model; `computed` as for `answer`."""
        return MicroBatches(self.model, self._task, self._head, self.progress, computed, self.costs)

    def read(self, works: Sequence[Work]) -> list[Work]:
        """Reads the requests of works that have no query yet. Works that are refused get their
        answer; the others are returned. From any thread."""
        for work in works:
            try:
                work.query = work.query or self._query(work.request)
            except Exception as error:
                work.answer = failure(error)
        return [work for work in works if work.answer is None]

    def tokenize(self, works: list[Work], reader: Reader | None = None) -> float:
        """Fills in the items of works that were read; returns the seconds it took. Works that are
        refused get their answer, and are taken out of `works`. `reader`: one of `new_reader`, where
        another thread may be here."""
        began = time.perf_counter()
        queries = [work.query for work in works if work.query is not None]
        errors: Mapping[int, Exception]
        try:
            errors = (reader or self._reader).encode(queries)
        except Exception as error:
            errors = dict.fromkeys(range(len(works)), failure(error))
        for index, (work, query) in enumerate(zip(works, queries, strict=True)):
            try:
                if index in errors:
                    raise copy(errors[index])
                self._task.check(query)
                work.items = [Item(query, each) for windows in query.tokens for each in windows]
            except Exception as error:
                work.answer = failure(error)
        works[:] = [work for work in works if work.answer is None]
        return time.perf_counter() - began

    def reply(self, work: Work) -> Answer:
        """The answer of a request that was computed, or that failed."""
        if work.answer is None:
            try:
                assert work.query is not None
                found = iter([work.results[place] for place in range(len(work.items))])
                rows = [[next(found) for _ in windows] for windows in work.query.tokens]
                work.answer = self._task.reply(work.query, rows)
            except Exception as error:
                work.answer = failure(error)
        return work.answer

    def new_reader(self) -> Reader:
        """A reader for another thread, which closes it."""
        return self._task.reader(self.max_length, apart=True)

    def close(self) -> None:
        """Ends its own reader's threads, after which it reads no more images."""
        self._reader.close()

    @property
    def reading_threads(self) -> int:
        """Threads that may tokenise or decode by one reader at once."""
        return self._reader.threads

    @property
    def reads_images(self) -> bool:
        return self._task.images

    @property
    def image_tokens(self) -> int:
        """Tokens of an image of the size that the model was trained with; 0 where it reads none."""
        model = self.model
        return model.tokens_of(*model.image_size) if isinstance(model, ImageTextModel) else 0

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) of the images that the model was trained with; (0, 0) where it reads
        none."""
        return self.model.image_size if isinstance(self.model, ImageTextModel) else (0, 0)

    @property
    def input_rules(self) -> InputRules | None:
        """The rules of texts and ids; None where it reads images."""
        return self._inputs.rules if isinstance(self._inputs, TextInputs) else None

    @property
    def reads_windows(self) -> bool:
        """Whether it reads texts that are longer than the model's sequences in windows."""
        return self._task.reads_windows

    def _longest(self, wanted: int | None) -> int:
        if wanted is None:
            named = self._task.text_limit()
            return min(named or self.model.max_length, self.model.max_length)
        check_max_length(wanted, self.model.max_length)
        return wanted

    def _query(self, request: Request) -> Query:
        images = self._task.images
        settings = override(
            self.settings, request.parameters, self.task, self.max_length, images=images
        )
        return self._inputs.read(request.inputs, request.parameters, settings)

    def _groups(self, works: list[Work]) -> list[list[Work]]:
        """The works in order, in groups whose rows come to about a micro-batch: while the device
        computes one group, the rows of the next are tokenised or decoded."""
        groups: list[list[Work]] = []
        room = 0
        for work in works:
            assert work.query is not None
            if room <= 0:
                groups.append([])
                room = self.settings.max_batch_tokens
            groups[-1].append(work)
            room -= work.query.unread_tokens
        return groups


def _loaded(folder: Path | str, task: str, settings: EngineSettings, device: str) -> Model:
    skipped = settings.quantize_skipped
    place = Placement(device, settings.dtype, settings.quantize, skipped)
    try:
        model = load_encoder(folder, task, place)
        place.check_skipped()
        if settings.graphs:
            model.record_forwards(settings.max_batch_tokens)
        else:
            model.tune(settings.max_batch_tokens)
    except kernels.Error as error:  # no room, or no kernels for this model on this device
        raise ConfigurationError(f"{place.device}: {error}") from None
    return model
