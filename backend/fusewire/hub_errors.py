"""Translates exceptions of huggingface_hub. Its own text is not shown: it may contain signed
URLs."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from fusewire.errors import CheckpointError, ConfigurationError, FusewireError

_LOGIN = "set HF_TOKEN to a token that may read it, or log in with `hf auth login`"


@contextmanager
def translated(model: str, revision: str | None, files: Sequence[str]) -> Iterator[None]:
    """Re-raises any exception while `files` (patterns) of `model` are downloaded as a
    FusewireError."""
    try:
        yield
    except FusewireError:
        raise
    except Exception as error:  # exceptions of the HTTP client differ between versions
        raise _in_words(model, revision, files, error) from None


def _in_words(
    model: str, revision: str | None, files: Sequence[str], error: Exception
) -> FusewireError:
    from huggingface_hub import constants, errors

    if isinstance(error, errors.LocalEntryNotFoundError):  # its cause is why the cache was used
        cause = error.__cause__
        error = cause if isinstance(cause, errors.HfHubHTTPError) else error
    page = f"{constants.ENDPOINT}/{model}"
    named = model if revision is None else f"{model}@{revision}"
    if isinstance(error, errors.GatedRepoError):
        return ConfigurationError(
            f"{model}: its owner restricts access; accept the conditions at {page}, then {_LOGIN}"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return CheckpointError(
            f"{model}: no such folder here, and no model that you may read at {page}; check the "
            f"name, or if it is private {_LOGIN}"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return CheckpointError(
            f"{model}: got revision {revision!r}, wanted a branch, tag or commit of the "
            f"repository; see {page}/tree/main"
        )
    if isinstance(error, errors.HFValidationError):
        return CheckpointError(
            f"{model}: no such folder here, and no valid id; give the path of a Hugging Face model "
            "folder, or a model's id on Hugging Face as owner/name"
        )
    if isinstance(error, (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled)):
        cached = f"it is not in the cache {constants.HF_HUB_CACHE}"
        if missing := _missing(model, files, error):
            cached = f"the cache {constants.HF_HUB_CACHE} lacks {', '.join(missing)} of it"
        if constants.HF_HUB_OFFLINE:
            return ConfigurationError(
                f"{named}: no such folder here, HF_HUB_OFFLINE is set, and {cached}; fetch it once "
                "without HF_HUB_OFFLINE, or give the path of a folder"
            )
        return ConfigurationError(
            f"{named}: no such folder here, {page} cannot be reached, and {cached}; check the "
            "network and HF_ENDPOINT, or give the path of a folder"
        )
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code if error.response is not None else 0
        if status in (401, 403):
            return ConfigurationError(f"{model}: got HTTP status {status} from {page}; {_LOGIN}")
        return ConfigurationError(
            f"{model}: got HTTP status {status} from {page}, wanted the model's files; try again "
            "later"
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ConfigurationError(
            f"{model}: no space left for it in {constants.HF_HUB_CACHE}; make room there, or set "
            "HF_HOME to a folder on another disk"
        )
    if isinstance(error, PermissionError):
        return ConfigurationError(
            f"{model}: got no permission to write {error.filename}; set HF_HOME to a folder of "
            "yours"
        )
    return ConfigurationError(
        f"{model}: the download from {constants.ENDPOINT} broke off ({type(error).__name__}); run "
        "it again, which fetches only the files that are still missing"
    )


def _missing(model: str, files: Sequence[str], error: Exception) -> list[str]:
    """Returns the files that the cached snapshot lacks, if this version of the library tells."""
    snapshot = getattr(error, "snapshot_path", None)  # only newer versions have it
    if snapshot is None:
        return []
    from huggingface_hub import get_cached_repo_tree

    names = [file.path for file in get_cached_repo_tree(model, revision=Path(snapshot).name)]
    return [
        name
        for name in names
        if any(fnmatchcase(name, each) for each in files) and not Path(snapshot, name).exists()
    ]
