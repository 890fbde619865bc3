"""What `fusewire import --quantize` measures before it writes, and the table that it prints."""

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
from fusewire.errors import ConfigurationError
from fusewire.models import read_config, reads_images, reads_speech, tasks_of
from fusewire.precision import Precision
from fusewire.weights.tensorflow.conversion import tensorflow_weights_in


def calibrated(
    folder: Path, settings: Mapping[str, Any], device: str, file: Path | None
) -> Calibration | None:
    """Of a folder that is imported with `settings`; None where they quantise nothing or name
    themselves what to skip, for fp8 and for models of images and speech, of which nothing is
    measured. ConfigurationError for TensorFlow weights, which are not safetensors yet."""
    quantize, dtype = settings.get("quantize", "none"), settings.get("dtype", "auto")
    named = "quantize_skip" in settings
    if quantize == "none" or named:
        if file is not None:
            got, remedy = (
                ("--quantize-skip", "remove one of them") if named else ("no --quantize", "add it")
            )
            raise ConfigurationError(
                f"calibrate: got {str(file)!r} and {got}, wanted a format to measure; {remedy}"
            )
        return None
    if quantize == "fp8":  # rows and channels have scales of their own: nothing to choose
        if file is not None:
            raise ConfigurationError(
                f"calibrate: got {str(file)!r} and --quantize fp8, wanted int8, the one format "
                "that is measured; remove it"
            )
        return None
    Precision.of("a GPU" if devices.gpus_of(device) else "cpu", dtype, quantize)
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
            done=lambda done, total: progress.update(bar, completed=done, total=total),
        )


def show(found: Calibration) -> None:
    table = Table("matrix", "shape", "error", "format", box=None)
    for each in found.matrices:
        shape = f"{each.shape[0]} x {each.shape[1]}"
        table.add_row(each.name, shape, f"{each.error:.4f}", each.format)
    table.add_row("all", "", f"{found.error:.4f}", "")
    out.print(table)
    out.print(
        f"errors of results on {found.texts} texts, {found.tokens} tokens, relative; beyond "
        f"{MOST_ERROR} a matrix is left as it is: {len(found.skipped)} of {len(found.matrices)}"
    )


def as_json(found: Calibration | None) -> dict[str, Any]:
    return {} if found is None else {"calibration": {**asdict(found), "skipped": found.skipped}}
