"""An encoder for lists of texts: computes the longest first, and returns results in the given
order."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fusewire.api.arguments import check_batch_size
from fusewire.api.progress import ProgressBar
from fusewire.engine.encoder import EncoderEngine, Request
from fusewire.errors import CheckpointError, FusewireError, InvalidInput, type_name
from fusewire.models import EncoderModel
from fusewire.opening import folder_for
from fusewire.settings import EngineSettings
from fusewire.tasks.parameters import Value
from fusewire.text.tokenizer_files import WANTED
from fusewire.text.unknown_tokens import warn_of_unknown_tokens

# The characters of a request: as many as the engine tokenises at a time while the device computes.
# With fewer it would tokenise two requests at a time, and the device would wait for the tokenizer.
_CHARACTERS_PER_TOKEN = 4
# Micro-batches submitted to the engine together, so that it tokenises while the device computes;
# their tokens are held in memory meanwhile.
_MICRO_BATCHES_AT_ONCE = 32
# Fields of a request that hold its texts; all others are parameters, alike for each text.
_TEXTS = ("text_input", "text_pair")


class TextModel:
    """A model folder opened for one of an encoder's tasks: the base of the classes for texts."""

    _task: ClassVar[str]
    _ranks: ClassVar[bool] = False  # True: only pairs, whose second text may be empty
    # Parameters of requests -> the arguments that they come from, where these are named otherwise.
    _arguments: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self,
        model: str | Path,
        *,
        device: str = "auto",
        dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto",
        quantize: Literal["none", "int8", "fp8"] = "none",
        quantize_skip: Sequence[str] = (),
        revision: str | None = None,
        max_length: int | None = None,
        max_batch_tokens: int | None = None,
        threads: int = 0,
    ) -> None:
        """Loads the model.

        Args:
            model: A model folder, or an id on Hugging Face.
            device: `auto` (the first GPU where there is one, else the CPU), `cpu`, `cuda` or
                `cuda:<index>`.
            dtype: Precision of the computation; `auto` is float32 on the CPU and float16 on a GPU.
                On the CPU `bfloat16` is the storage format of the matrices only, and the
                computation is in float32.
            quantize: Format of the weight matrices of the model's layers: `none` (that of
                `dtype`), `int8`, on Hopper GPUs `fp8`.
            quantize_skip: Names of matrices that are not quantised, as `fusewire import` selects
                and prints them.
            revision: Branch, tag or commit of a Hugging Face id.
            max_length: Maximum length of a text in tokens, special tokens included. Default: as
                the folder says.
            max_batch_tokens: Maximum number of tokens computed together; bounds the memory of the
                computation. Default: 16384.
            threads: CPU threads; 0: one per core.

        Raises:
            CheckpointError: The folder cannot be read, or asks for something not supported.
            ConfigurationError: There is no such device, dtype or format here, or a value is out of
                range.
        """
        settings: dict[str, Any] = {
            "dtype": dtype,
            "quantize": quantize,
            "quantize_skip": quantize_skip,
            "threads": threads,
            "max_length": max_length,
        }
        if max_batch_tokens is not None:
            settings["max_batch_tokens"] = max_batch_tokens
        self._folder = folder_for(type(self), model, revision)
        self._engine = EncoderEngine(
            self._folder,
            self._task,
            EngineSettings(**settings),
            device=device,
            ranks=self._ranks,
        )
        if (tokenizer := self._engine.tokenizer) is None:
            raise CheckpointError(
                f"{self._folder.name}: got no tokenizer, wanted {WANTED}; call "
                "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of transformers"
            )
        warn_of_unknown_tokens(model, tokenizer, self._model.vocab_size)
        self._lock = threading.Lock()
        self._loaded()

    @property
    def _model(self) -> EncoderModel:
        assert isinstance(self._engine.model, EncoderModel)
        return self._engine.model

    def _loaded(self) -> None:
        """Reads what a subclass needs of its folder and model."""

    def _rows(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None,
        output: str,
        *,
        parameters: Mapping[str, Value],
        batch_size: int | None,
        show_progress_bar: bool | None,
    ) -> NDArray[np.float32]:
        """Returns the rows of `output` [n, values] for one or more texts, or pairs of texts.

        `batch_size`: texts per request to the engine, which computes requests together; None: about
        as many as a micro-batch. Raises InvalidInput with the index of the text; before anything is
        computed if it is too long.
        """
        _check(texts, pairs, batch_size)
        sizes = [len(text) for text in texts]
        if pairs is not None:
            sizes = [size + len(pair) for size, pair in zip(sizes, pairs, strict=True)]
        order = sorted(range(len(texts)), key=lambda index: -sizes[index])
        done = 0
        found: NDArray[np.float32] | None = None
        shown = show_progress_bar is not False
        with self._lock, ProgressBar(len(texts), "texts", shown=shown) as bar:

            def computed(sequences: int) -> None:
                nonlocal done
                done += sequences
                bar.update(done, texts=done)

            for batches in self._batches(order, sizes, batch_size):
                requests = [_request(batch, texts, pairs, parameters) for batch in batches]
                answers = self._engine.answer(requests, computed)
                for batch, answer in zip(batches, answers, strict=True):
                    if isinstance(answer, FusewireError):
                        raise self._at_fault(answer, batch, texts, pairs, parameters)
                    if found is None:
                        found = np.empty((len(texts), *answer[output].shape[1:]), np.float32)
                    found[batch] = answer[output]
        assert found is not None
        return found

    def _batches(
        self, order: Sequence[int], sizes: Sequence[int], batch_size: int | None
    ) -> Iterator[list[list[int]]]:
        """Yields lists of batches of texts; the batches of a list are submitted to the engine
        together."""
        budget = self._engine.settings.max_batch_tokens * _CHARACTERS_PER_TOKEN
        batches: list[list[int]] = []
        batch: list[int] = []
        characters = total = 0
        for place, index in enumerate(order, 1):
            batch.append(index)
            characters += sizes[index]
            if place == len(order) or characters >= budget or len(batch) == batch_size:
                batches.append(batch)
                total += characters
                batch, characters = [], 0
                if place == len(order) or total >= budget * _MICRO_BATCHES_AT_ONCE:
                    yield batches
                    batches, total = [], 0

    def _at_fault(
        self,
        error: FusewireError,
        batch: Sequence[int],
        texts: Sequence[str],
        pairs: Sequence[str] | None,
        parameters: Mapping[str, Value],
    ) -> FusewireError:
        """Returns the error of a batch, or that of the text in it that causes one by itself, or
        that of an argument."""
        if isinstance(error, InvalidInput):
            for index in batch:
                request = _request([index], texts, pairs, parameters)
                try:
                    self._engine.check(request)
                except InvalidInput as own:
                    named = self._in_arguments(own)
                    return named.at(f"texts[{index}]") if own.field in _TEXTS else named
        return error

    def _in_arguments(self, error: InvalidInput) -> InvalidInput:
        """Returns an error with the names of arguments in place of those of parameters."""
        field, remedy = self._arguments.get(error.field, error.field), error.remedy
        for parameter, argument in self._arguments.items():
            remedy = remedy.replace(f"set {parameter} ", f"set {argument} ")
        return InvalidInput(field, error.got, error.wanted, remedy)


def _request(
    batch: Sequence[int],
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    parameters: Mapping[str, Value],
) -> Request:
    inputs = {"text_input": _tensor([texts[index] for index in batch])}
    if pairs is not None:
        inputs["text_pair"] = _tensor([pairs[index] for index in batch])
    return Request(inputs, dict(parameters))


def _tensor(texts: list[str]) -> NDArray[Any]:
    array = np.empty((len(texts), 1), object)
    array[:, 0] = texts
    return array


def _check(texts: Sequence[str], pairs: Sequence[str] | None, batch_size: int | None) -> None:
    for name, values in (("texts", texts), ("pairs", pairs or ())):
        for index, text in enumerate(values):
            if not isinstance(text, str):
                got = f"{type_name(text)} at {index}"
                raise InvalidInput(name, got, "str", "give texts, or convert them")
    check_batch_size(batch_size)
