"""`ImageClassifier`: labels of images, as in transformers' image-classification pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fusewire.api.arguments import check_top_k
from fusewire.api.classifier import Label
from fusewire.api.image_folder import Image, ImageFolder
from fusewire.tasks.classify import default_function
from fusewire.tasks.scores import sigmoid, softmax


class ImageClassifier(ImageFolder):
    """Labels images (JPEG, PNG, WebP) by a model folder or a Hugging Face id with an
    image-classification head: ViT, DeiT, DINOv2, CLIP or SigLIP. For labels of your own see
    ZeroShotImageClassifier.

    Images are preprocessed as the folder's preprocessor_config.json says. Threads may share an
    ImageClassifier; they wait for each other.
    """

    _task = "label"

    @property
    def labels(self) -> list[str]:
        """The model's labels, in the order of its logits."""
        return list(self._model.id2label)

    def __call__(
        self,
        images: Image | Sequence[Image],
        *,
        top_k: int | None = 5,
        function_to_apply: Literal["none", "sigmoid", "softmax"] | None = None,
        batch_size: int | None = None,
    ) -> list[Label] | list[list[Label]]:
        """Labels images, in their order.

        Args:
            images: An image or a list of them; each is a path, the bytes of a
                file, or a PIL image.
            top_k: Number of labels per image, best first; None: all.
            function_to_apply: The function from logits to scores: `none`, `sigmoid` or `softmax`.
                Default: chosen from the problem_type and the number of labels in config.json, as in
                transformers.
            batch_size: Maximum number of images computed together. Default: 32.

        Returns:
            A list of `{"label": …, "score": …}` for each image; for a single image its list.

        Raises:
            InvalidInput: An image cannot be read; the message says which and why.
        """
        check_top_k(top_k, "raise it, or give None for all")
        logits = self._results(images, batch_size)
        default = default_function(self._model.config.get("problem_type"), len(self.labels))
        function = function_to_apply or default
        scores = {"sigmoid": sigmoid, "softmax": softmax}.get(function, np.asarray)(logits)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
        found: list[list[Label]] = [
            [{"label": self.labels[index], "score": float(row[index])} for index in order]
            for row, order in zip(scores, best, strict=True)
        ]
        return found[0] if isinstance(images, Image) else found
