"""Converts a folder with TensorFlow weights into one with safetensors."""

from __future__ import annotations

import glob
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fusewire.errors import CheckpointError, ConfigurationError
from fusewire.import_path import import_path
from fusewire.weights.folder import file_in
from fusewire.weights.formats import INDEX, WEIGHTS
from fusewire.weights.staged_folder import staged_folder
from fusewire.weights.tensorflow import keras_h5

# Isolated from the working directory and from PYTHON* variables, with its parent's import path.
_PROGRAM = """\
import sys
sys.path[:] = sys.argv[5:]
from fusewire.weights.tensorflow.worker import main
main(int(sys.argv[1]), *sys.argv[2:5])
"""
# The environment variables that are passed on; HDF5_PLUGIN_PATH, for example, is not.
_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")
_MOST_LINE_BYTES = 1 << 16


def tensorflow_weights_in(folder: Path) -> str | None:
    """Returns tf_model.h5, its index, or the index of a checkpoint; None if there is none, or if
    the folder has safetensors. Raises CheckpointError if there are several checkpoints."""
    if any(file_in(folder, name) is not None for name in (WEIGHTS, INDEX)):
        return None
    for name in (keras_h5.WEIGHTS, keras_h5.INDEX):
        if file_in(folder, name) is not None:
            return name
    found = sorted(
        path.name
        for path in folder.glob("*.index")
        if any(folder.glob(f"{glob.escape(path.stem)}.data-[0-9]*-of-[0-9]*"))
    )
    if len(found) > 1:
        raise CheckpointError(
            f"{folder.name}: got {len(found)} TensorFlow checkpoints ({', '.join(found[:4])}), "
            "wanted one; copy the one you want into a folder of its own, with its configuration"
        )
    return found[0] if found else None


@contextmanager
def converted(
    folder: Path,
    weights: str,
    others: Mapping[str, Path],
    beside: Path,
    progress: Callable[[str, int, int], None],
) -> Iterator[Path]:
    """A context with a temporary folder of the same name in `beside`, with config.json and
    model.safetensors made from `folder`'s TensorFlow weights, and copies of the files `others`
    (name -> path).

    `weights`: the result of `tensorflow_weights_in`. Raises CheckpointError for damaged or unknown
    weights, ConfigurationError if the extra is not installed or there is no disk space.
    """
    with staged_folder(folder.name, others, beside) as target:
        _run(folder, weights, target, progress)
        yield target


def _run(
    folder: Path, weights: str, target: Path, progress: Callable[[str, int, int], None]
) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, "-I", "-c", _PROGRAM),
            *(str(os.getpid()), str(folder), weights, str(target.absolute())),
            *import_path(),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={name: os.environ[name] for name in _VARIABLES if name in os.environ},
        cwd="/",
        start_new_session=True,  # only the parent handles Ctrl-C
    )
    assert process.stdout is not None
    total = 0
    try:
        while line := process.stdout.readline(_MOST_LINE_BYTES):
            message: dict[str, Any] = json.loads(line)
            if "error" in message:
                raise CheckpointError(message["error"])
            if "unusable" in message:
                raise ConfigurationError(message["unusable"])
            total = message.get("total", total)
            progress(WEIGHTS, message.get("done", 0), total)
        status = process.wait()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    if status != 0:
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        raise CheckpointError(
            f"{weights}: cannot be read (the process that reads it ended with {how}); download the "
            "file again"
        )
