"""Texts that are compared with images: a folder's text tower with its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fusewire.errors import InvalidInput, type_name
from fusewire.models import load_text_tower
from fusewire.placement import Placement
from fusewire.text.tower_tokenizer import TowerTokenizer


class ImageTexts:
    """Embeds the texts of a model of images and texts. Serves one caller at a time."""

    def __init__(self, folder: Path, place: Placement) -> None:
        self.tower = load_text_tower(folder, place)
        self._tokenizer = TowerTokenizer(
            folder, max_length=self.tower.max_length, padded=self.tower.reads_padding
        )

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Returns embeddings [texts, size]. Raises InvalidInput for no text, and for one that is
        not a str or is too long."""
        if not texts:
            raise InvalidInput("texts", "none", "1 or more", "give a text")
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                got = f"{type_name(text)} at {index}"
                raise InvalidInput("texts", got, "str", "give texts, or convert them")
        return self.tower.embeddings(self._tokenizer.ids(texts))
