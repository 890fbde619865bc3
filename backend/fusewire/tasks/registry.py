"""Every task, by name."""

from __future__ import annotations

from fusewire.errors import ConfigurationError
from fusewire.tasks.answer import Answer
from fusewire.tasks.classify import Classify
from fusewire.tasks.embed import Embed
from fusewire.tasks.embed_images import EmbedImages
from fusewire.tasks.fill import Fill
from fusewire.tasks.hidden import Hidden
from fusewire.tasks.label import Label
from fusewire.tasks.tag import Tag
from fusewire.tasks.task import Task

TASK_TYPES: dict[str, type[Task]] = {
    task.name: task for task in (Embed, Hidden, Classify, Tag, Answer, Fill)
}
IMAGE_TASK_TYPES: dict[str, type[Task]] = {task.name: task for task in (Label, EmbedImages)}


def task_type(task: str, *, images: bool) -> type[Task]:
    """Returns the class of a task for texts, or for `images`. Raises ConfigurationError for an
    unknown task."""
    types = IMAGE_TASK_TYPES if images else TASK_TYPES
    if task not in types:
        raise ConfigurationError(
            f"task: got {task!r} for a model of {'images' if images else 'texts'}, wanted one of "
            f"{', '.join(types)}; choose one of these"
        )
    return types[task]
