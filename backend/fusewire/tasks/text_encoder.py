"""Converts rows of requests to tokens in the model's vocabulary: texts, of many requests in one
call of the tokenizer, and the ids of clients.

Truncation is that of transformers: `longest_first` for pairs, and windows over the context for
questions with a long context (`only_second` with a stride). A text that is too long and may not be
truncated is an error of its own request only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

from fusewire.errors import FusewireError, InvalidInput
from fusewire.settings import MOST_WINDOWS
from fusewire.tasks.inputs import row_of
from fusewire.tasks.rows import IdRow, Query, Row, TextRow, Tokens
from fusewire.text.least_tokens import WORTH_WHILE
from fusewire.text.long_pairs import shortened
from fusewire.text.tokenizer import Tokenizer
from fusewire.text.tokenizer_library import TokenizerFault
from fusewire.text.unknown_tokens import unknown_token

# Question answering reads windows of this many tokens by default, as transformers does.
WINDOW_TOKENS = 384
WINDOW_STRIDE = 128


class TextEncoder:
    """Fills in `Query.tokens`. Not thread-safe, as truncation is state of the tokenizer."""

    threads = 1

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        max_length: int,
        *,
        windows: bool,
        offsets: bool,
        vocab_size: int,
        type_vocab_size: int,
    ) -> None:
        """`max_length`: limit of the deployment. `windows`: read long second texts in windows.
        `offsets`: whether the task maps tokens back to the text. `vocab_size`, `type_vocab_size`:
        those of the model."""
        self.tokenizer = tokenizer
        self._max_length = max_length
        self._windows = windows
        self._offsets = offsets
        self._vocab_size = vocab_size
        self._types = max(type_vocab_size, 1)

    def start(self, queries: Iterable[Query]) -> None:
        """Does nothing: `encode` tokenises texts."""

    def close(self) -> None:
        """Does nothing: there are no threads."""

    def encode(self, queries: Sequence[Query]) -> dict[int, FusewireError]:
        """Sets `tokens` of each query. Returns the errors by the query's index."""
        errors: dict[int, FusewireError] = {}
        groups: dict[tuple[int, bool, bool], list[tuple[int, int, TextRow]]] = defaultdict(list)
        # Rows are checked one by one only where an error must be located.
        known = self._known([row for query in queries for row in query.rows])
        for index, query in enumerate(queries):
            query.tokens = []
            for place, row in enumerate(query.rows):
                if isinstance(row, IdRow):
                    try:
                        if not known:
                            self._check_known(row)
                        query.tokens.append([Tokens.of_ids(row)])
                    except InvalidInput as error:
                        errors.setdefault(index, _in_row(error, place, query))
                    continue
                assert isinstance(row, TextRow)
                limit = self._limit(query)
                truncate = query.settings.truncate and not self._windows
                if not truncate and index not in errors:
                    try:
                        self._check_length(row, limit)
                    except InvalidInput as error:
                        errors[index] = _in_row(error, place, query)
                groups[limit, truncate, row.pair is not None].append((index, place, row))
        for (limit, truncate, pair), grouped in groups.items():
            members = [member for member in grouped if member[0] not in errors]
            texts = [_text(queries[index].prompt, row) for index, _, row in members]
            encodings = self._encode_group(texts, limit, truncate, pair)
            for (index, place, row), encoding in zip(members, encodings, strict=True):
                if index in errors:
                    continue
                try:
                    if isinstance(encoding, InvalidInput):
                        raise encoding
                    windows = self._fitted(encoding, row, limit, queries[index])
                    queries[index].tokens.append([self._of_text(window) for window in windows])
                except InvalidInput as error:
                    errors[index] = _in_row(error, place, queries[index])
        return errors

    def _limit(self, query: Query) -> int:
        limit = query.settings.max_length or self._max_length
        if self._windows and query.settings.max_length is None:
            limit = min(limit, WINDOW_TOKENS)
        return limit

    def _check_length(self, row: TextRow, limit: int) -> None:
        """Raises InvalidInput for a text that is known to be too long before it is tokenised."""
        assert self.tokenizer is not None
        texts = [row.text] if row.pair is None else [row.text, row.pair]
        most = limit * (MOST_WINDOWS + 1) if self._windows else limit
        if sum(map(len, texts)) <= max(most, WORTH_WHILE):
            return
        least = self.tokenizer.added_tokens(pair=row.pair is not None)
        least += sum(self.tokenizer.least_tokens.of(text, most) for text in texts)
        if least > most:
            got = f"{sum(map(len, texts))} characters, at least {least} tokens"
            if self._windows:
                wanted = f"at most {most}, which {MOST_WINDOWS} windows more hold"
                raise InvalidInput("text_pair", got, wanted, "shorten the context")
            remedy = "set truncate or shorten the text"
            raise InvalidInput("text_input", got, f"at most {most}", remedy)

    def _encode_group(
        self, texts: list[str | tuple[str, str]], limit: int, truncate: bool, pair: bool
    ) -> list[Encoding | InvalidInput]:
        assert self.tokenizer is not None  # texts are refused earlier where there is none
        cut = None
        # Not truncated to a limit that does not even hold the special tokens: `_fitted` refuses it.
        if truncate and limit > self.tokenizer.added_tokens(pair=pair):
            cut = {
                "max_length": limit,
                "stride": 0,
                "strategy": "longest_first",
                "direction": self.tokenizer.truncation_side,
            }
        try:
            return [*self._tokenized(texts, cut)]
        except (TokenizerFault, InvalidInput):  # of one text (a word without tokens)
            return [self._encode_alone(text, cut) for text in texts]

    def _tokenized(
        self, texts: list[str | tuple[str, str]], cut: dict[str, Any] | None
    ) -> list[Encoding]:
        assert self.tokenizer is not None
        if cut is not None and cut["strategy"] == "longest_first":
            most = cut["max_length"]
            texts = [
                text if isinstance(text, str) else shortened(self.tokenizer, text, most)
                for text in texts
            ]
        return self.tokenizer.encode(texts, offsets=self._offsets, cut=cut)

    def _encode_alone(
        self, text: str | tuple[str, str], cut: dict[str, Any] | None
    ) -> Encoding | InvalidInput:
        assert self.tokenizer is not None
        try:
            return self._tokenized([text], cut)[0]
        except InvalidInput as error:
            return error
        except TokenizerFault as fault:
            return InvalidInput(
                "text_input",
                f"a text that the tokenizer refuses ({fault})",
                "words of its vocabulary",
                "change the text",
            )

    def _fitted(self, encoding: Encoding, row: TextRow, limit: int, query: Query) -> list[Encoding]:
        if len(encoding) == 0:
            raise InvalidInput("text_input", "a text without tokens", "at least 1", "send a text")
        if len(encoding) <= limit:
            return [encoding]
        if self._windows:
            return self._windowed(encoding, row, limit, query)
        if query.settings.truncate:
            assert self.tokenizer is not None
            least = self.tokenizer.added_tokens(pair=row.pair is not None)
            raise InvalidInput(
                "max_length",
                limit,
                f"more than the {least} special tokens",
                "raise it",
            )
        raise InvalidInput(
            "text_input",
            f"{len(encoding)} tokens",
            f"at most {limit}",
            "set truncate or shorten the text",
        )

    def _known(self, rows: Sequence[Row]) -> bool:
        """Whether all ids and token types that clients sent are in the model's vocabulary."""
        sent = [row for row in rows if isinstance(row, IdRow)]
        if not sent:
            return True
        ids = np.concatenate([row.input_ids for row in sent])
        types = np.concatenate([row.token_type_ids for row in sent])
        return _outside(ids, self._vocab_size) is None and _outside(types, self._types) is None

    def _check_known(self, row: IdRow) -> None:
        wanted = f"0..{self._vocab_size - 1}, the model's vocabulary"
        if (unknown := _outside(row.input_ids, self._vocab_size)) is not None:
            raise InvalidInput("input_ids", unknown, wanted, "use this model's tokenizer")
        wanted = f"0..{self._types - 1}"
        if (unknown := _outside(row.token_type_ids, self._types)) is not None:
            raise InvalidInput("token_type_ids", unknown, wanted, "correct or omit it")

    def _of_text(self, encoding: Encoding) -> Tokens:
        """Returns the tokens of a text. Raises InvalidInput for a token that is not in the model's
        vocabulary: a folder's tokenizer may have more tokens than its model."""
        assert self.tokenizer is not None
        tokens = Tokens.of_text(encoding, uses_types=self._types > 1)
        if (unknown := _outside(tokens.sequence.input_ids, self._vocab_size)) is not None:
            got, remedy = unknown_token(self.tokenizer, unknown)
            wanted = f"0..{self._vocab_size - 1}, the model's vocabulary"
            raise InvalidInput("text_input", got, wanted, remedy)
        if (unknown := _outside(tokens.sequence.token_type_ids, self._types)) is not None:
            raise InvalidInput(
                "text_input",
                f"the token type {unknown} from the tokenizer",
                f"0..{self._types - 1}",
                "send input_ids (the model folder has a tokenizer of another model)",
            )
        return tokens

    def _windowed(
        self, encoding: Encoding, row: TextRow, limit: int, query: Query
    ) -> list[Encoding]:
        assert self.tokenizer is not None
        assert row.pair is not None
        stride = query.settings.doc_stride
        if stride is None:
            stride = min(limit // 2, WINDOW_STRIDE)
        question = sum(part == 0 for part in encoding.sequence_ids)
        room = limit - self.tokenizer.added_tokens(pair=True) - question
        if stride >= room:
            raise InvalidInput(
                "text_input",
                f"a question of {question} tokens",
                f"at most {max(question + room - stride - 1, 0)}, as windows of {limit} tokens "
                f"that share {stride} (doc_stride) must move on over the context",
                "shorten the question or lower doc_stride",
            )
        # Counted before they are made: a request of a megabyte could need gigabytes of windows.
        context = len(encoding) - (limit - room)
        windows = sum(len(row_windows) - 1 for row_windows in query.tokens)
        windows += -(-(context - room) // (room - stride))
        if windows > MOST_WINDOWS:
            raise InvalidInput(
                "text_pair",
                f"texts that take {windows} more windows of {limit} tokens that share {stride}",
                f"at most {MOST_WINDOWS} in a request",
                "shorten the context, send fewer at once, or lower doc_stride",
            )
        cut = {"max_length": limit, "stride": stride, "strategy": "only_second"}
        first = self._encode_alone((row.text, row.pair), cut)
        if isinstance(first, InvalidInput):
            raise first
        return [first, *first.overflowing]


def _in_row(error: InvalidInput, row: int, query: Query) -> InvalidInput:
    """Returns the error of a row, with its number unless a parameter of the request is at fault."""
    return error if error.field == "max_length" else error.in_row(row_of(row, query.rows))


def _text(prompt: str, row: TextRow) -> str | tuple[str, str]:
    first = prompt + row.text
    return first if row.pair is None else (first, row.pair)


def _outside(ids: NDArray[np.integer[Any]], end: int) -> int | None:
    """Returns the first id outside 0..end - 1, or None."""
    unsigned = ids.view(f"u{ids.itemsize}")  # negative ids become the largest
    if int(unsigned.max()) < end:
        return None
    return int(ids[unsigned >= end][0])
