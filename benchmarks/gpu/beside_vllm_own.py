"""fusewire's side of the comparison with vLLM: `python -m benchmarks.gpu.beside_vllm_own MODEL
OUT`. Random weights in fp16; the host work of the engine is included."""

from __future__ import annotations

import queue
import sys
import time
from pathlib import Path
from typing import Any

import torch
from fusewire.engine.generation import GenerationEngine
from fusewire.engine.generation_memory import LARGE_STEP_TOKENS
from fusewire.errors import FusewireError
from fusewire.generation.parameters import GenerationParameters
from fusewire.generation.request import GenerationRequest

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
    steps = {"max_batch_tokens": LARGE_STEP_TOKENS}  # as fusewire.LLM, to vLLM's class
    with own.engine(decoder, sequences, beside_vllm.longest(cases), **steps) as engine:
        machine.settle()

        def generate(prompts: Prompts, new_tokens: int) -> float:
            return whole_answers_s(engine, prompts, new_tokens)

        versions = {package: machine.version_of(package) for package in ("fusewire", "torch")}
        beside_vllm.write(out, versions, cases, shape.vocabulary, generate)


def whole_answers_s(engine: GenerationEngine, prompts: Prompts, new_tokens: int) -> float:
    """Returns the seconds until every prompt has its whole answer, as token ids: vLLM's side does
    not stream either."""
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    parameters = GenerationParameters(max_new_tokens=new_tokens, ignore_eos=True)
    began = time.perf_counter()
    for prompt in prompts:
        engine.submit(GenerationRequest(prompt, parameters, tells="ids"), None, events.put)
    answers = [events.get() for _ in prompts]
    seconds = time.perf_counter() - began
    for answer in answers:
        if isinstance(answer, FusewireError):
            raise answer
        if answer.num_output_tokens != new_tokens:
            raise RuntimeError(
                f"fusewire: got an answer of {answer.num_output_tokens} tokens, wanted {new_tokens}"
            )
    return seconds


if __name__ == "__main__":
    main()
