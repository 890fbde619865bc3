"""A model is a folder, or a Hugging Face id whose files are fetched into the standard cache.

huggingface_hub does the work, so its environment variables hold: HF_HOME and HF_HUB_CACHE (where
the cache is), HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE. Only files that are read are fetched: no
pickles, no Python, no weights of other frameworks.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path

from fusewire.errors import CheckpointError, ConfigurationError
from fusewire.hub_errors import translated
from fusewire.weights import read_json
from fusewire.weights.formats import CONFIG, INDEX, WEIGHTS, not_a_model

_ID = re.compile(r"[A-Za-z0-9_][\w.-]*(/[\w.-]+)?", re.ASCII)
_FILES = (
    CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    WEIGHTS,
    INDEX,
    "[0-9]*_*/config.json",  # modules of sentence-transformers: 1_Pooling/config.json
)


def model_folder(model: str | Path, *, revision: str | None = None) -> Path:
    """The folder of a model: `model` itself where that path exists; of an id on Hugging Face
    (`name`, `owner/name`, `owner/name@revision`) the snapshot in the cache, fetched where it is
    not there yet. A Path is never an id.

    `revision`: a branch, tag or commit; all files are of the one commit that it means. Raises
    CheckpointError for a path or a model that does not exist, ConfigurationError where the model
    cannot be fetched: no huggingface_hub, no network, no access, no room.
    """
    if os.path.exists(model):
        if revision is not None:
            raise ConfigurationError(
                f"revision: got {revision!r} for the folder {model}, wanted none; leave it out, or "
                "give the model's id"
            )
        return Path(model)
    name, at, tail = str(model).partition("@")
    if isinstance(model, Path) or not _ID.fullmatch(name):
        raise CheckpointError(
            f"{model}: no such folder; give the path of a Hugging Face model folder, or a model's "
            "id on Hugging Face as owner/name"
        )
    if at and (revision is not None or not tail):
        raise ConfigurationError(
            f"revision: got {str(model)!r} and {revision!r}, wanted one branch, tag or commit; "
            "give it behind the @ or as `revision`"
        )
    return _snapshot(name, tail or revision)


def _snapshot(model: str, revision: str | None) -> Path:
    try:
        from huggingface_hub import constants, list_repo_files, snapshot_download
    except ImportError:
        raise ConfigurationError(
            f"{model}: no such folder, and as a Hugging Face id it needs the package "
            "huggingface_hub; give a folder's path, or pip install 'fusewire[hub]'"
        ) from None

    def fetched(revision: str | None, files: Sequence[str]) -> Path:
        with translated(model, revision, files):
            found = snapshot_download(
                model,
                revision=revision,
                allow_patterns=list(files),
                local_files_only=constants.HF_HUB_OFFLINE,
            )
            return Path(found)

    folder = fetched(revision, _FILES)
    weights = folder / WEIGHTS, folder / INDEX
    if not (folder / CONFIG).exists() or not any(path.exists() for path in weights):
        with translated(model, revision, _FILES):
            names = list_repo_files(model, revision=folder.name)
        raise not_a_model(model, names)
    if shards := _shards_missing(folder):
        fetched(folder.name, shards)
    return folder


def _shards_missing(folder: Path) -> list[str]:
    """What the index names and the folder lacks, as patterns."""
    if (folder / WEIGHTS).exists():
        return []
    weight_map = (read_json(folder, INDEX) or {}).get("weight_map")
    names = {*weight_map.values()} if isinstance(weight_map, dict) else set()
    shards = [each for each in names if isinstance(each, str) and each.endswith(".safetensors")]
    return [glob.escape(name) for name in sorted(shards) if not (folder / name).exists()]
