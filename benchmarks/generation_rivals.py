"""The systems whose generation is compared, greedily and in fp32, from one Hugging Face folder.

A system is a function `(folder, threads) -> generate`. `generate(prompts, new_tokens)` generates
this many tokens for each prompt, whatever they are, and reports when each of them arrived. Each
system runs in its own process (see `worker.py`), so imports stay inside the functions.
"""

from __future__ import annotations

import json
import queue
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from benchmarks import machine
from benchmarks.ctranslate2_module import import_ctranslate2

Prompts = list[list[int]]


@dataclass
class Run:
    """The tokens of each sequence that one call generated, and the seconds from the call to each
    token."""

    tokens: list[list[int]]
    seconds: list[list[float]]
    whole_s: float = 0.0

    @classmethod
    def of(cls, sequences: int) -> Run:
        return cls([[] for _ in range(sequences)], [[] for _ in range(sequences)])


Generate = Callable[[Prompts, int], Run]


def fusewire(
    folder: Path,
    threads: int,
    dtype: Literal["auto", "bfloat16"] = "auto",
    quantize: Literal["none", "int8"] = "none",
) -> Generate:
    """Our engine as it serves: requests in, an event for each token with its text out."""
    from fusewire.engine.generation import GenerationEngine
    from fusewire.engine.generation_settings import GenerationSettings
    from fusewire.generation.parameters import GenerationParameters
    from fusewire.generation.request import GenerationRequest

    # The same prompts are sent again, and prefix cache hits would spoil the measurement.
    settings = GenerationSettings(
        threads=threads, prefix_caching=False, dtype=dtype, quantize=quantize
    )
    engine = GenerationEngine(folder, settings)

    def generate(prompts: Prompts, new_tokens: int) -> Run:
        run = Run.of(len(prompts))
        events: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        parameters = GenerationParameters(
            max_new_tokens=new_tokens, ignore_eos=True, temperature=0.0
        )
        begin = time.perf_counter()
        for sequence, prompt in enumerate(prompts):
            request = GenerationRequest(prompt, parameters)
            engine.submit(
                request, None, lambda event, sequence=sequence: events.put((sequence, event))
            )
        for _ in range(len(prompts) * new_tokens):
            sequence, delta = events.get()
            if isinstance(delta, Exception):
                raise delta
            run.tokens[sequence].append(delta.token)
            run.seconds[sequence].append(time.perf_counter() - begin)
        run.whole_s = time.perf_counter() - begin
        return run

    return generate


def transformers_eager(folder: Path, threads: int) -> Generate:
    """transformers' `generate` with its defaults: padded on the left, SDPA, a dynamic cache."""
    import torch
    import transformers

    _quiet(transformers)
    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)
    model = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    model.generation_config.eos_token_id = None

    def generate(prompts: Prompts, new_tokens: int) -> Run:
        run = Run.of(len(prompts))
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        begin = time.perf_counter()

        def clock(ids: Any, logits: Any) -> Any:
            seconds = time.perf_counter() - begin
            for each in run.seconds:
                each.append(seconds)
            return logits

        with torch.inference_mode():
            found = model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=new_tokens,
                do_sample=False,
                pad_token_id=0,
                logits_processor=transformers.LogitsProcessorList([clock]),
            )
        run.whole_s = time.perf_counter() - begin
        run.tokens = found[:, longest:].tolist()
        return run

    return generate


def ctranslate2(folder: Path, threads: int, compute_type: str = "float32") -> Generate:
    """CTranslate2, converted by its own converter. Of prompts of different lengths it computes the
    length of the shortest at once, and the rest token by token."""
    import transformers

    ct2 = import_ctranslate2()

    _quiet(transformers)
    with tempfile.TemporaryDirectory() as work:
        ct2.converters.TransformersConverter(str(folder)).convert(f"{work}/model")
        words = json.loads(Path(work, "model", "vocabulary.json").read_text())
        generator = ct2.Generator(
            f"{work}/model", intra_threads=threads, inter_threads=1, compute_type=compute_type
        )

    def generate(prompts: Prompts, new_tokens: int) -> Run:
        run = Run.of(len(prompts))
        texts = [[words[token] for token in prompt] for prompt in prompts]
        begin = time.perf_counter()

        def clock(step: Any) -> bool:
            run.seconds[step.batch_id].append(time.perf_counter() - begin)
            return False

        found = generator.generate_batch(
            texts,
            max_length=new_tokens,
            sampling_topk=1,
            end_token=[],
            include_prompt_in_result=False,
            callback=clock,
        )
        run.whole_s = time.perf_counter() - begin
        run.tokens = [each.sequences_ids[0] for each in found]
        return run

    return generate


SYSTEMS: dict[str, Callable[[Path, int], Generate]] = {
    "fusewire": fusewire,
    "transformers": transformers_eager,
    "ctranslate2": ctranslate2,
}

# The same systems by weight format; CTranslate2's int8 includes the embeddings and the head.
FORMATS: dict[str, Callable[[Path, int], Generate]] = {
    "fusewire float32": fusewire,
    "fusewire bfloat16": partial(fusewire, dtype="bfloat16"),
    "fusewire int8": partial(fusewire, quantize="int8"),
    "ctranslate2 float32": ctranslate2,
    "ctranslate2 int8": partial(ctranslate2, compute_type="int8"),
}


def version_of(system: str) -> str:
    if system == "transformers":
        return f"{version('transformers')} (torch {version('torch')})"
    return machine.version_of(system)


def write_gpt2(folder: Path) -> int:
    """Writes GPT-2's 124 million parameters with seeded random values, and a tokenizer that has a
    token string for each id: our engine returns texts of tokens, and CTranslate2's converter needs
    their names. Returns the size of the vocabulary."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    _quiet(transformers)
    torch.manual_seed(0)
    # Weights large enough that generated tokens differ between positions.
    config = transformers.GPT2Config(initializer_range=0.1)
    transformers.GPT2LMHeadModel(config).eval().save_pretrained(folder)
    words = sorted(pre_tokenizers.ByteLevel.alphabet())
    words += [f"w{n}" for n in range(len(words), config.vocab_size - 1)]
    end = "<|endoftext|>"
    vocabulary = {word: index for index, word in enumerate([*words, end])}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=end, eos_token=end, unk_token=end
    ).save_pretrained(folder)
    return int(config.vocab_size)


def _quiet(transformers: Any) -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
