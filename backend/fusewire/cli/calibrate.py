"""The measurement of `fusewire import --quantize` before it writes, and the table that it
prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.progress import Progress
from rich.table import Table

from fusewire import devices
from fusewire.calibration import MOST_ERROR, Calibration, calibrate
from fusewire.cli.console import err, out
from fusewire.errors import ConfigurationError, counted
from fusewire.models import read_config, reads_images, reads_speech, tasks_of
from fusewire.precision import Precision
from fusewire.weights.tensorflow.conversion import tensorflow_weights_in


def calibrated(
    folder: Path, settings: Mapping[str, Any], device: str, file: Path | None
) -> Calibration | None:
    """Returns the calibration of a folder that is imported with `settings`. None where they
    quantise nothing or name what to skip, for fp8, and for models of images and speech, which are
    not measured. Raises ConfigurationError for TensorFlow weights, which are not safetensors
    yet."""
    quantize, dtype = settings.get("quantize", "none"), settings.get("dtype", "auto")
    named = "quantize_skip" in settings
    if quantize == "none" or named:
        if file is not None:
            if quantize == "none":
                rest = "no --quantize, wanted a format to measure; add it"
            else:
                rest = (
                    "--quantize-skip, wanted one of them, as matrices are measured to choose these "
                    "names; remove the other"
                )
            raise ConfigurationError(f"calibrate: got {str(file)!r} and {rest}")
        return None
    if quantize == "fp8":  # rows and channels have their own scales; there is nothing to choose
        if file is not None:
            raise ConfigurationError(
                f"calibrate: got {str(file)!r} and --quantize fp8, wanted int8, the one format "
                "that is measured; remove it"
            )
        return None
    serving = "a GPU" if devices.gpus_of(device) else "cpu"
    Precision.of(serving, dtype, quantize)
    if (weights := tensorflow_weights_in(folder)) is not None:
        raise ConfigurationError(
            f"quantize: got {quantize!r} for {weights} (TensorFlow weights), wanted safetensors to "
            "measure; import the folder without --quantize, then what was written with it"
        )
    config = read_config(folder)
    if file is None and (reads_images(config) or reads_speech(config)):
        return None
    task = settings.get("task") or tasks_of(config)
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        bar = progress.add_task("measuring", total=None)
        return calibrate(
            folder,
            "generate" if task in ("translate", "summarise") else task,
            quantize,
            dtype,
            file,
            device=serving,
            done=lambda done, total: progress.update(bar, completed=done, total=total),
        )


def show(found: Calibration, before: Calibration | None = None) -> None:
    """Prints the table of errors. `before`: the calibration of the model before smoothing."""
    rows = [
        (each.name, f"{each.shape[0]} x {each.shape[1]}", each.error, each.format)
        for each in found.matrices
    ]
    rows.append(("all", "", found.error, ""))
    errors = [[error] for _, _, error, _ in rows]
    if before is not None:
        earlier = [*(each.error for each in before.matrices), before.error]
        errors = [[was, error] for was, [error] in zip(earlier, errors, strict=True)]
    headings = ["error"] if before is None else ["error before", "smoothed"]
    table = Table("matrix", "shape", *headings, "format", box=None)
    for (name, shape, _, stored), each in zip(rows, errors, strict=True):
        table.add_row(name, shape, *(f"{error:.4f}" for error in each), stored)
    out.print(table)
    read = f"{counted(found.texts, 'texts')}, {counted(found.tokens, 'tokens')}"
    out.print(
        f"errors of results on {read}, relative; beyond {MOST_ERROR} a matrix is left as it is: "
        f"{len(found.skipped)} of {len(found.matrices)}"
    )


def warn_where_worse(found: Calibration, before: Calibration | None) -> None:
    """Warns where smoothing increased the error. `before`: as in `show`."""
    if before is None or found.error <= before.error:
        return
    count, left = len(found.matrices), [len(each.skipped) for each in (found, before)]
    err.print(
        f"warning: smooth: got an error of {found.error:.4g} with {left[0]} of {count} matrices "
        f"left as they are, wanted less than without it, {before.error:.4g} with {left[1]}; import "
        "with --replace and another ALPHA, or without --smooth",
        markup=False,
    )


def as_json(found: Calibration | None, before: Calibration | None = None) -> dict[str, Any]:
    if found is None:
        return {}
    smoothed = {} if before is None else {"before_smoothing": asdict(before)}
    return {"calibration": asdict(found) | smoothed}
