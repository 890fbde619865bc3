"""The overhead of the OpenAI endpoint in a stream: `python -m benchmarks.openai_endpoint`.

A random GPT-2 of two layers in `fusewire serve` gets requests of the same plain HTTP client through
Triton's own `generate_stream` and through the OpenAI endpoint, alternately: the time from the
request to the first event, and the time per token from there to the last, medians over the streams.
The model computes on one thread; server, endpoint and client share the other cores.

Writes bench-results/openai_endpoint.jsonl, one JSON object per row.
"""

from __future__ import annotations

import argparse
import http.client
import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers

from benchmarks import machine, records
from tests.engine.generating import END, byte_tokenizer
from tests.load.server import served

MODEL = "gpt"
PROMPT = "Once upon a time"
STREAMS = (1, 16)


def folder_of(root: Path) -> Path:
    """Writes a model whose step takes longer than sending a response, so that each token has its
    own."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=257, n_positions=512, n_embd=384, n_layer=2, n_head=6, eos_token_id=END
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(root)
    byte_tokenizer(root)
    return root


def through_triton(tokens: int) -> tuple[str, dict[str, Any]]:
    sampling = {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0}
    given = {"text_input": PROMPT, "stream": True, "sampling_parameters": json.dumps(sampling)}
    return f"/v2/models/{MODEL}/generate_stream", given


def through_openai(tokens: int) -> tuple[str, dict[str, Any]]:
    given = {"max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True}
    return "/v1/completions", {"model": MODEL, "prompt": PROMPT, **given}


def events(address: str, path: str, body: dict[str, Any]) -> list[float]:
    """Returns the seconds from the request to each of its events."""
    connection = http.client.HTTPConnection(address, timeout=120)
    connection.connect()
    began = time.perf_counter()
    text, headers = json.dumps(body), {"Content-Type": "application/json"}
    connection.request("POST", path, text, headers)
    response = connection.getresponse()
    times = [time.perf_counter() - began for line in response if line.startswith(b"data: {")]
    connection.close()
    if response.status != 200:
        raise SystemExit(f"{address}{path}: status {response.status}")
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--out", type=Path, default=records.RESULTS)
    options = parser.parse_args()
    facts = machine.facts("fusewire", "nvidia-pytriton", "fastapi", "uvicorn")
    flags = ("--device=cpu", "--threads=1", "--no-prefix-caching", "--openai-port=0")
    with tempfile.TemporaryDirectory() as root, served(folder_of(Path(root)), MODEL, *flags) as at:
        ways = {
            "triton": (at["http"], *through_triton(options.tokens)),
            "openai": (at["openai"], *through_openai(options.tokens)),
        }
        for streams in STREAMS:
            first: dict[str, list[float]] = {name: [] for name in ways}
            token: dict[str, list[float]] = {name: [] for name in ways}
            with ThreadPoolExecutor(streams) as pool:
                for turn in range(-1, options.rounds):
                    for name, way in ways.items():
                        for times in pool.map(lambda way: events(*way), [way] * streams):
                            if turn >= 0:  # the first turn warms up
                                first[name].append(times[0])
                                token[name].append((times[-1] - times[0]) / (options.tokens - 1))
            row = {**facts, "benchmark": "openai_endpoint"}
            row |= {"model": "random GPT-2, 2 layers of 384"}
            row |= {"case": f"{streams} streams", "tokens": options.tokens}
            for name in ways:
                row[f"{name}_first_ms"] = round(median(first[name]) * 1e3, 3)
                row[f"{name}_token_ms"] = round(median(token[name]) * 1e3, 3)
            for what in ("first", "token"):
                row[f"added_{what}_ms"] = round(
                    row[f"openai_{what}_ms"] - row[f"triton_{what}_ms"], 3
                )
            row["load_average"] = machine.facts()["load_average"]
            print(json.dumps(row), flush=True)
            records.append(options.out / "openai_endpoint.jsonl", [row])


if __name__ == "__main__":
    main()
