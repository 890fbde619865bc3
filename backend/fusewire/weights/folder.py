"""Which files of a model folder may be opened.

A folder is untrusted input: a name in it (in an index, or a symbolic link) must not lead out of it.
A link is followed if its target is inside the folder, or, since the Hugging Face cache consists of
such links, if the folder is a cache snapshot (`models--*/snapshots/<revision>`) and the target is
in the `blobs` of the same repository.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

from fusewire.errors import CheckpointError, json_type
from fusewire.weights.formats import ADAPTERS, INDEX, WEIGHTS, adapter_beside, not_a_model

JSON_LIMIT_BYTES = 64 << 20
_POINTER = b"version https://git-lfs"
_POINTER_LIMIT_BYTES = 1024  # maximum size of Git LFS pointers
_LISTED = 10_000  # maximum number of files listed for a folder that is not a model


def open_folder(folder: Path | str) -> Path:
    """Returns the real path of a model folder. Raises CheckpointError if it is not a folder."""
    try:
        real = Path(folder).resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        raise CheckpointError(
            f"{Path(folder).name}: no such folder; give the path of a Hugging Face model folder"
        ) from None
    if not real.is_dir():
        if real.suffix in (".gguf", ".onnx"):
            raise not_a_model(real.name, [real.name])
        raise CheckpointError(
            f"{real.name}: got a file, wanted a Hugging Face model folder; give its parent"
        )
    return real


def file_in(folder: Path | str, name: str) -> Path | None:
    """Returns the real path of file `name` of `folder`, or None when there is no such file.

    Raises CheckpointError when the name or a link leads out of the folder, or when it is not a
    regular file.
    """
    root = open_folder(folder)
    parts = name.replace("\\", "/").split("/")
    if "\0" in name or any(part in ("", ".", "..") for part in parts) or ":" in parts[0]:
        raise CheckpointError(
            f"{root.name}: got the file name {name!r}, wanted a relative name without `..`; "
            "download the model again from a source you trust"
        )
    path = root.joinpath(*parts)
    try:
        real = path.resolve(strict=True)
    except FileNotFoundError:
        if path.is_symlink():
            raise CheckpointError(f"{name}: a link to a missing file; copy the file in") from None
        return None
    except PermissionError:
        raise _unreadable(name) from None
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "links in a circle"
        raise CheckpointError(f"{name}: cannot be opened ({reason}); copy the file in") from None
    if not any(real.is_relative_to(allowed) for allowed in _allowed(root)):
        raise CheckpointError(
            f"{name}: a link leading out of the folder, wanted a file inside it "
            "(or a Hugging Face cache snapshot); copy the file in"
        )
    if not real.is_file():
        raise CheckpointError(f"{name}: not a regular file; copy the file in")
    if not os.access(real, os.R_OK):
        raise _unreadable(name)
    size_bytes = real.stat().st_size
    if size_bytes <= _POINTER_LIMIT_BYTES and real.read_bytes().startswith(_POINTER):
        raise CheckpointError(
            f"{name}: is a Git LFS pointer of {size_bytes} bytes, not the file itself; run "
            "`git lfs pull` in that folder"
        )
    return real


def _unreadable(name: str) -> CheckpointError:
    return CheckpointError(
        f"{name}: got no permission to read it, wanted some; see to the permissions of the file "
        "and its folders"
    )


def read_json(folder: Path | str, name: str) -> dict[str, Any] | None:
    """Returns a JSON object of the folder, or None when the file is missing."""
    values: dict[str, Any] | None = _read_json(folder, name, dict, "an object")
    return values


def read_json_list(folder: Path | str, name: str) -> list[Any] | None:
    """Returns a JSON list of the folder, or None when the file is missing."""
    values: list[Any] | None = _read_json(folder, name, list, "a list")
    return values


def _read_json(folder: Path | str, name: str, kind: type, wanted: str) -> Any:
    path = file_in(folder, name)
    if path is None:
        return None
    size = path.stat().st_size
    if size > JSON_LIMIT_BYTES:
        raise CheckpointError(f"{name}: got {size} bytes, wanted at most {JSON_LIMIT_BYTES}")
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise CheckpointError(f"{name}: not valid JSON; download the file again") from None
    if not isinstance(value, kind):
        raise CheckpointError(f"{name}: got {json_type(value)}, wanted {wanted}")
    return value


def weight_files(folder: Path | str) -> dict[str, list[str] | None]:
    """Returns file name -> the tensors that it must contain (None without an index), in loading
    order."""
    files = _weight_files(folder)
    for name in ADAPTERS:
        if (root := open_folder(folder)).joinpath(name).exists():
            raise adapter_beside(name, root.name)
    return files


def _weight_files(folder: Path | str) -> dict[str, list[str] | None]:
    if file_in(folder, WEIGHTS) is not None:
        return {WEIGHTS: None}
    index = read_json(folder, INDEX)
    if index is None:
        raise no_model_in(folder)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{INDEX}: no `weight_map`; download the file again")
    files: dict[str, list[str] | None] = {}
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not name.endswith(".safetensors"):
            raise CheckpointError(
                f"{INDEX}: got file {name!r} for tensor {tensor!r}, wanted a .safetensors file"
            )
        files.setdefault(name, []).append(tensor)  # type: ignore[union-attr]
    for name in files:
        if file_in(folder, name) is None:
            raise CheckpointError(f"{INDEX}: names {name!r}, which is missing; download it too")
    return files


def _allowed(root: Path) -> list[Path]:
    snapshots = root.parent
    repository = snapshots.parent
    if snapshots.name == "snapshots" and repository.name.startswith("models--"):
        return [root, repository / "blobs"]
    return [root]


def no_model_in(folder: Path | str) -> CheckpointError:
    """Returns the error for a folder without config.json or without safetensors weights, which
    tells what it contains."""
    root = open_folder(folder)
    found = (path for pattern in ("*", "*/*") for path in root.glob(pattern) if path.is_file())
    names = [path.relative_to(root).as_posix() for path in itertools.islice(found, _LISTED)]
    return not_a_model(root.name, names)
