"""What `serve` is given: a model repository or a model folder, and how a folder is served."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fusewire.serving.config import Deployment, validated


@dataclass(frozen=True)
class Source:
    """`name` None: the folder's, or `source` is NAME=FOLDER or a model repository. `settings`, of
    fields of ModelSettings or GeneratorSettings, and `deployment` are those of a folder."""

    source: str
    name: str | None = None
    settings: dict[str, object] = field(default_factory=dict)
    deployment: Deployment = field(default_factory=Deployment)

    def overridden(self, settings: dict[str, object], deployment: dict[str, object]) -> Source:
        """With these settings in place of its own."""
        own = self.deployment.model_dump(exclude_unset=True)
        return replace(
            self,
            settings=self.settings | settings,
            deployment=validated(Deployment, own | deployment),
        )

    def entry(self) -> dict[str, Any]:
        """As the configuration file has it."""
        named = {} if self.name is None else {"name": self.name}
        values = self.settings | self.deployment.model_dump(exclude_unset=True)
        return {**named, "source": self.source, **values}


def source_of(
    given: Source | Path | str,
    settings: dict[str, object] | None = None,
    deployment: Deployment | None = None,
) -> Source:
    """A source with these settings, unless it has its own."""
    if isinstance(given, Source):
        return given
    return Source(str(given), settings=settings or {}, deployment=deployment or Deployment())
