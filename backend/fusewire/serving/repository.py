"""Model repositories: Hugging Face folders become entries that Triton can load.

An entry is `NAME/config.pbtxt`, `NAME/warmup/` (the warm-up request) and `NAME/VERSION/`, which is
the checkpoint folder. It is copied (only the files that serving reads, links resolved, none from
outside the folder), or the version folder is a symbolic link to the checkpoint folder. With a link
nothing is duplicated, and the rule that no file may lead out of the folder still applies inside it.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fusewire import devices
from fusewire.errors import CheckpointError, ConfigurationError
from fusewire.models import (
    blueprint_of,
    check_folder,
    model_kind,
    read_config,
    reads_images,
    tasks_of,
)
from fusewire.precision import Precision, check_kv_cache_dtype, check_skipped
from fusewire.serving import model_config
from fusewire.serving.config import (
    BATCHING,
    NAME_PATTERN,
    Deployment,
    GeneratorSettings,
    ModelSettings,
    has_use_for,
    model_settings,
)
from fusewire.serving.probe import WARMUP
from fusewire.serving.served_files import descriptions, served_files
from fusewire.serving.version_folder import (
    Progress,
    copy_files,
    occupied,
    removed_on_error,
    replace_version,
)
from fusewire.settings import check_max_length
from fusewire.tasks.contract import GENERATE, GENERATING, contract
from fusewire.tasks.parameters import check_settings
from fusewire.text.tokenizer_files import WANTED, tokenizer_file
from fusewire.weights import open_folder
from fusewire.weights.quantized.methods import quant_method
from fusewire.weights.tensorflow.conversion import converted, tensorflow_weights_in

_log = logging.getLogger(__name__)

CONFIG = "config.pbtxt"


def _silent(name: str, done: int, total: int) -> None:
    pass


def import_folder(
    folder: Path | str,
    repository: Path | str,
    *,
    name: str | None = None,
    settings: dict[str, object] | None = None,
    deployment: Deployment | None = None,
    link: bool = False,
    replace: bool = False,
    progress: Progress = _silent,
) -> Path:
    """Writes the entry of a checkpoint folder into a repository and returns its path.

    `name`: default is the folder's. `settings`: fields of ModelSettings, or of GeneratorSettings
    for `generate`; the task may be left out. An existing version is a ConfigurationError unless
    `replace`. The device need not be on this machine: `check` looks for it before a server starts.
    """
    # These import tokenizers and jinja2, which the supervisor never loads.
    from fusewire.serving.folder_probe import probe
    from fusewire.tasks.check_files import check_files, vocab_size_of
    from fusewire.text.unknown_tokens import warn_of_unknown_tokens

    deployment = deployment or Deployment()
    source = open_folder(folder)
    name = default_name(source) if name is None else checked_name(name)
    if (weights := tensorflow_weights_in(source)) is not None:
        if link:
            raise CheckpointError(
                f"{source.name}: got {weights} (TensorFlow weights), wanted safetensors to link or "
                "to serve in place; run `fusewire import FOLDER`, and serve the repository"
            )
        beside = Path(repository)
        with (
            removed_on_error(beside),
            converted(source, weights, descriptions(source), beside, progress) as folder,
        ):
            return import_folder(
                folder,
                repository,
                name=name,
                settings=settings,
                deployment=deployment,
                replace=replace,
                progress=progress,
            )
    config = read_config(source)
    chosen = dict(settings or {})
    chosen.setdefault("task", None)
    if chosen["task"] is None:
        chosen["task"] = tasks_of(config)
    checked = model_settings(chosen)
    contract(checked.task)
    check_skipped(checked.quantize_skipped, check_folder(source, checked.task))
    images = reads_images(config)
    if isinstance(checked, ModelSettings):
        try:
            check_settings(checked, checked.task, images=images)
        except ConfigurationError as error:
            raise ConfigurationError(f"{name}: {error}") from None
    if not images:
        check_max_length(checked.max_length, blueprint_of(config, checked.task).max_length)
    tokenizer = check_files(source, config, checked.task)
    if tokenizer is not None:
        warn_of_unknown_tokens(name, tokenizer, vocab_size_of(config, checked.task))
    elif not images:
        _log.warning(
            "%s: has no tokenizer, so it takes input_ids and no texts; wanted %s; to fix it, call "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of transformers",
            name,
            WANTED,
        )
    if checked.task in GENERATING:
        _check_batching(deployment)
    gpus = devices.gpus_of(deployment.device)
    where = "a GPU" if gpus else "cpu"
    precision = Precision.of(where, checked.dtype, checked.quantize)
    if isinstance(checked, GeneratorSettings):
        check_kv_cache_dtype(where, precision.dtype, checked.kv_cache_dtype)
    files = served_files(source, checked.task)
    question = probe(source, checked)

    entry = Path(repository) / name
    version = entry / str(deployment.version)
    with removed_on_error(entry):
        if not replace and occupied(version):
            raise ConfigurationError(
                f"{name}: version {deployment.version} exists already, wanted a new one; give "
                "another --version, or --replace"
            )
        entry.mkdir(parents=True, exist_ok=True)
        if link:
            replace_version(
                version, lambda staged: staged.symlink_to(source, target_is_directory=True)
            )
        else:
            replace_version(version, lambda staged: copy_files(files, staged, progress))
        warmup = entry / WARMUP
        if question:
            warmup.mkdir(exist_ok=True)
            for tensor in question:
                (warmup / tensor.name).write_bytes(tensor.raw())
        decoder = model_kind(config) == "decoder"
        message = model_config.model_config(
            name, checked, deployment, question, images=images, decoder=decoder
        )
        _warn_of_changes(entry, message)
        model_config.write(message, entry / CONFIG)
    return entry


def _warn_of_changes(entry: Path, message: Any) -> None:
    """Warns of settings of an entry's versions that `message` replaces by others."""
    if not (entry / CONFIG).is_file():
        return
    with suppress(ConfigurationError):  # a damaged file is replaced without a word
        if changed := model_config.changes(model_config.read(entry / CONFIG), message):
            _log.warning(
                "%s: config.pbtxt, which holds for all versions, is written anew: %s; to keep what "
                "it had, import again with --replace and those settings",
                entry.name,
                ", ".join(changed),
            )


