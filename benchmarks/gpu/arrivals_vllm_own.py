"""fusewire's side of random arrivals: `python -m benchmarks.gpu.arrivals_vllm_own MODEL SECONDS
CAPACITY OUT`, with vLLM's capacity in requests/s. Random weights in fp16, the defaults of a server.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import torch
from fusewire.engine.generation import GenerationEngine
from fusewire.engine.generation_settings import GenerationSettings

from benchmarks import machine
from benchmarks.generation_arrivals import Continuous, measured
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
            capacity(engine, vocabulary, load.WARM_UP_SEED)
            most = capacity(engine, vocabulary, load.SEED)
            capacities = {"fusewire": most, "vllm": capacity_of_vllm}
            for share, offered in load.loads(shares, capacity_of_vllm, seconds, vocabulary):
                policy = Continuous(engine, engine.limits.max_sequences)
                seen = measured(policy, offered, seconds)
                load.write(out, versions, share, capacities, seconds, seen)


def capacity(engine: GenerationEngine, vocabulary: int, seed: int) -> float:
    """Returns the requests/s where enough requests always wait."""
    offered = load.waiting(vocabulary, seed)
    policy = Continuous(engine, engine.limits.max_sequences)
    began = time.perf_counter()
    for request in offered:
        policy.offer(request)
    while not load.has_enough(offered):
        policy.listen(time.perf_counter() + 0.002)
    found = load.requests_per_s(offered, time.perf_counter() - began)
    policy.stop()
    return found


if __name__ == "__main__":
    main()
