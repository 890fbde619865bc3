"""`ImageEmbedder`: vectors of images, and of texts about them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fusewire.api.arguments import listed
from fusewire.api.image_folder import Image, ImageFolder
from fusewire.api.image_texts import ImageTexts


class ImageEmbedder(ImageFolder):
    """Embeds images (JPEG, PNG, WebP) by a model folder or a Hugging Face id. Embeddings of CLIP
    and SigLIP are in the space that images share with texts (`encode_text`), those of ViT, DeiT and
    DINOv2 are the class token of the last hidden state.

    Images are preprocessed as the folder's preprocessor_config.json says. Threads may share an
    ImageEmbedder; they wait for each other.
    """

    _task = "embed"

    def encode(
        self,
        images: Image | Sequence[Image],
        *,
        normalize_embeddings: bool = False,
        batch_size: int | None = None,
    ) -> NDArray[np.float32]:
        """Embeds images, in their order.

        Args:
            images: An image or a list of them; each is a path, the bytes of a
                file, or a PIL image.
            normalize_embeddings: Scale the embeddings to length 1.
            batch_size: Maximum number of images computed together. Default: 32.

        Returns:
            float32 [images, size]; for a single image [size].

        Raises:
            InvalidInput: An image cannot be read; the message says which and why.
        """
        found = _scaled(self._results(images, batch_size), normalize_embeddings)
        return found[0] if isinstance(images, Image) else found

    def encode_text(
        self, texts: str | Sequence[str], *, normalize_embeddings: bool = False
    ) -> NDArray[np.float32]:
        """Embeds texts, in their order, to compare them with images (CLIP and SigLIP). The encoder
        of texts is loaded at the first call.

        Args:
            texts: A text or a list of them.
            normalize_embeddings: Scale the embeddings to length 1.

        Returns:
            float32 [texts, size], of the same size as those of images; for a single text [size].

        Raises:
            InvalidInput: A text is too long for the model (CLIP: 77 tokens, SigLIP: 64), or not a
                str.
            CheckpointError: The model has no encoder of texts, or the folder no tokenizer.
        """
        many = [texts] if isinstance(texts, str) else listed("texts", texts, "texts")
        with self._lock:
            found = _scaled(self._texts.encode(many), normalize_embeddings)
        return found[0] if isinstance(texts, str) else found

    @cached_property
    def _texts(self) -> ImageTexts:
        return ImageTexts(self._folder, self._model.place)


def _scaled(rows: NDArray[np.float32], normalize: bool) -> NDArray[np.float32]:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True) if normalize else rows
