"""The models of a server: repositories are served as they are, folders and ids are imported."""

from __future__ import annotations

import logging
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from fusewire.errors import CheckpointError, ConfigurationError
from fusewire.hub import model_folder
from fusewire.serving import repository
from fusewire.serving.config import Deployment, validated
from fusewire.serving.supervisor.workplace import check_path
from fusewire.weights import no_model_in, open_folder

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Source:
    """`source`: a path, an id on Hugging Face, or NAME= and either of them; a Path is never an id.
    `name` None: the folder's. `settings` (fields of ModelSettings or GeneratorSettings) and
    `deployment` are for a folder or id; `shared` are those of them that were given for all sources.
    `revision`: that of an id."""

    source: Path | str
    name: str | None = None
    revision: str | None = None
    settings: dict[str, object] = field(default_factory=dict)
    deployment: Deployment = field(default_factory=Deployment)
    shared: frozenset[str] = frozenset()

    def overridden(self, settings: dict[str, object], deployment: dict[str, object]) -> Source:
        """Returns the source with these settings, given for all sources, in place of its own."""
        own = self.deployment.model_dump(exclude_unset=True)
        return replace(
            self,
            settings=self.settings | settings,
            deployment=validated(Deployment, own | deployment),
            shared=self.shared | settings.keys() | deployment.keys(),
        )

    def without(self, names: Set[str]) -> Source:
        """Returns the source without these settings."""
        own = self.deployment.model_dump(exclude_unset=True)
        return replace(
            self,
            settings={name: v for name, v in self.settings.items() if name not in names},
            deployment=Deployment(**{name: v for name, v in own.items() if name not in names}),
        )

    def entry(self) -> dict[str, Any]:
        """Returns the source as an entry of the configuration file."""
        own = {"name": self.name, "source": str(self.source), "revision": self.revision}
        given = {key: value for key, value in own.items() if value is not None}
        return given | self.settings | self.deployment.model_dump(exclude_unset=True)


def source_of(
    given: Source | Path | str,
    settings: dict[str, object] | None = None,
    deployment: Deployment | None = None,
) -> Source:
    """Returns a source with these settings, which are given for all sources, unless it is a
    Source."""
    if isinstance(given, Source):
        return given
    settings, deployment = settings or {}, deployment or Deployment()
    shared = frozenset(settings.keys() | deployment.model_fields_set)
    return Source(given, settings=settings, deployment=deployment, shared=shared)


class Collected(NamedTuple):
    """The repositories, and the names of the models in them."""

    repositories: list[Path]
    models: list[str]
    left_out: list[str]  # entries without weights


def collect(sources: Sequence[Source], imported: Path) -> Collected:
    """Checks the sources. Folders and ids become linked entries of the new repository `imported`,
    with their settings. Raises ConfigurationError and CheckpointError."""
    found, unused = Collected([], [], []), dict[Path, list[str]]()
    named = [_named(source) for source in sources]
    for source, (name, path) in zip(_fitting(sources, named), named, strict=True):
        if name is None:
            names, empty = repository.check(path)
            if not names and not empty:
                raise CheckpointError(f"{no_model_in(path)}, or a model repository")
            for folder in repository.unimported(path):
                _log.warning(
                    "models: got %s in %s without a config.pbtxt, which is not served; import it "
                    "from elsewhere (fusewire import), or serve it as a folder",
                    folder,
                    path,
                )
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
    if unused and not imported.is_dir():  # with folders as well, the settings may be meant for them
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


def _fitting(sources: Sequence[Source], named: Sequence[tuple[str | None, Path]]) -> list[Source]:
    """Returns each source without the settings given for all of them that its model does not use
    but another one does. A setting that no model uses stays, and is refused."""
    useless = {
        place: repository.without_use(path, source.settings.get("task"), source.shared)
        for place, (source, (name, path)) in enumerate(zip(sources, named, strict=True))
        if name is not None
    }
    of_none = frozenset.intersection(*useless.values()) if useless else frozenset()
    return [
        source.without(useless.get(place, of_none) - of_none)
        for place, source in enumerate(sources)
    ]


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
    """Returns (name, model folder), or (None, repository)."""
    model, name = source.source, source.name
    if name is None and "=" in str(model) and not Path(model).exists():
        name, _, model = str(model).partition("=")
    if name is not None:
        name = repository.checked_name(name)
        return name, open_folder(model_folder(model, revision=source.revision))
    folder = model_folder(model, revision=source.revision)
    if repository.is_checkpoint(folder):
        return repository.default_name(folder), folder
    open_folder(folder)  # raises for a file
    return None, folder
