"""A model is a folder, or a Hugging Face id whose files are downloaded into the standard cache.

huggingface_hub downloads, so its environment variables apply: HF_HOME and HF_HUB_CACHE (location of
the cache), HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE. Only files that are read are downloaded: no
pickles, no Python, no weights of other frameworks.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path

from fusewire.errors import CheckpointError, ConfigurationError, type_name
from fusewire.hub_errors import translated
from fusewire.models import read_config
from fusewire.models.registry import check_config
from fusewire.weights import read_json
from fusewire.weights.formats import CONFIG, INDEX, WEIGHTS, not_a_model

_ID = re.compile(r"[A-Za-z0-9_][\w.-]*(/[\w.-]+)?", re.ASCII)
_REVISION = re.compile(r"\w[\w./-]*", re.ASCII)
# All files that are read, except for the model's weights. In these patterns * also matches /.
DESCRIPTIONS = (
    CONFIG,
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "sentencepiece.bpe.model",
    "source.spm",
    "spiece.model",
    "target.spm",
    "target_vocab.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_*_config.json",
    INDEX,
    "[0-9]*_*/config.json",  # modules of sentence-transformers: 1_Pooling/config.json
    "[0-9]*_Dense/model.safetensors",  # small compared with the model's weights
)


def model_folder(model: str | Path, *, revision: str | None = None) -> Path:
    """Returns the folder of a model: `model` itself if that path exists; for an id on Hugging Face
    (`name`, `owner/name`, `owner/name@revision`) the snapshot in the cache, downloaded if it is not
    there yet. A Path is never taken as an id.

    `revision`: a branch, tag or commit; all files are of the one commit that it resolves to. Raises
    CheckpointError for a path or a model that does not exist, ConfigurationError where the model
    cannot be downloaded: no huggingface_hub, no network, no access, no disk space.
    """
    if not isinstance(model, (str, os.PathLike)):
        raise ConfigurationError(
            f"model: got {type_name(model)}, wanted the path of a model folder, or a model's id on "
            "Hugging Face"
        )
    if os.path.exists(model):
        if revision is not None:
            raise ConfigurationError(
                f"revision: got {revision!r} for the folder {model}, wanted none; leave it out, or "
                "give the model's id"
            )
        return Path(model)
    name, at, tail = str(model).partition("@")
    if isinstance(model, Path) or not _ID.fullmatch(name):
        shown = str(model)
        raise CheckpointError(
            f"{shown if shown.isprintable() and shown.strip() else repr(shown)}: no such folder; "
            "give the path of a Hugging Face model folder, or a model's id on Hugging Face as "
            "owner/name"
        )
    if at and revision is not None:
        raise ConfigurationError(
            f"revision: got {str(model)!r} and {revision!r}, wanted one of the two; leave out the "
            "other"
        )
    wanted = tail if at else revision
    if wanted is not None and (not _REVISION.fullmatch(wanted) or ".." in wanted):
        raise ConfigurationError(
            f"revision: got {wanted!r}, wanted a branch, tag or commit of {name}; correct it"
        )
    return _snapshot(name, wanted)


def described() -> str:
    """Describes how this machine downloads models, for `doctor`."""
    try:
        import huggingface_hub
        from huggingface_hub import constants
    except ImportError:
        return "models are folders; for ids: pip install 'fusewire[hub]'"
    token = "a token" if huggingface_hub.get_token() else "no token"
    network = "offline (HF_HUB_OFFLINE)" if constants.HF_HUB_OFFLINE else constants.ENDPOINT
    version = huggingface_hub.__version__
    return f"huggingface_hub {version}, cache {constants.HF_HUB_CACHE}, {network}, {token}"


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

    def nothing_to_serve(folder: Path) -> CheckpointError:
        with translated(model, revision, DESCRIPTIONS):
            return not_a_model(model, list_repo_files(model, revision=folder.name))

    folder = fetched(revision, DESCRIPTIONS)
    if not (folder / CONFIG).exists():
        raise nothing_to_serve(folder)
    try:  # check before gigabytes of weights are downloaded
        check_config(read_config(folder))
    except CheckpointError as error:
        raise CheckpointError(f"{model}: {error}") from None
    if missing := [name for name in _weights(folder) if not (folder / name).exists()]:
        fetched(folder.name, [glob.escape(name) for name in missing])
    if not (folder / INDEX).exists() and not (folder / WEIGHTS).exists():
        raise nothing_to_serve(folder)
    return folder


def _weights(folder: Path) -> list[str]:
    """Returns the names of the shards in the index, or of the single weight file."""
    if (folder / WEIGHTS).exists() or not (folder / INDEX).exists():
        return [WEIGHTS]
    weight_map = (read_json(folder, INDEX) or {}).get("weight_map")
    names = {*weight_map.values()} if isinstance(weight_map, dict) else set()
    return sorted(name for name in names if str(name).endswith(".safetensors"))
