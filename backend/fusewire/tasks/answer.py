"""Extractive question answering: the span of a context that answers a question.

Scores and spans are those of transformers' question-answering pipeline (last in 4.57): start and
end probabilities over the context, their product per span, long contexts read in overlapping
windows, spans widened to whole words, and the scores of equal answers from several spans and
windows added up.

With ids instead of texts the context is the part with token type 1, or the part after the first
separator; `start` and `end` are null, and `tokens` has the first and last column of the span.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire.errors import InvalidInput
from fusewire.models.task_heads import TaskHead, token_logits
from fusewire.settings import EngineSettings
from fusewire.tasks.inputs import row_of
from fusewire.tasks.rows import Query, TextRow, Tokens
from fusewire.tasks.scores import softmax
from fusewire.tasks.spans import best_spans
from fusewire.tasks.task import Reply, Task, strings

DEFAULT_TOP_K = 1
_NOWHERE = np.float32(-10000.0)  # the logit of a token outside the context


class Answer(Task):
    """`answer` [n, 1]: JSON of text, start, end (characters of the context) and score. With top_k
    above 1 a list of them, best first."""

    name = "answer"
    pairs = "required"
    needs_offsets = True
    reads_windows = True

    def check(self, query: Query) -> None:
        for row, windows in enumerate(query.tokens):
            if windows[0].encoding is None and not self._context(windows[0])[1:].any():
                raise InvalidInput(
                    "input_ids",
                    "ids without a context",
                    "question, separator, context; or token_type_ids that are 1 in the context",
                    "send both parts, or text_input and text_pair",
                    row_of(row, query.tokens),
                )

    def head(self) -> TaskHead:
        return token_logits(self.model)

    def reply(self, query: Query, results: list[list[Any]]) -> Reply:
        replies = []
        top_k = query.settings.top_k or DEFAULT_TOP_K
        for row, windows, logits in zip(query.rows, query.tokens, results, strict=True):
            context = row.pair if isinstance(row, TextRow) else None
            found = self._answers(context, windows, logits, query.settings)[:top_k]
            reply = found[0] if top_k == 1 else found
            replies.append(json.dumps(reply, ensure_ascii=False))
        return {"answer": strings(replies)}

    def _answers(
        self,
        context: str | None,
        windows: list[Tokens],
        logits: list[NDArray[np.float32]],
        settings: EngineSettings,
    ) -> list[dict[str, Any]]:
        # Widening to words makes some spans equal, so more candidates are taken than requested.
        candidates = (settings.top_k or DEFAULT_TOP_K) * 2 + 10
        answers: dict[Any, dict[str, Any]] = {}
        none_score = 1.0
        for tokens, window in zip(windows, logits, strict=True):
            within = self._context(tokens)
            start, end = softmax(np.where(within[:, None], window, _NOWHERE).T.copy())
            none_score = min(none_score, float(start[0] * end[0]))
            start[0] = end[0] = 0
            for first, last, score in best_spans(start, end, settings.max_answer_len, candidates):
                answer = self._answer(context, tokens, first, last)
                key = answer["text"].lower() if context is not None else (first, last)
                if key in answers:
                    answers[key]["score"] += score
                else:
                    answers[key] = answer | {"score": score}
        found = list(answers.values())
        if settings.handle_impossible_answer or not found:
            found.append({"text": "", "start": 0, "end": 0, "score": none_score})
        return sorted(found, key=lambda answer: -answer["score"])

    def _context(self, tokens: Tokens) -> NDArray[np.bool_]:
        """Returns a mask [n] of the tokens that may be in an answer. It includes the first token
        (CLS), which takes the probability that there is no answer."""
        ids = tokens.sequence.input_ids
        if tokens.encoding is not None:
            within = np.array([part == 1 for part in tokens.encoding.sequence_ids])
        else:
            within = tokens.sequence.token_type_ids == 1
            if self.tokenizer is not None:
                separators = np.flatnonzero(ids == self.tokenizer.sep_id)
                if not within.any() and separators.size:
                    within = np.arange(len(ids)) > separators[0]
                names = self.tokenizer
                ends = [index for index in (names.sep_id, names.pad_id) if index is not None]
                within &= ~np.isin(ids, ends)
        if self.tokenizer is not None and self.tokenizer.cls_id is not None:
            within |= ids == self.tokenizer.cls_id
        return within

    def _answer(self, context: str | None, tokens: Tokens, first: int, last: int) -> dict[str, Any]:
        if context is None:
            text = None
            if self.tokenizer is not None:
                text = self.tokenizer.decode(tokens.sequence.input_ids[first : last + 1].tolist())
            columns = [int(tokens.places[first]), int(tokens.places[last])]
            return {"text": text, "start": None, "end": None, "tokens": columns}
        start, end = _characters(tokens, first, last)
        return {"text": context[start:end], "start": start, "end": end}


def _characters(tokens: Tokens, first: int, last: int) -> tuple[int, int]:
    """Returns the characters of a span, widened to whole words where the tokenizer has word
    boundaries."""
    encoding = tokens.encoding
    assert encoding is not None
    first_word, last_word = encoding.token_to_word(first), encoding.token_to_word(last)
    if first_word is not None and last_word is not None:
        start = encoding.word_to_chars(first_word, 1)
        end = encoding.word_to_chars(last_word, 1)
        if start is not None and end is not None:
            return start[0], end[1]
    return encoding.offsets[first][0], encoding.offsets[last][1]
