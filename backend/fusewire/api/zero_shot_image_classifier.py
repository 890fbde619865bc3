"""`ZeroShotImageClassifier`: labels of images among labels that the caller names, as in
transformers' zero-shot-image-classification pipeline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fusewire.api.arguments import check_top_k
from fusewire.api.classifier import Label
from fusewire.api.image_folder import Image, ImageFolder
from fusewire.api.image_texts import ImageTexts
from fusewire.tasks.label_sentences import TEMPLATE, sentences
from fusewire.tasks.scores import sigmoid, softmax


class ZeroShotImageClassifier(ImageFolder):
    """Labels images (JPEG, PNG, WebP) with labels of your own, by a model folder or a Hugging Face
    id of a model that compares images with texts: CLIP or SigLIP.

    Each label is put into a template, and its embedding is compared with that of the image. The
    scores of CLIP add up to 1 over the labels; a score of SigLIP is the probability of that label
    alone. Images are preprocessed as the folder's preprocessor_config.json says. Threads may share
    a ZeroShotImageClassifier; they wait for each other.
    """

    _task = "embed"

    def _loaded(self) -> None:
        self._texts = ImageTexts(self._folder, self._model.place)
        none: list[str] = []
        self._labels_before = none, np.empty((0, 0), np.float32)

    def __call__(
        self,
        images: Image | Sequence[Image],
        candidate_labels: Sequence[str],
        *,
        hypothesis_template: str = TEMPLATE,
        top_k: int | None = None,
        batch_size: int | None = None,
    ) -> list[Label] | list[list[Label]]:
        """Labels images, in their order.

        Args:
            images: An image or a list of them; each is a path, the bytes of a file, or a PIL image.
            candidate_labels: The labels to choose from; any number of them. Their embeddings are
                cached until a call with other labels.
            hypothesis_template: The sentence that each label is put into, in place of `{}`.
            top_k: Number of labels per image, best first; None: all.
            batch_size: Maximum number of images computed together. Default: 32.

        Returns:
            A list of `{"label": …, "score": …}` for each image, best first; for a single image its
            list.

        Raises:
            InvalidInput: There is no label, one is empty or too long, the template has no `{}`, or
                an image cannot be read; the message says which and why.
        """
        check_top_k(top_k, "raise it, or give None for all")
        texts = sentences(candidate_labels, hypothesis_template)
        with self._lock:
            if self._labels_before[0] != texts:
                self._labels_before = texts, self._texts.encode(texts)
            of_texts = self._labels_before[1]
        of_images = self._results(images, batch_size)
        tower = self._texts.tower
        logits = tower.logits_per_image(of_images, of_texts)
        scores = softmax(logits) if tower.competing else sigmoid(logits)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
        found: list[list[Label]] = [
            [{"label": candidate_labels[index], "score": float(row[index])} for index in order]
            for row, order in zip(scores, best, strict=True)
        ]
        return found[0] if isinstance(images, Image) else found
