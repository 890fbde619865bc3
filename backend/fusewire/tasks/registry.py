"""Every task, by name."""

from __future__ import annotations

from fusewire.tasks.answer import Answer
from fusewire.tasks.classify import Classify
from fusewire.tasks.embed import Embed
from fusewire.tasks.fill import Fill
from fusewire.tasks.hidden import Hidden
from fusewire.tasks.tag import Tag
from fusewire.tasks.task import Task

TASK_TYPES: dict[str, type[Task]] = {
    task.name: task for task in (Embed, Hidden, Classify, Tag, Answer, Fill)
}
