"""Latency of the first requests after loading, whose shapes are all new:

    python benchmarks/gpu/first_requests.py --model FOLDER

Loads an encoder with an empty cache of kernel timings, as on a new machine, sends ragged requests
(1 to 32 texts, mostly short, up to the model's maximum length) one after another in this process,
and prints one JSON object: the seconds of loading, then the milliseconds of the requests. It uses
the public API only, so it can measure any version of fusewire on the path.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from typing import Any

import numpy as np

WORDS = ("the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "was", "on", "are", "with")
# One request in this many is as large as a client's batch of documents.
LARGE_EVERY = 20


def requests(count: int, seed: int = 0) -> list[list[str]]:
    rng = np.random.default_rng(seed)

    def text(longest: int) -> str:
        length = min(longest, 1 + int(rng.lognormal(3.0, 1.0)))
        return " ".join(rng.choice(WORDS, length))

    found = []
    for i in range(count):
        large = i % LARGE_EVERY == LARGE_EVERY - 1
        texts = int(rng.integers(1, 257 if large else 33))
        found.append([text(480) for _ in range(texts)])
    return found


def summary(ms: list[float]) -> dict[str, Any]:
    p50, p99 = np.percentile(ms, [50, 99])
    return {
        "requests": len(ms),
        "p50_ms": round(float(p50), 3),
        "p99_ms": round(float(p99), 3),
        "max_ms": round(max(ms), 3),
        "slowest_ms": [round(each, 1) for each in sorted(ms, reverse=True)[:10]],
    }


def measure(model: str, device: str, count: int) -> dict[str, Any]:
    import fusewire

    begin = time.perf_counter()
    embedder = fusewire.Embedder(model, device=device)
    load_s = time.perf_counter() - begin
    passes = []
    # The second pass repeats the first: its times are those without first-time work.
    for _ in range(2):
        ms = []
        for texts in requests(count):
            begin = time.perf_counter()
            embedder.encode(texts, show_progress_bar=False)
            ms.append((time.perf_counter() - begin) * 1e3)
        passes.append(summary(ms))
    return {"load_s": round(load_s, 2), "first": passes[0], "again": passes[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Latency of the first requests after loading")
    parser.add_argument("--model", required=True, help="a model folder")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--requests", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["FUSEWIRE_CACHE"] = cache
        print(json.dumps(measure(options.model, options.device, options.requests)))


if __name__ == "__main__":
    main()
