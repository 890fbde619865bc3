"""One vector per image, or per text that is compared with images."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusewire.tasks.image_task import ImageTask
from fusewire.tasks.rows import Query
from fusewire.tasks.task import Reply


class EmbedImages(ImageTask):
    """`embedding` [n, size], unscaled as the model returns it, or of length 1 with `normalize`."""

    name = "embed"

    def reply(self, query: Query, results: list[list[Any]]) -> Reply:
        rows = np.stack([windows[0] for windows in results])
        if query.settings.normalize:
            rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return {"embedding": rows}
