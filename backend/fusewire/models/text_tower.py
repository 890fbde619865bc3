"""The encoder of texts beside one of images: maps token ids to embeddings in the space that both
share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire.batch import Batch
from fusewire.batch import Sequence as Tokens
from fusewire.errors import InvalidInput
from fusewire.models.assemble import Weights
from fusewire.models.blueprint import Blueprint
from fusewire.models.encoder import EncoderModel
from fusewire.placement import Placement
from fusewire.weights import Checkpoint

_HEAD = "embed"
_TEXTS = 128  # texts per batch
# Old CLIP configurations have this end token id; the end token is then a text's highest id.
_HIGHEST = 2


class TextTower(EncoderModel):
    """A loaded encoder of texts that are compared with images."""

    def __init__(
        self,
        blueprint: Blueprint,
        checkpoint: Checkpoint,
        place: Placement,
        *,
        config: dict[str, Any],
        folder: Path | None,
    ) -> None:
        super().__init__(
            blueprint, checkpoint, _HEAD, place, config=config, folder=folder, id2label=[]
        )
        self._end = next(iter(blueprint.eos_token_ids), None)

    def _load_head(self, blueprint: Blueprint, head: str | None, weights: Weights) -> None:
        super()._load_head(blueprint, head, weights)
        logits = blueprint.task_heads[_HEAD].logits
        assert logits is not None
        self._scale = np.exp(weights.fp32(logits.scale.name).reshape(()))
        self._bias = weights.fp32(logits.bias.name).reshape(()) if logits.bias else None

    @property
    def reads_padding(self) -> bool:
        """Whether texts are padded to `max_length` (SigLIP); otherwise they end with an end token
        (CLIP)."""
        return self._end is None

    @property
    def end_ids(self) -> list[int]:
        """The tokens that may end a text; empty if texts are padded."""
        if self._end is None:
            return []
        return [self.vocab_size - 1] if self._end == _HIGHEST else [self._end]

    @property
    def competing(self) -> bool:
        """Whether the scores of an image are a softmax over its texts (CLIP), not a sigmoid of each
        (SigLIP)."""
        return self._bias is None

    def embeddings(self, texts: Sequence[NDArray[np.int64]]) -> NDArray[np.float32]:
        """Returns embeddings [texts, size] for the token ids [n] of each text. Raises InvalidInput
        for no text, and for a text that has no end token, is too long, or has an id outside of the
        vocabulary."""
        if not texts:
            raise InvalidInput("input_ids", "no text", "1 or more", "send one")
        found = []
        for begin in range(0, len(texts), _TEXTS):
            ended = [self.ended(ids) for ids in texts[begin : begin + _TEXTS]]
            batch = Batch.pack([Tokens(ids, np.zeros(len(ids), np.int32)) for ids in ended])
            found.append(self.logits(self.encode(batch), batch))
        return np.concatenate(found)

    def logits_per_image(
        self, images: NDArray[np.float32], texts: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Returns logits [images, texts] for embeddings [images, size] and [texts, size]."""
        texts = _unit(texts)
        # One image at a time: a product of several rows sums in another order than one of a row.
        logits = self._scale * np.stack([texts @ image for image in _unit(images)])
        return logits if self._bias is None else logits + self._bias

    def ended(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the ids of a text up to its end token: attention is causal, so no token attends
        to those behind it. Raises InvalidInput if there is none."""
        if not ids.size:
            raise InvalidInput("input_ids", "an empty text", "1 token or more", "leave it out")
        if self._end is None:
            return ids
        if self._end == _HIGHEST:
            return ids[: ids.argmax() + 1]
        ends = np.flatnonzero(ids == self._end)
        if not ends.size:
            raise InvalidInput(
                "input_ids",
                "a text without its end token",
                f"token {self._end} at its end",
                "use the tokenizer of this model",
            )
        return ids[: ends[0] + 1]


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