def checked_name(name: str) -> str:
    """Returns the name. Raises ConfigurationError when it is not valid for a model."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise ConfigurationError(
            f"name: got {name[:80]!r}, wanted letters, digits, '.', '_' and '-', not beginning "
            "with '.' or '-'; give another (import: --name, serve: NAME=FOLDER)"
        )
    return name


def default_name(folder: Path) -> str:
    """Returns the default name of a model: that of its folder, or of a link to it; for Hugging Face
    the last part of its id."""
    named = Path(os.path.abspath(folder))
    if named.parent.name == "snapshots":  # in the cache: models--OWNER--NAME/snapshots/COMMIT
        return checked_name(named.parent.parent.name.split("--")[-1])
    return checked_name(named.name)


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is a model to import rather than a repository of models."""
    return (path / "config.json").exists()


def entries(repository: Path) -> Iterator[Path]:
    """Yields the models of a repository in the order of their names."""
    if not repository.is_dir():
        raise ConfigurationError(
            f"{repository}: no such folder; give a model repository or a Hugging Face model folder"
        )
    for entry in sorted(repository.iterdir()):
        if (entry / CONFIG).is_file():
            yield entry


def unimported(repository: Path) -> list[str]:
    """Returns the folders of a repository that have models but no config.pbtxt, and so are not
    served."""
    found = []
    for path in sorted(repository.iterdir()):
        with suppress(OSError):  # no permission to read it
            model = path.is_dir() and (is_checkpoint(path) or bool(versions(path)))
            if model and not (path / CONFIG).is_file():
                found.append(path.name)
    return found


def entry(repositories: Sequence[Path], model: str) -> Path:
    """Returns the repository entry of a model."""
    for path in repositories:
        if (path / model / CONFIG).is_file():
            return path / model
    raise ConfigurationError(f"{model}: in none of the repositories; import it first")


def versions(entry: Path) -> list[Path]:
    """Returns the version folders of an entry that have a model, oldest first."""
    folders = [path for path in entry.iterdir() if path.name.isdigit() and is_checkpoint(path)]
    return sorted(folders, key=lambda path: int(path.name))


def quantized_as(folder: Path) -> str | None:
    """Returns the quant_method of a model folder, or None where its weights are not quantised."""
    return quant_method(read_config(folder))


def served_version(entry: Path) -> Path | None:
    """Returns the version folder that answers requests without a version: the newest one that the
    version policy selects. None without one."""
    folders = {int(path.name): path for path in versions(entry)}
    chosen = model_config.chosen_versions(model_config.read(entry / CONFIG), folders)
    return folders[max(chosen)] if chosen else None


def takes_ids_only(entry: Path) -> bool:
    """Whether the served model is one of fusewire and has no tokenizer."""
    if model_config.read(entry / CONFIG).backend != model_config.BACKEND:
        return False
    folder = served_version(entry)
    if folder is None or reads_images(read_config(folder)):
        return False
    return tokenizer_file(folder) is None


def check(repository: Path) -> tuple[list[str], list[str]]:
    """Checks the entries of a repository. Returns the names of those that can be loaded, and of
    those of fusewire without weights (model_repository/ is committed without them)."""
    names, empty = [], []
    for entry in entries(repository):
        checked_name(entry.name)
        config = model_config.read(entry / CONFIG)
        if config.backend == model_config.BACKEND:
            try:
                model_config.check(config, entry.name)
            except ConfigurationError as error:
                named = str(error).startswith(f"{entry.name}: ")
                raise ConfigurationError(f"{'' if named else f'{entry.name}: '}{error}") from None
            if not versions(entry):
                empty.append(entry.name)
                continue
        names.append(entry.name)
    return names, empty


def without_use(folder: Path, task: object, settings: frozenset[str]) -> frozenset[str]:
    """Returns those of these settings that a model folder does not use. `task` None: the folder's
    task."""
    try:
        config = read_config(folder)
        does = tasks_of(config) if task is None else str(task)
    except CheckpointError:  # it is refused when it is imported
        return settings
    images = reads_images(config)
    return frozenset(each for each in settings if not has_use_for(does, each, images=images))


def _check_batching(deployment: Deployment) -> None:
    for name in BATCHING:
        if name in deployment.model_fields_set:
            raise ConfigurationError(
                f"{name}: got {getattr(deployment, name)} for the task {GENERATE}, wanted none, as "
                "its steps take requests at any time; remove it, or set max_sequences or "
                "max_batch_tokens"
            )
