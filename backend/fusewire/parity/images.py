"""Compares encoders of images with their reference on random images, and encoders of texts on
random texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire.models import ImageTextModel, load_image_text_model
from fusewire.models.image_text_model import ImageTextBatch
from fusewire.parity.agreement import Results
from fusewire.placement import Placement

_CLASSES = {"clip_vision_model": "CLIPVisionModelWithProjection"}


@dataclass(frozen=True)
class ComparedImages:
    """A folder opened for a task, and random input."""

    model: ImageTextModel
    folder: Path
    task: str
    images: list[NDArray[np.float32]]  # of the trained size
    texts: list[NDArray[np.int64]]  # one per image, for a model that reads texts

    @staticmethod
    def random(
        folder: Path, task: str, place: Placement, count: int, random: np.random.Generator
    ) -> ComparedImages:
        """Builds `count` random images, and as many texts if the task needs them."""
        model = load_image_text_model(folder, task, place)
        size = (3, *model.image_size)
        images = [random.standard_normal(size, np.float32) for _ in range(count)]
        texts = [] if model.texts is None else list(_texts(model.texts, count, random))
        return ComparedImages(model, folder, task, images, texts)

    following = None
    continues_texts = False

    @property
    def place(self) -> Placement:
        return self.model.place

    @property
    def sequences(self) -> int:
        return len(self.images)

    @property
    def tokens(self) -> int:
        each = self.model.tokens_of(*self.model.image_size)
        return each * len(self.images) + sum(len(ids) for ids in self.texts)

    @property
    def transformers_class(self) -> tuple[str, bool]:
        """The class that opens the folder, and False: the whole model is compared."""
        if self._labels:
            return "AutoModelForImageClassification", False
        return _CLASSES.get(self.model.config["model_type"], "AutoModel"), False

    def ours(self) -> Iterator[Results]:
        """Returns our results for each image and its text, all computed in one batch."""
        return self._results(self.model)

    def ours_at(self, place: Placement) -> Iterator[Results]:
        """Returns the results of the model in another placement."""
        return self._results(load_image_text_model(self.folder, self.task, place))

    def theirs(self, model: Any) -> Iterator[Results]:
        """Yields the results of transformers' model, one image at a time."""
        import torch

        for index, image in enumerate(self.images):
            pixels = torch.from_numpy(image)[None].to(model.dtype)
            name, features = self._of_images(model, pixels)
            one = {name: features[0].float().numpy()}
            if self.texts:
                ids = torch.from_numpy(self.texts[index])[None]
                one["text_embeds"] = model.get_text_features(ids).pooler_output[0].float().numpy()
            yield one

    @property
    def _labels(self) -> bool:
        """Whether the results are logits of the model's own labels."""
        return self.task == "label" and self.model.texts is None

    def _results(self, model: ImageTextModel) -> Iterator[Results]:
        tokens = model.tokens_of(*model.image_size) * len(self.images)
        batch = ImageTextBatch.pack(self.images, tokens)
        rows = model.results(model.encode(batch), batch)
        found: list[Results] = [{"logits" if self._labels else "image_embeds": row} for row in rows]
        if model.texts is not None:
            embeddings = model.texts.embeddings(self.texts)
            for one, embedding in zip(found, embeddings, strict=True):
                one["text_embeds"] = embedding
        return iter(found)

    def _of_images(self, model: Any, pixels: Any) -> tuple[str, Any]:
        if self._labels:
            return "logits", model(pixels).logits
        if hasattr(model, "get_image_features"):
            return "image_embeds", model.get_image_features(pixels).pooler_output
        given = model(pixels)
        if hasattr(given, "image_embeds"):
            return "image_embeds", given.image_embeds
        pooled = self.model.config["model_type"] == "siglip_vision_model"
        features = given.pooler_output if pooled else given.last_hidden_state[:, 0]
        return "image_embeds", features


def _texts(tower: Any, count: int, random: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Yields random texts of every length that the model reads, with its end token last."""
    longest = tower.max_length
    for index in range(count):
        length = longest if tower.reads_padding else 2 + index * (longest - 2) // max(1, count - 1)
        ids = random.integers(0, tower.vocab_size, length)
        if not tower.reads_padding:
            ids[:-1][np.isin(ids[:-1], tower.end_ids)] = 0
            ids[-1] = tower.end_ids[-1]
        yield ids
