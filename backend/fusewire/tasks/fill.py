"""Candidates for each mask token of a text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.engine.batch import Batch
from fusewire.engine.settings import MOST_REPLIES, EngineSettings
from fusewire.errors import InvalidInput
from fusewire.tasks.rows import Query
from fusewire.tasks.task import Item, Reply, Task, strings
from fusewire.tasks.tokenizer import Tokenizer

if TYPE_CHECKING:
    from fusewire.models import EncoderModel

DEFAULT_TOP_K = 5
_MOST_SCORES = 1 << 25  # 128 MiB


class Fill(Task):
    """`candidates` [n, 1]: JSON list of score, token, token_str and sequence (the text with the
    token in place), best first; with several masks in a text a list of such lists, one a mask."""

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
                "a tokenizer.json and tokenizer_config.json with mask_token",
                "put the tokenizer's files into the model folder",
            )
        top_k = query.settings.top_k or DEFAULT_TOP_K
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
                where = f" in row {row}" if len(query.tokens) > 1 else ""
                raise InvalidInput(
                    field,
                    f"no mask token{where}",
                    f"{self.tokenizer.piece(self._mask_id)!r} (id {self._mask_id}) once or more",
                    "put it where a word is missing (a truncated text may have lost it)",
                )

    def head(self, hidden: kernels.Tensor, batch: Batch, items: Sequence[Item]) -> list[Any]:
        """Per sequence: (token ids, probabilities) of each mask, [masks, top_k]."""
        rows = np.flatnonzero(batch.input_ids == self._mask_id)
        most = max(item.query.settings.top_k or DEFAULT_TOP_K for item in items)
        # Scores over the vocabulary are far larger than anything else, so some masks at a time.
        step = max(1, _MOST_SCORES // self.model.vocab_size)
        parts = [
            self._best(hidden, rows[start : start + step], most)
            for start in range(0, len(rows), step)
        ]
        tokens = np.concatenate([part[0] for part in parts])
        scores = np.concatenate([part[1] for part in parts])
        results = []
        bounds = np.searchsorted(rows, batch.cu_seqlens)
        for index, item in enumerate(items):
            masks = slice(bounds[index], bounds[index + 1])
            k = item.query.settings.top_k or DEFAULT_TOP_K
            results.append((tokens[masks, :k], scores[masks, :k]))
        return results

    def _best(
        self, hidden: kernels.Tensor, rows: NDArray[np.int64], most: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """(token ids, probabilities) of the tokens `rows`, [rows, most]."""
        place = self.model.place
        logits = self.model.fill_logits(hidden, rows)
        kernels.softmax(logits, logits, place.stream)
        scores = place.empty(len(rows), most)
        tokens = place.empty(len(rows), most, dtype="int64")
        kernels.top_k(scores, tokens, logits, place.stream)
        return place.numpy(tokens).copy(), place.numpy(scores).copy()

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
