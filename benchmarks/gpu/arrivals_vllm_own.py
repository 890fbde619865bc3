"""fusewire's side of random arrivals: `python -m benchmarks.gpu.arrivals_vllm_own MODEL SECONDS
CAPACITY OUT`, with vLLM's capacity in requests/s. Random weights in fp16, the defaults of a server.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from fusewire.engine.generation import GenerationEngine
from fusewire.engine.generation_settings import GenerationSettings

from benchmarks import machine
from benchmarks.generation_arrivals import Continuous, capacity, measured
from benchmarks.gpu import arrivals_beside_vllm as load
from benchmarks.gpu.generation_models import (
    GPU,
    Place,
    own_model,
    tokenizer_folder,
    transformers_model,
)
from benchmarks.gpu.generation_workload import SHAPES


def main() -> None:
    model, seconds, capacity_of_vllm, out = sys.argv[1:]
    torch.set_grad_enabled(False)
    measure(model, float(seconds), float(capacity_of_vllm), Path(out))


def measure(
    model: str, seconds: float, capacity_of_vllm: float, out: Path, place: Place = GPU
) -> None:
    vocabulary = SHAPES[model].vocabulary
    decoder = own_model(transformers_model(SHAPES[model], place), place)
    # vLLM's engine takes any number of waiting requests; its server would too.
    settings = GenerationSettings(dtype=place.dtype, max_waiting=1 << 20)
    versions = {package: machine.version_of(package) for package in ("fusewire", "torch")}
    shares = tuple(share * times for share in load.SHARES for times in (1.0, load.AHEAD))
    with tempfile.TemporaryDirectory() as folder:
        there = tokenizer_folder(Path(folder), vocabulary)
        with GenerationEngine(there, settings, model=decoder) as engine:
            machine.settle()

            def policy() -> Continuous:
                return Continuous(engine, engine.limits.max_sequences)

            capacity(policy(), load.waiting(vocabulary, load.WARM_UP_SEED), load.LAST)
            most = capacity(policy(), load.waiting(vocabulary, load.SEED), load.LAST)
            capacities = {"fusewire": most, "vllm": capacity_of_vllm}
            for share, offered in load.loads(shares, capacity_of_vllm, seconds, vocabulary):
                seen = measured(policy(), offered, seconds)
                load.write(out, versions, share, capacities, seconds, seen)


if __name__ == "__main__":
    main()
