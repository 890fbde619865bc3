"""The cost of a token on its way to its reader: `python -m benchmarks.token_costs`.

A GPT-2 with almost no computation generates many sequences at once, greedily, and its tokens are
read in six ways, which take turns: the engine's ids at the end, its events of each token, the texts
of `LLM.generate`, texts and streams of our client from Triton over gRPC, and streams of the OpenAI
endpoint. Measured is the CPU time of each thread of the processes involved, which other load on the
machine affects little: microseconds per token, the mean of the rounds. Where responses are delayed,
one has several tokens, so the rows have the number of responses.

Writes bench-results/token_costs.jsonl, one JSON object per row.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import queue
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fusewire
import fusewire_client
import torch
import transformers
from fusewire.engine.generation import GenerationEngine
from fusewire.generation.request import GenerationRequest

from benchmarks import machine, records
from tests.engine.generating import END, byte_tokenizer
from tests.load.server import served

MODEL = "gpt"
READERS = 2  # client processes
PROMPT = [65, 66, 67, 68]
LONGEST_S = 600
LEAST_US = 0.05  # smaller costs are not shown in a row
SETTLE_S = 0.3  # for work after the last token
PROGRAMS = {
    "triton_python_backend_stub": "model",
    "fusewire.serving.openai": "endpoint",
    "tritonserver": "tritonserver",
}
WAYS = ("ids", "events", "LLM.generate", "Triton, texts", "Triton, streams", "endpoint")
Costs = Counter[str]  # seconds by process and thread


def folder_of(root: Path, width: int, layers: int, positions: int) -> Path:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=END + 1,
        n_positions=positions,
        n_embd=width,
        n_layer=layers,
        n_head=max(1, width // 64),
        eos_token_id=END,
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(root)
    byte_tokenizer(root)
    return root


def asked(tokens: int) -> dict[str, Any]:
    return {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0}


def by_ids(engine: GenerationEngine, streams: int, tokens: int) -> int:
    """Returns the number of events."""
    return _by_events(engine, streams, tokens, tells="ids")


def by_events(engine: GenerationEngine, streams: int, tokens: int) -> int:
    return _by_events(engine, streams, tokens)


def _by_events(engine: GenerationEngine, streams: int, tokens: int, **listens: Any) -> int:
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    request = GenerationRequest(PROMPT, engine.parameters(**asked(tokens)), **listens)
    for _ in range(streams):
        engine.submit(request, None, events.put)
    left, seen = streams, 0
    while left:
        left -= events.get().finish_reason is not None
        seen += 1
    return seen


def by_list(llm: fusewire.LLM, streams: int, tokens: int) -> int:
    return len(llm.generate([PROMPT] * streams, use_tqdm=False, **asked(tokens)))


def read_triton(address: str, streams: int, tokens: int) -> tuple[int, float]:
    """Returns the number of responses, and the CPU time of their reader."""
    with fusewire_client.Client(address, model=MODEL, timeout_s=LONGEST_S) as client:

        def read(_: int) -> int:
            return sum(1 for _ in client.generate(ids=PROMPT, stream=True, **asked(tokens)))

        return _read(read, streams)


def read_texts(address: str, streams: int, tokens: int) -> tuple[int, float]:
    """As `read_triton`."""
    with fusewire_client.Client(address, model=MODEL, timeout_s=LONGEST_S) as client:

        def read(_: int) -> int:
            client.generate(ids=PROMPT, **asked(tokens))
            return 1

        return _read(read, streams)


def read_endpoint(address: str, streams: int, tokens: int) -> tuple[int, float]:
    """As `read_triton`."""
    body = {"model": MODEL, "prompt": PROMPT, "stream": True, **asked(tokens)}
    body["max_tokens"] = body.pop("max_new_tokens")

    def read(_: int) -> int:
        connection = http.client.HTTPConnection(address, timeout=LONGEST_S)
        connection.request(
            "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"/v1/completions: status {response.status}: {response.read()!r}")
        events = sum(1 for line in response if line.startswith(b"data: {"))
        connection.close()
        return events

    return _read(read, streams)


def _read(read: Callable[[int], int], streams: int) -> tuple[int, float]:
    began = time.process_time()
    with ThreadPoolExecutor(streams) as pool:
        responses = sum(pool.map(read, range(streams)))
    return responses, time.process_time() - began


def costs() -> Costs:
    """Returns the CPU seconds of each thread of this process, which has the engine, and of its
    children."""
    named = {thread.native_id: thread.name for thread in threading.enumerate()}
    found = _of_process(os.getpid(), "engine", named)
    for pid in _children():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text()
            for program, name in PROGRAMS.items():
                if program in words.replace("/", "\0").split("\0"):
                    found += _of_process(pid, name, {})
                    break
        except (FileNotFoundError, ProcessLookupError):  # the process has ended
            continue
    return found


def _of_process(pid: int, name: str, threads: Mapping[int | None, str]) -> Costs:
    found: Costs = Counter()
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            times = (task / "stat").read_text().rpartition(")")[2].split()[11:13]
            seconds = sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
            thread = threads.get(int(task.name)) or (task / "comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found[f"{name}: {thread}"] += seconds
    return found


def _children() -> Iterator[int]:
    """Yields all descendants of this process."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents.setdefault(int(parent), []).append(int(entry.name))
    left = parents.get(os.getpid(), [])[:]
    while left:
        yield (pid := left.pop())
        left += parents.get(pid, [])


