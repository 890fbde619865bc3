"""Converts rows of requests to the inputs of an image model: encoded images, which are decoded and
preprocessed while the device computes, pixel values, and texts that are compared with images."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fusewire.batch import Sequence as TokenSequence
from fusewire.errors import InvalidInput
from fusewire.models import ImageTextModel
from fusewire.tasks.inputs import row_of
from fusewire.tasks.rows import ImageRow, PixelRow, Pixels, Query, TextRow, Tokens
from fusewire.text.tower_tokenizer import TowerTokenizer

if TYPE_CHECKING:
    from fusewire.images import ImageWorkers


@dataclass(eq=False)
class ImageQuery(Query):
    """A request to an image model. `text_field`: the input that its texts come from. `images`: for
    each encoded image that is being read, a function that waits for it."""

    text_field: str = "text_input"
    images: list[Callable[[], list[NDArray[np.float32]]]] | None = None


class ImageReader:
    """Fills in `Query.tokens`. May be called from as many threads as decode images."""

    def __init__(
        self, model: ImageTextModel, workers: ImageWorkers, tokenizer: TowerTokenizer | None
    ) -> None:
        """`tokenizer`: None for a model that takes no texts."""
        self._model = model
        self._workers = workers
        self._tokenizer = tokenizer
        self._tokenizing = threading.Lock()  # truncation is state of the tokenizer
        self.threads = workers.threads

    def start(self, queries: Iterable[Query]) -> None:
        """Submits the encoded images of these queries to the threads."""
        for query in queries:
            assert isinstance(query, ImageQuery)
            if query.images is None:
                rows = [row for row in query.rows if isinstance(row, ImageRow)]
                query.images = [self._workers.start([row.data], [row.pixels]) for row in rows]

    def encode(self, queries: Sequence[Query]) -> dict[int, Exception]:
        """Sets `tokens` of each query. Returns the errors by the query's index."""
        self.start(queries)
        errors: dict[int, Exception] = {}
        for index, query in enumerate(queries):
            assert isinstance(query, ImageQuery)
            assert query.images is not None
            try:
                query.tokens = self._read(query)
            except Exception as error:  # including MemoryError for its pixels
                errors[index] = error
        return errors

    def close(self) -> None:
        """See ImageWorkers.close. The reader reads no images afterwards."""
        self._workers.close()

    def _read(self, query: ImageQuery) -> list[list[Pixels | Tokens]]:
        assert query.images is not None
        images = iter(query.images)
        rows = [row.text for row in query.rows if isinstance(row, TextRow)]
        texts = iter(self._tokens(rows, query))
        found: list[list[Pixels | Tokens]] = []
        for index, row in enumerate(query.rows):
            if isinstance(row, TextRow):
                found.append([next(texts)])
                continue
            try:
                [pixels] = [row.pixels] if isinstance(row, PixelRow) else next(images)()
            except InvalidInput as error:
                raise error.in_row(row_of(index, query.images)) from None
            found.append([Pixels(pixels, self._model.images.tokens(pixels))])
        return found

    def _tokens(self, texts: list[str], query: ImageQuery) -> list[Tokens]:
        if not texts:
            return []
        assert self._tokenizer is not None  # texts are refused earlier where there is none
        truncate = query.settings.truncate
        with self._tokenizing:
            whole = self._tokenizer.ids(texts, field=query.text_field, truncate=truncate)
        return [self._sequence(ids, query.text_field) for ids in whole]

    def _sequence(self, whole: NDArray[np.int64], field: str) -> Tokens:
        tower = self._model.texts
        assert tower is not None
        ids = tower.ended(whole)
        if (highest := int(ids.max())) >= tower.vocab_size:
            raise InvalidInput(
                field,
                f"a text with the token {highest}",
                f"0..{tower.vocab_size - 1}, the model's vocabulary",
                "change the text (the model folder has a tokenizer with more tokens than the "
                "model)",
            )
        sequence = TokenSequence(ids, np.zeros(len(ids), np.int32))
        return Tokens(sequence, np.arange(len(ids)), len(ids))
