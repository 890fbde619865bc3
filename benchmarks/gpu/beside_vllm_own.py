"""fusewire's side of the comparison with vLLM: `python -m benchmarks.gpu.beside_vllm_own MODEL
OUT`. Random weights in fp16; the host work of the engine is included."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from benchmarks import machine
from benchmarks.gpu import beside_vllm
from benchmarks.gpu import generation_own as own
from benchmarks.gpu.beside_vllm import Case, Prompts
from benchmarks.gpu.generation_models import GPU, Place, own_model, transformers_model
from benchmarks.gpu.generation_workload import SHAPES


def main() -> None:
    model, out = sys.argv[1:]
    torch.set_grad_enabled(False)
    measure(model, beside_vllm.CASES[model], Path(out))


def measure(model: str, cases: list[Case], out: Path, place: Place = GPU) -> None:
    shape = SHAPES[model]
    decoder = own_model(transformers_model(shape, place), place)
    sequences = max(case.sequences for case in cases)
    with own.engine(decoder, sequences, beside_vllm.longest(cases)) as engine:
        machine.settle()

        def generate(prompts: Prompts, new_tokens: int) -> float:
            return own.Answers(engine, prompts, new_tokens).seconds

        versions = {package: machine.version_of(package) for package in ("fusewire", "torch")}
        beside_vllm.write(out, versions, cases, shape.vocabulary, generate)


if __name__ == "__main__":
    main()
