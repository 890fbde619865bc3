"""The overhead of the Python interface over its engines.

    python -m benchmarks.python_api [--device cuda]

`LLM.generate`: GPT-2 124M (random weights), greedy, texts of 128 tokens, 128 new tokens each: 64
prompts, and 600, which are more than the engine admits at once. It is compared with the engine with
room for all of them, whose events are only read at the end, and with one thread per prompt calling
`GenerationEngine.generate`. `Embedder.encode`: texts of 25 to 128 tokens, BERT-base's shape and
MiniLM-L6's; it is compared with one call of `EncoderEngine.answer` with the same batches, sorted
before. They take turns, so that noise of the machine affects all of them equally; a ratio is the
median over the rounds of the two rates in the same round.

Writes bench-results/python_api.jsonl, one JSON object per row.
"""

from __future__ import annotations

import argparse
import queue
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import generation_rivals, machine, records
from benchmarks.gpu import facts as gpu_facts
from benchmarks.gpu.served import write_checkpoint
from benchmarks.gpu.workload import SIZES, Size
from benchmarks.served_requests import Texts

GOALS = {"LLM.generate": 0.90, "Embedder.encode": 0.95}  # ratio to the engine's own rate
PROMPT_TOKENS, NEW_TOKENS = 128, 128
PROMPTS = (64, 600)
TEXTS, TEXT_TOKENS = 4096, (25, 128)
ENCODERS = {"minilm": Size("MiniLM-L6 shape", 384, 6, 12), "bert": SIZES["base"]}

Side = Callable[[], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="of the CPU; 0: one for each core")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side")
    parser.add_argument("--prompts", nargs="*", type=int, default=list(PROMPTS))
    parser.add_argument("--new-tokens", type=int, default=NEW_TOKENS)
    parser.add_argument("--encoders", nargs="*", choices=list(ENCODERS), default=list(ENCODERS))
    parser.add_argument("--texts", type=int, default=TEXTS)
    parser.add_argument("--without-threads", action="store_true", help="no thread a prompt")
    parser.add_argument("--out", type=Path, default=records.RESULTS)
    options = parser.parse_args()
    facts = {
        "benchmark": "python_api",
        "device": options.device,
        "rounds": options.rounds,
        **(gpu_facts.where if options.device != "cpu" else machine.facts)("fusewire"),
    }
    with tempfile.TemporaryDirectory() as work:
        both = generation(Path(work) / "gpt2", options), encoders(Path(work), options)
        for row in chain(*both):
            records.append(options.out / "python_api.jsonl", [facts | row])
    print(f"rows added to {options.out / 'python_api.jsonl'}")


