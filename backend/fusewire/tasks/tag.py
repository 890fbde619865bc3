"""Named entities: a label per token, grouped as in transformers' token-classification pipeline.

With ids instead of a text there are no characters to refer to: `start` and `end` are null, `index`
is the column in the request's row, and `word` is the vocabulary piece, or null without a tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire.models.task_heads import TaskHead, token_logits
from fusewire.tasks.rows import Query, TextRow, Tokens
from fusewire.tasks.scores import softmax
from fusewire.tasks.task import Reply, Task, strings

# The label of tokens outside entities.
OUTSIDE = "O"


@dataclass(frozen=True, eq=False)
class Piece:
    """A token with its scores over the labels [labels]."""

    word: str | None
    scores: NDArray[np.float32]
    start: int | None
    end: int | None
    index: int
    continues: bool  # inside a word that an earlier piece began


@dataclass(frozen=True)
class Word:
    """A labelled token, or several tokens with one label."""

    label: str
    score: float
    word: str | None
    start: int | None
    end: int | None
    index: int

    @property
    def begins(self) -> bool:
        return self.label.startswith("B-")

    @property
    def tag(self) -> str:
        return self.label[2:] if self.label.startswith(("B-", "I-")) else self.label


class Tag(Task):
    """`entities` [n, 1]: JSON list of entity (entity_group when grouped), score, word, start, end
    and index (the column of the first token)."""

    name = "tag"
    needs_offsets = True

    def head(self) -> TaskHead:
        return token_logits(self.model)

    def reply(self, query: Query, results: list[list[Any]]) -> Reply:
        replies = []
        strategy = query.settings.aggregation_strategy
        for row, windows, logits in zip(query.rows, query.tokens, results, strict=True):
            text = row.text if isinstance(row, TextRow) else None
            pieces = self._pieces(windows[0], softmax(logits[0]), text, strategy)
            replies.append(json.dumps(self._entities(pieces, strategy), ensure_ascii=False))
        return {"entities": strings(replies)}

    def _pieces(
        self, tokens: Tokens, scores: NDArray[np.float32], text: str | None, strategy: str
    ) -> list[Piece]:
        """Returns the tokens of the text, without special tokens that the tokenizer adds."""
        if text is None or tokens.encoding is None:
            return self._pieces_of_ids(tokens, scores)
        tokenizer = self.tokenizer
        assert tokenizer is not None  # it made the encoding
        pieces = []
        encoding = tokens.encoding
        for place, (token, special, (start, end)) in enumerate(
            zip(encoding.ids, encoding.special_tokens_mask, encoding.offsets, strict=True)
        ):
            if special:
                continue
            word, source = tokenizer.piece(token), text[start:end]
            if tokenizer.subword_prefix:  # the prefix ## makes a piece longer than its source
                continues = len(word) != len(source)
            else:  # no space before it: it continues a word
                continues = start > 0 and " " not in text[start - 1 : start + 1]
            if token == tokenizer.unk_id:
                word, continues = source, False
            pieces.append(Piece(word, scores[place], start, end, place, continues))
        return pieces

    def _pieces_of_ids(self, tokens: Tokens, scores: NDArray[np.float32]) -> list[Piece]:
        """Returns the tokens of ids. Special tokens are left out where there is a tokenizer to
        identify them. Word starts are known only where its pieces mark them."""
        pieces = []
        for place, token in enumerate(tokens.sequence.input_ids.tolist()):
            word, continues = None, False
            if self.tokenizer is not None:
                if token in self.tokenizer.special_ids and token != self.tokenizer.unk_id:
                    continue
                word = self.tokenizer.piece(token)
                prefix = self.tokenizer.subword_prefix
                continues = bool(prefix) and word.startswith(prefix)
            column = int(tokens.places[place])
            pieces.append(Piece(word, scores[place], None, None, column, continues))
        return pieces

    def _entities(self, pieces: list[Piece], strategy: str) -> list[dict[str, Any]]:
        if strategy in ("none", "simple"):
            words = [self._word([piece], strategy) for piece in pieces]
        else:
            words = [self._word(group, strategy) for group in _word_groups(pieces)]
        if strategy == "none":
            return [_entity(word, "entity", word.label) for word in words if word.label != OUTSIDE]
        groups = [self._group(group) for group in _tag_groups(words)]
        return [
            _entity(group, "entity_group", group.label)
            for group in groups
            if group.label != OUTSIDE
        ]

    def _word(self, pieces: list[Piece], strategy: str) -> Word:
        scores = pieces[0].scores
        if strategy == "max":
            scores = max(pieces, key=lambda piece: piece.scores.max()).scores
        elif strategy == "average":
            scores = np.stack([piece.scores for piece in pieces]).mean(axis=0)
        best = int(scores.argmax())
        single = strategy in ("none", "simple")  # pieces are returned as they are in the vocabulary
        return Word(
            self.model.id2label[best],
            float(scores[best]),
            pieces[0].word if single else self._joined(pieces),
            pieces[0].start,
            pieces[-1].end,
            pieces[0].index,
        )

    def _group(self, words: list[Word]) -> Word:
        return Word(
            words[0].label.split("-", 1)[-1],
            float(np.mean([word.score for word in words])),
            self._joined(words),
            words[0].start,
            words[-1].end,
            words[0].index,
        )

    def _joined(self, parts: Sequence[Piece | Word]) -> str | None:
        if self.tokenizer is None:
            return None
        return self.tokenizer.join([part.word or "" for part in parts])


def _word_groups(pieces: list[Piece]) -> list[list[Piece]]:
    groups: list[list[Piece]] = []
    for piece in pieces:
        if groups and piece.continues:
            groups[-1].append(piece)
        else:
            groups.append([piece])
    return groups


def _tag_groups(words: list[Word]) -> list[list[Word]]:
    """Groups neighbours with the same tag. A label that begins an entity (B-) starts a new
    group."""
    groups: list[list[Word]] = []
    for word in words:
        if groups and groups[-1][-1].tag == word.tag and not word.begins:
            groups[-1].append(word)
        else:
            groups.append([word])
    return groups


def _entity(word: Word, key: str, label: str) -> dict[str, Any]:
    return {
        key: label,
        "score": word.score,
        "index": word.index,
        "word": word.word,
        "start": word.start,
        "end": word.end,
    }
