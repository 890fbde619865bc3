"""Writes the smoothed folder of a decoder: the same function with other norms and matrices, with
the same names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire.calibration_texts import calibration_texts
from fusewire.float_types import converted
from fusewire.models import blueprint_of, read_config
from fusewire.models.assemble import Weights
from fusewire.placement import Placement
from fusewire.smoothing.channels import channels_of, check_smooth
from fusewire.smoothing.factors import Change, changes
from fusewire.smoothing.maxima import channel_maxima
from fusewire.weights import Checkpoint, StoredTensor, file_in, read_safetensors, weight_files
from fusewire.weights.checkpoint import normal_name
from fusewire.weights.safetensors_writer import size_bytes, write_safetensors
from fusewire.weights.staged_folder import staged_folder


@contextmanager
def smoothed(
    folder: Path,
    alpha: float,
    others: Mapping[str, Path],
    beside: Path,
    file: Path | None = None,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> Iterator[Path]:
    """A context with a temporary folder of the same name in `beside`: `folder`'s decoder, smoothed
    by its activations for the `calibration_texts` of `file`, with copies of the files `others`
    (name -> path). `alpha`: the share of the outliers that moves into the weights, 0..1. Changed
    bfloat16 tensors stay bfloat16, except for Gemma's norms; others become float32. Raises
    ConfigurationError as `check_smooth` does, for tied norms, and for a file without texts;
    CheckpointError; OSError if there is no disk space."""
    config = read_config(folder)
    check_smooth(config, alpha)
    blueprint = blueprint_of(config, "generate")
    checkpoint = Checkpoint.open(folder, blueprint.prefix, blueprint.aliases)
    checkpoint.check(blueprint.tensors("generate"), blueprint.unread)
    vocab_size = blueprint.task_heads["generate"].chain[-1].outputs
    texts = calibration_texts(folder, file, blueprint.max_length, vocab_size)
    place = Placement("cpu")
    maxima = channel_maxima(blueprint, checkpoint, texts, place)
    found = changes(channels_of(blueprint), maxima, Weights(checkpoint, place), alpha)
    checkpoint.release()
    with staged_folder(folder.name, others, beside) as target:
        for name in weight_files(folder):
            _write(folder, name, target / name, blueprint.prefix, found, progress)
        yield target


def _write(
    folder: Path,
    name: str,
    path: Path,
    prefix: str,
    found: Mapping[str, Change],
    progress: Callable[[str, int, int], None],
) -> None:
    source = file_in(folder, name)
    assert source is not None  # `Checkpoint.open` has read it
    written = {
        stored: _Written(stored, tensor, found.get(normal_name(stored, prefix)))
        for stored, tensor in read_safetensors(source, name).items()
    }
    total, done = sum(map(size_bytes, written.values())), 0

    def more(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress(name, done, total)

    path.parent.mkdir(parents=True, exist_ok=True)
    write_safetensors(path, written, more)


@dataclass(frozen=True)
class _Written:
    """A stored tensor, unchanged or changed."""

    name: str
    tensor: StoredTensor
    change: Change | None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @property
    def dtype(self) -> str:
        if self.change is None:
            return self.tensor.dtype
        # Multiplying by powers of two is exact in bfloat16; the exponents of float16 are too few.
        return "BF16" if self.tensor.dtype == "BF16" and not self.change.one_plus else "F32"

    def blocks(self) -> Iterator[NDArray[Any]]:
        if self.change is None:
            yield self.tensor.data
            return
        numbers = self.change.of(self.tensor.float32(self.name))
        dtype = {"BF16": "bfloat16", "F32": "float32"}[self.dtype]
        yield np.ascontiguousarray(converted(numbers, dtype, self.name)).reshape(-1)
