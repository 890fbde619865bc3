"""The common part of the tasks of image models: encoded images, pixel values or texts in, one row
of the model's head out for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from numpy.typing import NDArray

from fusewire.models import ImageTextModel
from fusewire.models.image_text_model import ImageTextBatch
from fusewire.models.task_heads import TaskHead
from fusewire.settings import EngineSettings
from fusewire.tasks.image_reader import ImageQuery, ImageReader
from fusewire.tasks.rows import Pixels, Query
from fusewire.tasks.task import Inputs, Item, Reader, Task
from fusewire.text.tokenizer import Tokenizer
from fusewire.text.tower_tokenizer import TowerTokenizer


class ImageTask(Task):
    """A task of an image model. Raises ConfigurationError where Pillow is not installed."""

    images = True
    model: ImageTextModel

    def __init__(
        self, model: ImageTextModel, tokenizer: Tokenizer | None, settings: EngineSettings
    ) -> None:
        super().__init__(model, tokenizer, settings)
        # These import Pillow, which a server of texts does not need.
        from fusewire.images import ImageWorkers, read_preprocessing
        from fusewire.tasks.image_inputs import ImageInputs

        assert model.folder is not None
        preprocessing = read_preprocessing(model.folder, model.config["model_type"])
        self._inputs = ImageInputs(self.name, model, preprocessing)
        self._new_workers = partial(ImageWorkers, preprocessing)

    def inputs(self, max_length: int) -> Inputs:
        return self  # subclasses may override `read`

    def read(
        self,
        inputs: Mapping[str, NDArray[Any]],
        given: Iterable[str],
        settings: EngineSettings,
    ) -> Query:
        """See Inputs."""
        return ImageQuery(settings, self._inputs.rows(inputs))

    def reader(self, max_length: int, *, apart: bool = False) -> Reader:
        tower, tokenizer = self.model.texts, None
        if tower is not None:
            assert self.model.folder is not None
            tokenizer = TowerTokenizer(
                self.model.folder, max_length=tower.max_length, padded=tower.reads_padding
            )
        return ImageReader(self.model, self._new_workers(apart=apart), tokenizer)

    def pack(self, items: Sequence[Item]) -> ImageTextBatch:
        packed = [
            item.tokens.values if isinstance(item.tokens, Pixels) else item.tokens.sequence
            for item in items
        ]
        return ImageTextBatch.pack(packed, sum(len(item.tokens) for item in items))

    def head(self) -> TaskHead:
        def results(encoded: Any, batch: Any, options: Sequence[Any]) -> list[Any]:
            return list(self.model.results(encoded, batch))

        return results
