"""The input of both sides: tokens of given texts, or random lengths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fusewire.batch import Sequence as TokenSequence
from fusewire.errors import ConfigurationError
from fusewire.parity.text_files import Line
from fusewire.settings import EngineSettings
from fusewire.tasks.rows import Query, TextRow
from fusewire.tasks.sentence_files import SentenceFiles
from fusewire.tasks.text_encoder import TextEncoder
from fusewire.text.tokenizer import Tokenizer

LONGEST = 512  # maximum number of tokens of a text


def tokenized(
    lines: Sequence[Line],
    folder: Path,
    *,
    max_length: int,
    vocab_size: int,
    type_vocab_size: int = 0,
    sentences: SentenceFiles | None = None,
) -> list[TokenSequence]:
    """Returns the lines encoded by the folder's tokenizer, with its special tokens, truncated to
    `max_length`, LONGEST and the folder's limit. `sentences`: the files of an embedder, whose
    prompt is put before each text. Raises ConfigurationError with the number of a line that the
    model cannot read."""
    tokenizer = Tokenizer.load(folder)
    if tokenizer is None:
        raise ConfigurationError(
            "texts: got a folder without a tokenizer, wanted one with tokenizer.json; compare on "
            "random tokens, without texts"
        )
    sentences = sentences or SentenceFiles()
    if sentences.lowercase:
        tokenizer.lowercase()
    named = sentences.max_length or tokenizer.max_length or LONGEST
    encoder = TextEncoder(
        tokenizer,
        min(max_length, named, LONGEST),
        windows=False,
        offsets=False,
        vocab_size=vocab_size,
        type_vocab_size=type_vocab_size,
    )
    settings, prompt = EngineSettings(truncate=True), sentences.prompt(None)
    queries = [Query(settings, [TextRow(line.text)], prompt) for line in lines]
    errors = encoder.encode(queries)
    for index in sorted(errors):
        raise ConfigurationError(f"{lines[index].where}: {errors[index]}")
    return [query.tokens[0][0].sequence for query in queries]


def ragged(longest: int, sequences: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Returns random lengths; the first is 1, the last is `longest`."""
    lengths = random.integers(1, max(2, longest // 4), sequences)
    lengths[0] = 1
    lengths[-1] = longest
    return lengths
