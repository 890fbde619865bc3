"""vLLM's side of the comparison: `python -m benchmarks.gpu.beside_vllm_theirs MODEL OUT`.

Its `LLM` with defaults (compiled, CUDA graphs), random weights in fp16, token ids in and out: no
tokenizer, no text. Needs vllm, transformers and torch, not fusewire.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from benchmarks.gpu import beside_vllm
from benchmarks.gpu.beside_vllm import Case, Prompts
from benchmarks.gpu.generation_workload import SHAPES, Shape
from benchmarks.gpu.random_weights import randomise

ARCHITECTURES = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM"}
MEMORY_SHARE = 0.85  # of the GPU's memory


def main() -> None:
    model, out = sys.argv[1:]
    # The engine runs in this process, so that no process switch is part of the time.
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        measure(write_config(Path(folder), SHAPES[model]), model, beside_vllm.CASES[model], out)


def write_config(folder: Path, shape: Shape) -> Path:
    import transformers

    config = transformers.AutoConfig.for_model(
        shape.model_type, architectures=[ARCHITECTURES[shape.model_type]], **shape.config
    )
    config.save_pretrained(folder)
    return folder


def measure(folder: Path, model: str, cases: list[Case], out: str) -> None:
    from vllm import LLM, SamplingParams

    engine = LLM(
        str(folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="float16",
        enable_prefix_caching=False,
        gpu_memory_utilization=MEMORY_SHARE,
        max_model_len=beside_vllm.longest(cases),
    )
    engine.apply_model(randomise)  # dummy weights are within 0.001

    def generate(prompts: Prompts, new_tokens: int) -> float:
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        sampling = SamplingParams(
            temperature=0, ignore_eos=True, max_tokens=new_tokens, detokenize=False
        )
        began = time.perf_counter()
        answers = engine.generate(asked, sampling, use_tqdm=False)
        seconds = time.perf_counter() - began
        lengths = {len(answer.outputs[0].token_ids) for answer in answers}
        if lengths != {new_tokens}:
            raise RuntimeError(f"vllm: got answers of {lengths} tokens, expected {new_tokens}")
        return seconds

    versions = {package: version(package) for package in ("vllm", "torch")}
    beside_vllm.write(Path(out), versions, cases, SHAPES[model].vocabulary, generate)


if __name__ == "__main__":
    main()
