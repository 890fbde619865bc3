"""The program of the conversion: reads a folder's TensorFlow weights, writes config.json and
model.safetensors into another.

It runs in a process of its own: HDF5 is a C library with a long record of faults with damaged
files, so memory and CPU time are limited, and a crash only fails the import. Each line that it
prints is a JSON object: {"total": bytes}, {"done": bytes}, {"error": text of a CheckpointError},
{"unusable": text of a ConfigurationError}.
"""

from __future__ import annotations

import glob
import json
import resource
from pathlib import Path
from typing import Any

from fusewire.errors import CheckpointError, ConfigurationError
from fusewire.parent_death import die_with
from fusewire.weights.formats import CONFIG, WEIGHTS
from fusewire.weights.safetensors_writer import size_bytes, write_safetensors
from fusewire.weights.tensorflow.bundle import read_bundle
from fusewire.weights.tensorflow.configuration import configuration
from fusewire.weights.tensorflow.keras_h5 import read_h5
from fusewire.weights.tensorflow.names import tensors_of

# Memory in addition to that of the process at its start, and to the files that it maps.
MEMORY_BYTES = 1 << 30
# Reading, checksums and transposing take about 1 s per GB.
CPU_S = 60
CPU_S_PER_GB = 30


def main(owner: int, source: str, weights: str, target: str) -> None:
    """`owner`: the process id of the parent. `weights`: the result of `tensorflow_weights_in`."""
    die_with(owner)
    folder = Path(source)
    files = folder.glob(f"{glob.escape(weights.partition('.')[0])}*")
    _limit(sum(path.stat().st_size for path in files))
    try:
        _convert(folder, weights, Path(target))
    except CheckpointError as error:
        _say(error=str(error))
    except ConfigurationError as error:
        _say(unusable=str(error))
    except OSError as error:
        _say(unusable=f"{target}: {error.strerror or error}; make room there")
    except (MemoryError, RecursionError):
        _say(error=f"{weights}: takes over {MEMORY_BYTES >> 20} MiB to read; save the model again")


def _convert(folder: Path, weights: str, target: Path) -> None:
    is_bundle = weights.endswith(".index")
    variables = read_bundle(folder, weights) if is_bundle else read_h5(folder)
    config = configuration(folder, dict(variables))
    model_type, architectures = config.get("model_type"), config.get("architectures")
    tensors = tensors_of(
        variables,
        model_type if isinstance(model_type, str) else "",
        [str(name) for name in architectures] if isinstance(architectures, list) else [],
        weights,
    )
    if not tensors:
        raise CheckpointError(f"{weights}: no weights in it; download the file again")
    _say(total=sum(size_bytes(tensor) for tensor in tensors.values()))
    for tensor in tensors.values():
        tensor.variable.check()
    done = 0

    def progress(written: int) -> None:
        nonlocal done
        done += written
        _say(done=done)

    write_safetensors(target / WEIGHTS, tensors, progress)
    (target / CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def _say(**message: Any) -> None:
    print(json.dumps(message), flush=True)


def _limit(size_bytes: int) -> None:
    pages = Path("/proc/self/statm").read_text().split()[0]
    memory = int(pages) * resource.getpagesize() + MEMORY_BYTES + size_bytes
    cpu_s = CPU_S + CPU_S_PER_GB * (size_bytes >> 30)
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_AS, memory),
    ):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(
            kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard)
        )
