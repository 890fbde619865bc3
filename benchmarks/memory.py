"""Memory on TurboTransformers' workload: `python -m benchmarks.memory`.

BERT-base (random weights), fp32, batch 1, 150 requests with lengths uniform in 5..500 (seed 0).
Each system runs in its own process:

- fusewire: the engine, in two passes over the requests: the first has new lengths, the second known
  ones. Allocations are its calls to the operating system.
- torch: transformers eager; allocations (from malloc) and live bytes as counted by torch's
  profiler.
- naive: the temporaries of fusewire's layers, each from malloc when created and freed at its last
  use, written once; compared with the time of the same writes into the planned arena.

Writes bench-results/memory.jsonl, one JSON object per row.
"""

from __future__ import annotations

import argparse
import multiprocessing
import platform
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks import encoder_report, records, rivals
from tests.tolerance import PEAK_OVER_BOUND

MIB = 1 << 20
LAYERS = 12
Program = tuple[list[tuple[int, int, int]], list[int], int]  # records, offsets, peak


def workload(vocabulary: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, vocabulary, length) for length in rng.integers(5, 501, 150)]


def timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def live_bytes(call: Callable[[], Any]) -> np.ndarray:
    """Returns the bytes that torch had allocated on the CPU during a call beyond those before it,
    after each change."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        call()
    events = [e for e in trace.profiler.kineto_results.events() if e.name() == "[memory]"]
    changes = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]
    return np.cumsum(changes, dtype=np.int64)


def fusewire(folder: Path, threads: int) -> tuple[dict[str, Any], list[Program]]:
    from fusewire import kernels
    from fusewire.batch import Batch, Sequence
    from fusewire.models import load_model

    kernels.set_num_threads(threads)
    model = load_model(folder, "hidden")
    allocator = kernels.default_allocator()
    sequences = workload(rivals.vocabulary(folder))
    batches = [Batch.pack([Sequence(ids, np.zeros(len(ids), np.int32))]) for ids in sequences]
    loaded = allocator.stats()

    def answer_all() -> int:
        before = allocator.stats()["raw_allocations"]
        for batch in batches:
            model.encode(batch)
        return allocator.stats()["raw_allocations"] - before

    first, again = answer_all(), answer_all()
    after, workspace = allocator.stats(), model.workspace_stats()
    plans = {p["key"][1]: p for p in model._workspace.programs()}
    used = [plans[len(s)] for s in sequences]
    outputs = [len(s) * model.hidden_size * 4 for s in sequences]
    peaks = [p["peak_bytes"] + output for p, output in zip(used, outputs, strict=True)]
    row = {
        "peak_mib_mean": fmean(peaks) / MIB,
        "peak_mib_max": max(peaks) / MIB,
        "held_mib": (after["allocated_bytes"] - loaded["allocated_bytes"]) / MIB,
        "allocations_first_pass": first,
        "allocations_second_pass": again,
        "planned_peak_mib": workspace["peak_bytes"] / MIB,
        "lower_bound_mib": workspace["lower_bound_bytes"] / MIB,
        "worst_peak_over_bound": workspace["worst_ratio"],
        "arena_mib": workspace["arena_bytes"] / MIB,
        "arena_growths": workspace["growths"],
        "plans": workspace["plans"],
        "cache_hits": after["cache_hits"] - loaded["cache_hits"],
        "weights_mib": loaded["allocated_bytes"] / MIB,
        "reserved_for_weights_mib": loaded["reserved_bytes"] / MIB,
    }
    return row, [(p["records"], p["offsets"], p["peak_bytes"]) for p in used]


def torch_eager(folder: Path, threads: int) -> dict[str, Any]:
    import torch

    run = rivals.transformers_eager(folder, threads)
    sequences = workload(rivals.vocabulary(folder))

    def profiled(sequence: np.ndarray) -> tuple[int, int]:
        """Returns the highest live bytes and the number of allocations of one request."""
        live = live_bytes(lambda: run([sequence]))
        return int(live.max()), int((np.diff(live, prepend=0) > 0).sum())

    peaks, calls = zip(*map(profiled, sequences), strict=True)
    return {
        "peak_mib_mean": fmean(peaks) / MIB,
        "peak_mib_max": max(peaks) / MIB,
        "allocations_first_pass": sum(calls),
        "allocations_second_pass": sum(calls),
        "version": torch.__version__,
    }


def naive(programs: list[Program]) -> list[dict[str, Any]]:
    """Times the writes of every layer's temporaries and nothing else: from malloc, and into an
    arena."""
    arena = np.empty(max(peak for _, _, peak in programs), np.uint8)
    views = [
        [arena[at : at + size] for (size, _, _), at in zip(records, offsets, strict=True)]
        for records, offsets, _ in programs
    ]

    def into_arena(which: int) -> None:
        for _ in range(LAYERS):
            for view in views[which]:
                view.fill(1)

    def from_malloc(which: int) -> None:
        records = programs[which][0]
        steps = [(first, i, True) for i, (_, first, _) in enumerate(records)]
        steps += [(last, i, False) for i, (_, _, last) in enumerate(records)]
        steps.sort()
        for _ in range(LAYERS):
            live: dict[int, np.ndarray] = {}
            for _, i, created in steps:
                if created:
                    live[i] = np.empty(records[i][0], np.uint8)
                    live[i].fill(1)
                else:
                    del live[i]

    def alive_at_once(records: list[tuple[int, int, int]]) -> int:
        moments = [first for _, first, _ in records]
        return max(sum(s for s, first, last in records if first <= t <= last) for t in moments)

    def median_ms(write: Callable[[int], None]) -> float:
        for _ in range(2):  # the first pass warms up: pages of the arena, malloc's thresholds
            times = [timed(lambda which=which: write(which)) for which in range(len(programs))]
        return median(times)

    planned = [peak for _, _, peak in programs]
    alive = [alive_at_once(records) for records, _, _ in programs]
    calls = sum(LAYERS * len(records) for records, _, _ in programs)
    return [
        {
            "system": name,
            "peak_mib_mean": fmean(peaks) / MIB,
            "peak_mib_max": max(peaks) / MIB,
            "allocations_first_pass": first,
            "allocations_second_pass": second,
            "median_ms": median_ms(write),
        }
        for name, write, peaks, first, second in (
            ("arena, writes only", into_arena, planned, 1, 0),
            ("naive, writes only", from_malloc, alive, calls, calls),
        )
    ]


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """Runs `function` in its own process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def table(rows: list[dict[str, Any]]) -> str:
    columns = {
        "peak_mib_mean": "mean peak",
        "peak_mib_max": "max peak",
        "allocations_first_pass": "allocs, new",
        "allocations_second_pass": "allocs, warm",
        "median_ms": "median ms",
    }
    lines = ["peaks: MiB a request; allocs: of all 150 requests; ms: a request", ""]
    lines.append(" " * 20 + "".join(name.rjust(13) for name in columns.values()))
    for row in rows:
        cells = [row.get(column) for column in columns]
        texts = ["" if c is None else str(c) if isinstance(c, int) else f"{c:.2f}" for c in cells]
        lines.append(row["system"].ljust(20) + "".join(text.rjust(13) for text in texts))
    own = rows[0]
    over = own["worst_peak_over_bound"]
    lines += [
        "",
        f"arena {own['arena_mib']:.1f} MiB after {own['arena_growths']} growths; largest plan "
        f"{own['planned_peak_mib']:.2f} MiB, liveness bound {own['lower_bound_mib']:.2f} MiB",
        verdict(over <= PEAK_OVER_BOUND, f"planned peak at most 1.05 x the bound: {over:.3f} x"),
        verdict(
            own["allocations_second_pass"] == 0,
            f"no allocation after warm-up: {own['allocations_second_pass']}",
        ),
    ]
    return "\n".join(lines)


def verdict(reached: bool, text: str) -> str:
    return f"{'reached' if reached else 'missed':8} {text}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=records.RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "bert-base"
        rivals.write_bert_base(folder)
        print("fusewire: 150 requests, twice", flush=True)
        own, programs = alone(fusewire, folder, options.threads)
        print("torch: 150 requests", flush=True)
        rows = [{"system": "fusewire", **own}]
        rows.append({"system": "torch eager", **alone(torch_eager, folder, options.threads)})
        print("naive: writes only", flush=True)
        rows += alone(naive, programs)
    facts = {
        "benchmark": "memory",
        "model": "BERT-base",
        "workload": "150 requests, batch 1, lengths uniform 5..500, seed 0",
        "dtype": "float32",
        "threads": options.threads,
        "cpu": encoder_report.cpu_name(),
        "python": platform.python_version(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    records.append(options.out / "memory.jsonl", [{**facts, **row} for row in rows])
    print(f"\n{facts['cpu']}, {options.threads} threads, fp32\n{table(rows)}")
    print(f"rows added to {options.out / 'memory.jsonl'}")


if __name__ == "__main__":
    main()
