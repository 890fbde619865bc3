"""What a server serves: repositories as they are; folders and ids, imported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from fusewire.errors import CheckpointError, ConfigurationError
from fusewire.hub import model_folder
from fusewire.serving import repository
from fusewire.serving.config import Deployment, validated
from fusewire.serving.supervisor.workplace import check_path
from fusewire.weights import no_model_in, open_folder


@dataclass(frozen=True)
class Source:
    """`source`: a path, an id on Hugging Face, or NAME= and either; a Path is never an id. `name`
    None: the folder's. `settings` (fields of ModelSettings or GeneratorSettings) and `deployment`
    are those of a folder or id; `revision`: of an id."""

    source: Path | str
    name: str | None = None
    revision: str | None = None
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
        own = {"name": self.name, "source": str(self.source), "revision": self.revision}
        given = {key: value for key, value in own.items() if value is not None}
        return given | self.settings | self.deployment.model_dump(exclude_unset=True)


def source_of(
    given: Source | Path | str,
    settings: dict[str, object] | None = None,
    deployment: Deployment | None = None,
) -> Source:
    """A source with these settings, unless it has its own."""
    if isinstance(given, Source):
        return given
    return Source(given, settings=settings or {}, deployment=deployment or Deployment())


class Collected(NamedTuple):
    """The repositories, and the models in them by name."""

    repositories: list[Path]
    models: list[str]
    left_out: list[str]  # entries without weights


def collect(sources: Sequence[Source], imported: Path) -> Collected:
    """Checks the sources; folders and ids become linked entries of the new repository `imported`,
    with their settings. ConfigurationError, CheckpointError."""
    found, unused = Collected([], [], []), dict[Path, list[str]]()
    for source in sources:
        name, path = _named(source)
        if name is None:
            names, empty = repository.check(path)
            if not names and not empty:
                raise CheckpointError(f"{no_model_in(path)}, or a model repository")
            check_path("model repository", path.resolve())
            if given := source.settings | source.deployment.model_dump(exclude_unset=True):
                unused[path] = [*given]
            found.repositories.append(path.resolve())
            found.left_out.extend(empty)
        else:
            names = [name]
        for model in names:
            if model in found.models:
                raise ConfigurationError(
                    f"models: got the name {model} twice, wanted each once; rename with NAME=FOLDER"
                )
        found.models.extend(names)
        if name is not None:
            _import(source, path, imported, name)
    if unused and not imported.is_dir():  # beside folders, which have them, they may be meant so
        path, settings = next(iter(unused.items()))
        raise ConfigurationError(
            f"{', '.join(settings)}: got settings for the repository {path}, wanted those of a "
            "model folder; set them in each model's config.pbtxt"
        )
    if imported.is_dir():
        repository.check(imported)
        found.repositories.append(imported)
    if not found.models:
        raise ConfigurationError(
            "models: found none with weights to serve; give a Hugging Face model folder, or "
            "import one with `fusewire import FOLDER`"
        )
    return found


def _import(source: Source, folder: Path, imported: Path, name: str) -> None:
    imported.mkdir(exist_ok=True)
    try:
        repository.import_folder(
            folder,
            imported,
            name=name,
            settings=source.settings,
            deployment=source.deployment,
            link=True,
        )
    except CheckpointError as error:
        shown = str(error).removeprefix(f"{folder.resolve().name}: ")
        raise CheckpointError(f"{source.source}: {shown}") from None


def _named(source: Source) -> tuple[str | None, Path]:
    """(name, model folder), or (None, repository)."""
    model, name = source.source, source.name
    if name is None and "=" in str(model) and not Path(model).exists():
        name, _, model = str(model).partition("=")
    if name is not None:
        name = repository.checked_name(name)
        return name, open_folder(model_folder(model, revision=source.revision))
    folder = model_folder(model, revision=source.revision)
    if repository.is_checkpoint(folder):
        return repository.default_name(folder), folder
    open_folder(folder)  # says that it is a file, if it is
    return None, folder
