"""Candidates for each mask token of a text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire.errors import InvalidInput
from fusewire.models.task_heads import LikeliestTokens
from fusewire.settings import MOST_REPLIES, EngineSettings
from fusewire.tasks.inputs import row_of
from fusewire.tasks.rows import Query
from fusewire.tasks.task import Reply, Task, strings
from fusewire.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from fusewire.models import EncoderModel

DEFAULT_TOP_K = 5


class Fill(Task):
    """`candidates` [n, 1]: JSON list of score, token, token_str and sequence (the text with the
    mask replaced by the token), best first. For a text with several masks a list of such lists, one
    per mask."""

    name = "fill"

    def __init__(
        self, model: EncoderModel, tokenizer: Tokenizer | None, settings: EngineSettings
    ) -> None:
        super().__init__(model, tokenizer, settings)
        self._mask_id = tokenizer.mask_id if tokenizer else None

    def check(self, query: Query) -> None:
        if self.tokenizer is None or self._mask_id is None:
            raise InvalidInput(
                "input_ids",
                "ids for a model whose folder names no mask token",
                "a tokenizer, and tokenizer_config.json with mask_token",
                "put the tokenizer's files into the model folder",
            )
        top_k = self.head_options(query.settings)
        if top_k > self.model.vocab_size:
            raise InvalidInput(
                "top_k", top_k, f"at most {self.model.vocab_size}, the vocabulary", "lower it"
            )
        masks = sum(
            int(np.count_nonzero(windows[0].sequence.input_ids == self._mask_id))
            for windows in query.tokens
        )
        if masks > 1 and masks * top_k > MOST_REPLIES:
            raise InvalidInput(
                "top_k",
                f"{top_k} for each of {masks} mask tokens",
                f"at most {MOST_REPLIES} candidates in a request",
                "lower top_k or send fewer mask tokens at once",
            )
        for row, windows in enumerate(query.tokens):
            if self._mask_id not in windows[0].sequence.input_ids:
                field = "text_input" if windows[0].encoding else "input_ids"
                raise InvalidInput(
                    field,
                    "no mask token",
                    f"{self.tokenizer.piece(self._mask_id)!r} (id {self._mask_id}) once or more",
                    "put it where a word is missing (a truncated text may have lost it)",
                    row_of(row, query.tokens),
                )

    def head(self) -> LikeliestTokens:
        return LikeliestTokens(self.model, self._mask_id)

    def head_options(self, settings: EngineSettings) -> int:
        return settings.top_k or DEFAULT_TOP_K

    def reply(self, query: Query, results: list[list[Any]]) -> Reply:
        replies = []
        for windows, found in zip(query.tokens, results, strict=True):
            masks = self._candidates(windows[0].sequence.input_ids, *found[0])
            replies.append(json.dumps(masks[0] if len(masks) == 1 else masks, ensure_ascii=False))
        return {"candidates": strings(replies)}

    def _candidates(
        self, ids: np.ndarray, tokens: np.ndarray, scores: np.ndarray
    ) -> list[list[dict[str, Any]]]:
        tokenizer = self.tokenizer
        assert tokenizer is not None  # `check` has refused queries without one
        masks = []
        for place, place_tokens, place_scores in zip(
            np.flatnonzero(ids == self._mask_id), tokens.tolist(), scores.tolist(), strict=True
        ):
            candidates = []
            for token, score in zip(place_tokens, place_scores, strict=True):
                filled = ids.copy()
                filled[place] = token
                candidates.append(
                    {
                        "score": score,
                        "token": token,
                        "token_str": tokenizer.decode([token]),
                        # With several masks the others stay visible.
                        "sequence": tokenizer.decode(
                            filled[filled != tokenizer.pad_id].tolist(),
                            skip_special_tokens=len(tokens) == 1,
                        ),
                    }
                )
            masks.append(candidates)
        return masks
