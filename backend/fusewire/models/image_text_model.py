"""An encoder of images and the encoder of the texts they are compared with, as one model that
computes micro-batches of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.batch import Batch
from fusewire.batch import Sequence as TokenSequence
from fusewire.models.image_model import EncodedImages, ImageModel
from fusewire.models.text_tower import TextTower
from fusewire.placement import Placement

Pixels = NDArray[np.float32]  # [3, height, width]


@dataclass(frozen=True, eq=False)
class ImageTextBatch:
    """The images and texts of one micro-batch."""

    images: list[Pixels]
    texts: Batch | None
    of_texts: NDArray[np.bool_]  # [images + texts], in the order of the micro-batch
    tokens: int  # of images and texts together

    @staticmethod
    def pack(items: Sequence[Pixels | TokenSequence], tokens: int) -> ImageTextBatch:
        """`tokens`: the number of tokens of all items together."""
        texts = [item for item in items if isinstance(item, TokenSequence)]
        return ImageTextBatch(
            [item for item in items if not isinstance(item, TokenSequence)],
            Batch.pack(texts) if texts else None,
            np.array([isinstance(item, TokenSequence) for item in items]),
            tokens,
        )


@dataclass(frozen=True, eq=False)
class EncodedImagesAndTexts:
    """The hidden states of the images and of the texts."""

    images: EncodedImages | None
    texts: kernels.Tensor | None


class ImageTextModel:
    """The model that an encoder engine serves for a folder of images. Like all models it serves one
    caller at a time."""

    def __init__(
        self, images: ImageModel, texts: TextTower | None, image_size: tuple[int, int]
    ) -> None:
        """`texts`: None if no texts are to be encoded. `image_size`: (height, width) of the images
        that the model was trained with."""
        self.images = images
        self.texts = texts
        self.image_size = image_size
        self.max_length = texts.max_length if texts else 0  # tokens of a text
        self.computed_tokens = 0  # rows of the last `encode`

    @property
    def place(self) -> Placement:
        return self.images.place

    @property
    def config(self) -> dict[str, Any]:
        return self.images.config

    @property
    def folder(self) -> Path | None:
        return self.images.folder

    @property
    def id2label(self) -> list[str]:
        return self.images.id2label

    @property
    def replay_counts(self) -> tuple[int, int]:
        """As EncoderModel's, for images and texts together."""
        counts = [model.replay_counts for model in (self.images, self.texts) if model is not None]
        hits, misses = zip(*counts, strict=True)
        return sum(hits), sum(misses)

    def tokens_of(self, height: int, width: int) -> int:
        """Returns the number of tokens of an image of this size in pixels. Raises InvalidInput if
        it has too many patches or none."""
        return self.images.tokens(np.broadcast_to(np.float32(), (3, height, width)))

    def tune(self, max_tokens: int) -> None:
        """As EncoderModel's, for images and for texts."""
        self.images.tune(max_tokens)
        if self.texts is not None:
            self.texts.tune(max_tokens)

    def record_forwards(self, max_tokens: int) -> None:
        """As EncoderModel's, for images and for texts."""
        self.images.record_forwards(max_tokens)
        if self.texts is not None:
            self.texts.record_forwards(max_tokens)

    def encode(self, batch: ImageTextBatch) -> EncodedImagesAndTexts:
        """Returns hidden states, on the model's device. Raises InvalidInput as ImageModel and
        TextTower do."""
        images = self.images.encode(batch.images) if batch.images else None
        texts = None
        self.computed_tokens = batch.tokens
        if batch.texts is not None:
            assert self.texts is not None
            texts = self.texts.encode(batch.texts)
            self.computed_tokens += self.texts.computed_tokens - batch.texts.tokens
        return EncodedImagesAndTexts(images, texts)

    def results(
        self, encoded: EncodedImagesAndTexts, batch: ImageTextBatch
    ) -> list[NDArray[np.float32]]:
        """Returns the head's result for each image and text, in order: logits [labels], or an
        embedding [size]."""
        images = iter(self.images.results(encoded.images) if encoded.images else ())
        texts = iter(())
        if encoded.texts is not None:
            assert self.texts is not None
            assert batch.texts is not None
            texts = iter(self.texts.logits(encoded.texts, batch.texts).copy())
        return [next(texts if of_text else images) for of_text in batch.of_texts]
