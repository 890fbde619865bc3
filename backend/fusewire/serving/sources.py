"""What a server is asked to serve: repositories as they are; folders and ids, imported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fusewire.errors import CheckpointError, ConfigurationError
from fusewire.hub import model_folder
from fusewire.serving import repository
from fusewire.serving.config import Deployment
from fusewire.weights import no_model_in, open_folder


class Collected(NamedTuple):
    """The repositories, and the models in them by name."""

    repositories: list[Path]
    models: list[str]
    left_out: list[str]  # entries without weights


def collect(
    sources: Sequence[Path | str],
    imported: Path,
    model_settings: dict[str, object],
    deployment: Deployment,
) -> Collected:
    """Checks the sources; folders and ids become linked entries of the new repository `imported`,
    with these settings. ConfigurationError, CheckpointError."""
    found = Collected([], [], [])
    for source in sources:
        name, path = _named(source)
        if name is None:
            names, empty = repository.check(path)
            if not names and not empty:
                raise CheckpointError(f"{no_model_in(path)}, or a model repository")
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
            _import(source, path, imported, name, model_settings, deployment)
    if imported.is_dir():
        repository.check(imported)
        found.repositories.append(imported)
    if not found.models:
        raise ConfigurationError(
            "models: found none with weights to serve; give a Hugging Face model folder, or "
            "import one with `fusewire import FOLDER`"
        )
    return found


def _import(
    source: Path | str,
    folder: Path,
    imported: Path,
    name: str,
    model_settings: dict[str, object],
    deployment: Deployment,
) -> None:
    imported.mkdir(exist_ok=True)
    try:
        repository.import_folder(
            folder, imported, name=name, settings=model_settings, deployment=deployment, link=True
        )
    except CheckpointError as error:
        shown = str(error).removeprefix(f"{folder.resolve().name}: ")
        raise CheckpointError(f"{source}: {shown}") from None


def _named(source: Path | str) -> tuple[str | None, Path]:
    """(name, model folder), or (None, repository)."""
    text = str(source)
    if "=" in text and not Path(text).exists():
        name, _, model = text.partition("=")
        return repository.checked_name(name), open_folder(model_folder(model))
    folder = model_folder(source)
    if repository.is_checkpoint(folder):
        return repository.default_name(folder), folder
    open_folder(folder)  # says that it is a file, if it is
    return None, folder
