"""Prepares a folder for `fusewire import --quantize`: measures it, and smooths it with --smooth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusewire.calibration import Calibration
from fusewire.cli.calibrate import calibrated
from fusewire.cli.console import copying
from fusewire.errors import ConfigurationError
from fusewire.models import read_config
from fusewire.serving.served_files import descriptions
from fusewire.serving.version_folder import removed_on_error
from fusewire.smoothing import check_smooth, smoothed
from fusewire.weights import open_folder


@dataclass(frozen=True)
class Prepared:
    """The folder to import, its calibration, and its calibration before smoothing."""

    folder: Path
    found: Calibration | None
    before: Calibration | None = None


@contextmanager
def prepared(
    folder: Path,
    settings: Mapping[str, Any],
    device: str,
    file: Path | None,
    alpha: float | None,
    repository: Path,
) -> Iterator[Prepared]:
    """Yields the folder to import, for the duration of the import into `repository`. `file` and
    `alpha` are those of --calibrate and --smooth. Raises ConfigurationError where `settings`
    quantise nothing that they apply to."""
    if alpha is None:
        yield Prepared(folder, calibrated(folder, settings, device, file))
        return
    quantize = settings.get("quantize", "none")
    if quantize != "int8" or "quantize_skip" in settings:
        got = f"--quantize {quantize}" if quantize != "int8" else "--quantize-skip"
        raise ConfigurationError(
            f"smooth: got {alpha} and {got}, wanted --quantize int8, which is measured before and "
            "after; remove one of them"
        )
    folder = open_folder(folder)
    check_smooth(read_config(folder), alpha)
    before = calibrated(folder, settings, device, file)
    with removed_on_error(repository), ExitStack() as until_imported:
        with copying("smoothing") as progress:
            making = smoothed(folder, alpha, descriptions(folder), repository, file, progress)
            changed = until_imported.enter_context(making)
        yield Prepared(changed, calibrated(changed, settings, device, file), before)