def generation(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    import fusewire
    from fusewire.engine.generation import GenerationEngine

    if not options.prompts:
        return
    generation_rivals.write_gpt2(folder)
    # The same prompts are sent again, and prefix cache hits would spoil the measurement.
    common: dict[str, Any] = {
        "max_length": PROMPT_TOKENS + options.new_tokens,
        "prefix_caching": False,
        "threads": options.threads,
    }
    asked: dict[str, Any] = {"max_new_tokens": options.new_tokens, "ignore_eos": True}
    llm = fusewire.LLM(folder, device=options.device, **common)
    roomy = llm.engine.settings.model_copy(update={"max_waiting": max(options.prompts)})
    with GenerationEngine(folder, roomy, options.device) as engine, llm:
        machine.settle()
        for count in options.prompts:
            prompts = letters(count)

            def interface(prompts: list[str] = prompts) -> None:
                outputs = llm.generate(prompts, **asked)
                assert all(o.usage.completion_tokens == options.new_tokens for o in outputs)

            sides = {"engine": lambda p=prompts: by_engine(engine, p, asked)}
            sides["LLM.generate"] = interface
            if count <= engine.limits.max_sequences and not options.without_threads:
                sides["a thread a prompt"] = lambda p=prompts: by_threads(engine, p, asked)
            case = f"{count} x {PROMPT_TOKENS}+{options.new_tokens} on {options.device}"
            about = {"model": "GPT-2 124M", "case": case}
            tokens = count * options.new_tokens
            yield from rows(sides, tokens, "new tokens", options.rounds, about)


def letters(count: int) -> list[str]:
    """Returns texts in which each letter is one token."""
    rng = np.random.default_rng(0)
    return ["".join(map(chr, rng.integers(97, 123, PROMPT_TOKENS))) for _ in range(count)]


def by_engine(engine: Any, prompts: list[str], asked: dict[str, Any]) -> None:
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    from fusewire.generation.request import GenerationRequest

    parameters = engine.parameters(**asked)
    for prompt in prompts:
        engine.submit(GenerationRequest(prompt, parameters), None, events.put)
    while (counts := engine.counts()).running or counts.waiting or events.qsize() < len(prompts):
        time.sleep(0.01)
    assert events.qsize() == len(prompts) * asked["max_new_tokens"]


def by_threads(engine: Any, prompts: list[str], asked: dict[str, Any]) -> None:
    def text(prompt: str) -> str:
        return "".join([delta.text for delta in engine.generate(prompt, **asked)])

    with ThreadPoolExecutor(len(prompts)) as pool:
        list(pool.map(text, prompts))


def encoders(work: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    import fusewire

    for name in options.encoders:
        folder = work / name
        write_checkpoint(folder, ENCODERS[name])
        texts, ids = Texts(folder).some(options.texts, *TEXT_TOKENS)
        embedder = fusewire.Embedder(folder, device=options.device, threads=options.threads)
        machine.settle()
        sides: dict[str, Side] = {
            "engine": lambda e=embedder, t=texts: by_encoder(e, t),  # type: ignore[misc]
            "Embedder.encode": lambda e=embedder, t=texts: e.encode(t),  # type: ignore[misc]
        }
        case = f"{options.texts} texts on {options.device}"
        about = {"model": ENCODERS[name].name, "case": case}
        yield from rows(sides, sum(map(len, ids)), "tokens", options.rounds, about)


def by_encoder(embedder: Any, texts: list[str]) -> None:
    """Computes all texts in one call of the engine, longest first, in requests of a micro-batch."""
    from fusewire.engine.encoder import Request

    engine = embedder._engine
    order = sorted(texts, key=len, reverse=True)
    requests, begin, size = [], 0, 0
    for end, text in enumerate(order, 1):
        size += len(text)
        if size >= 4 * engine.settings.max_batch_tokens or end == len(order):
            array = np.empty((end - begin, 1), object)
            array[:, 0] = order[begin:end]
            requests.append(Request({"text_input": array}, {"truncate": True}))
            begin, size = end, 0
    answers = engine.answer(requests)
    assert all(isinstance(answer, dict) for answer in answers)


def rows(
    sides: dict[str, Side], units: int, unit: str, rounds: int, about: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Prints and yields a row for each side: units per second, and its share of the engine's
    rate."""
    for side in sides.values():
        side()  # warms up
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    # CPU seconds are meaningful even where other processes use the cores.
    cpu: dict[str, list[float]] = {name: [] for name in sides}
    watch = machine.Watch()
    for turn in range(rounds):
        at = turn % len(sides)
        for name in [*sides][at:] + [*sides][:at]:
            began, worked = time.perf_counter(), time.process_time()
            sides[name]()
            seconds[name].append(time.perf_counter() - began)
            cpu[name].append(time.process_time() - worked)
    disturbed = watch.disturbed()
    print(f"{about['model']}, {about['case']} (others took {disturbed:.0%} of the cores)")
    if disturbed > machine.DISTURBED:
        print("  NOT QUOTABLE: run it again on a quiet machine")
    for name, taken in seconds.items():
        share = median(own / each for own, each in zip(seconds["engine"], taken, strict=True))
        rate = units / median(taken)
        wanted = GOALS.get(name)
        verdict = "" if wanted is None else f", wanted {wanted:.0%}"
        times = median(each / own for own, each in zip(cpu["engine"], cpu[name], strict=True))
        print(
            f"  {name}: {rate:,.0f} {unit}/s, {share:.1%} of the engine{verdict}; "
            f"{times:.2f} times its CPU time",
            flush=True,
        )
        yield {
            **about,
            "system": name,
            "unit": unit,
            "per_s": round(rate, 1),
            "share_of_engine": round(share, 4),
            "cpu_times_engine": round(times, 4),
            "goal": wanted,
            "disturbed": disturbed,
        }


if __name__ == "__main__":
    main()