def measured(way: Callable[[], tuple[int, float]]) -> tuple[int, Costs]:
    """Returns the number of responses and their CPU time."""
    time.sleep(SETTLE_S)
    before = costs()
    responses, readers_s = way()
    time.sleep(SETTLE_S)
    spent = costs()
    spent.subtract(before)
    spent["readers"] = readers_s
    return responses, spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--tokens", type=int, default=64, help="new ones of each stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--width", type=int, default=32, help="of the model")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=WAYS)
    parser.add_argument("--out", type=Path, default=records.RESULTS)
    options = parser.parse_args()
    facts = machine.facts("fusewire", "nvidia-pytriton", "tritonclient", "fastapi", "uvicorn")
    facts |= {"benchmark": "token_costs", "tokens": options.tokens}
    facts |= {"model": f"random GPT-2, {options.layers} layers of {options.width}"}
    positions, most = len(PROMPT) + options.tokens, max(options.streams)
    flags = ("--device=cpu", "--threads=1", "--no-prefix-caching", "--openai-port=0")
    flags += (f"--max-sequences={most}", f"--max-length={positions}")
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as root:
        folder = folder_of(Path(root), options.width, options.layers, positions)
        llm = fusewire.LLM(
            folder,
            device="cpu",
            threads=1,
            max_sequences=most,
            max_length=positions,
            prefix_caching=False,
        )
        with (
            llm,
            served(folder, MODEL, *flags) as at,
            ProcessPoolExecutor(READERS, context) as pool,
        ):

            def by_readers(
                read: Callable[[str, int, int], tuple[int, float]], address: str, streams: int
            ) -> tuple[int, float]:
                shares = [streams // READERS] * READERS
                reading = [pool.submit(read, address, share, options.tokens) for share in shares]
                both = [each.result() for each in reading]
                return sum(each[0] for each in both), sum(each[1] for each in both)

            for streams in options.streams:
                several = streams, options.tokens
                ways: dict[str, Callable[[], tuple[int, float]]] = {
                    "ids": lambda n=several: (by_ids(llm.engine, *n), 0.0),
                    "events": lambda n=several: (by_events(llm.engine, *n), 0.0),
                    "LLM.generate": lambda n=several: (by_list(llm, *n), 0.0),
                    "Triton, texts": lambda n=streams: by_readers(read_texts, at["grpc"], n),
                    "Triton, streams": lambda n=streams: by_readers(read_triton, at["grpc"], n),
                    "endpoint": lambda n=streams: by_readers(read_endpoint, at["openai"], n),
                }
                chosen = {name: ways[name] for name in options.ways}
                responses: Counter[str] = Counter()
                spent: dict[str, Costs] = {name: Counter() for name in chosen}
                for turn in range(-1, options.rounds):
                    for name, way in chosen.items():
                        seen, seconds = measured(way)
                        if turn >= 0:  # the first turn warms up
                            responses[name] += seen
                            spent[name].update(seconds)
                tokens = streams * options.tokens * options.rounds
                rows = [
                    facts
                    | {"way": name, "case": f"{name}, {streams} streams"}
                    | _row(responses[name], spent[name], tokens)
                    for name in chosen
                ]
                records.append(options.out / "token_costs.jsonl", rows)
                for row in rows:
                    print(f"{row['case']}: {row['all_us_a_token']} us a token, {row['us_a_token']}")


def _row(responses: int, spent: Costs, tokens: int) -> dict[str, Any]:
    us = {name: round(1e6 * seconds / tokens, 2) for name, seconds in spent.most_common()}
    return {
        "tokens_a_response": round(tokens / responses, 2),
        "us_a_token": {name: each for name, each in us.items() if each >= LEAST_US},
        "all_us_a_token": round(sum(us.values()), 2),
    }


if __name__ == "__main__":
    main()
