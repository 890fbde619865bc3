"""Speed of generation on a CPU, compared with other engines: `python -m benchmarks.generation`.

GPT-2 124M (random weights, fp32) generates a fixed number of new tokens greedily after prompts of
128 to 512 tokens, for one sequence and for eight. Systems take turns, so that noise of the machine
affects all of them equally; the first turn warms up, and its tokens must be the same in all
systems. `prompt`: the time until every sequence has its first token. `step`: the time from one
token to the next while all sequences run. Ratios are medians over the rounds of the times of two
systems in the same round.

Writes bench-results/generation.jsonl, one JSON object per row.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import arena, generation_rivals, machine, records
from benchmarks.generation_rivals import Prompts, Run
from benchmarks.machine import DISTURBED
from benchmarks.worker import Handler, Worker

MODEL = "GPT-2 124M"
CASES = {
    "1x128": [128],
    "1x512": [512],
    "8x128": [128] * 8,
    "8x512": [512] * 8,
    "8x128..512": [128, 183, 238, 293, 347, 402, 457, 512],
}


class System(Worker):
    """One system in its own process."""

    def __init__(self, name: str, folder: Path, threads: int) -> None:
        super().__init__(name, _answering, name, folder, threads)

    def run(self, prompts: Prompts, new_tokens: int) -> tuple[Run, float]:
        """Returns the run and the share of the cores' time that other processes used meanwhile."""
        watch = machine.Watch(self.pid)
        run = self.ask((prompts, new_tokens))
        return run, watch.disturbed()


def _answering(name: str, folder: Path, threads: int) -> Handler:
    systems = generation_rivals.SYSTEMS | generation_rivals.FORMATS
    generate = systems[name](folder, threads)
    return lambda question: generate(*question)


def prompt_ms(run: Run) -> float:
    return 1e3 * max(seconds[0] for seconds in run.seconds)


def step_ms(run: Run) -> float | None:
    """Returns the median step time; None where one sequence ends before another begins."""
    last = max(run.seconds, key=lambda seconds: seconds[0])
    first_end = min(seconds[-1] for seconds in run.seconds)
    together = [at for at in last if at <= first_end]
    return 1e3 * float(np.median(np.diff(together))) if len(together) > 1 else None


MEASURES: dict[str, Callable[[Run], float | None]] = {
    "prompt": prompt_ms,
    "step": step_ms,
    "whole": lambda run: 1e3 * run.whole_s,
}


def quiet_run(system: System, prompts: Prompts, options: argparse.Namespace) -> tuple[Run, float]:
    """Returns one turn, which is repeated while other processes disturb it. The turn is chosen by
    the disturbance alone, never by its times, and alike for all systems."""
    best = system.run(prompts, options.new_tokens)
    for _ in range(options.again):
        if best[1] <= DISTURBED:
            break
        best = min(best, system.run(prompts, options.new_tokens), key=lambda turn: turn[1])
    return best


def rounds_of(
    systems: list[System], prompts: Prompts, options: argparse.Namespace
) -> tuple[dict[str, list[Run]], float]:
    """Returns each system's runs, one per round, and the largest share of the cores that other
    processes used in one."""
    warm = {system.name: system.run(prompts, options.new_tokens)[0] for system in systems}
    for name, run in warm.items():
        if run.tokens != warm["transformers"].tokens:
            raise SystemExit(f"{name}: got other tokens than transformers, wanted the same")
    runs: dict[str, list[Run]] = {system.name: [] for system in systems}
    worst = 0.0
    for turn in range(options.rounds):
        at = turn % len(systems)
        for system in systems[at:] + systems[:at]:
            run, disturbed = quiet_run(system, prompts, options)
            runs[system.name].append(run)
            worst = max(worst, disturbed)
    return runs, worst


def row_of(name: str, runs: dict[str, list[Run]]) -> dict[str, Any]:
    """Returns medians over the rounds, and the median ratio to our time in the same round."""
    row: dict[str, Any] = {"system": name, "rounds": len(runs[name])}
    for what, measure in MEASURES.items():
        taken = [measure(run) for run in runs[name]]
        ours = [measure(run) for run in runs["fusewire"]]
        pairs = [(a, b) for a, b in zip(taken, ours, strict=True) if a is not None and b]
        row[f"{what}_ms"] = round(median(a for a, _ in pairs), 3) if pairs else None
        row[f"{what}_times_fusewire"] = round(median(a / b for a, b in pairs), 3) if pairs else None
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each system")
    parser.add_argument("--again", type=int, default=2, help="repeats of a disturbed turn")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--out", type=Path, default=records.RESULTS)
    options = parser.parse_args()
    names = [n for n in generation_rivals.SYSTEMS if n == "fusewire" or importlib.util.find_spec(n)]
    for name in sorted({*generation_rivals.SYSTEMS} - {*names}):
        print(f"{name}: not installed, left out; pip install {name}")
    if "transformers" not in names:
        raise SystemExit("transformers: not installed, wanted as the reference; pip install it")
    arena.pin(options.threads)
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as work, contextlib.ExitStack() as stack:
        vocabulary = generation_rivals.write_gpt2(Path(work))
        systems = [stack.enter_context(System(n, Path(work), options.threads)) for n in names]
        versions = {name: generation_rivals.version_of(name) for name in names}
        for case in options.cases:
            prompts = [rng.integers(0, vocabulary, n).tolist() for n in CASES[case]]
            runs, disturbed = rounds_of(systems, prompts, options)
            facts = {
                "benchmark": "generation",
                "model": MODEL,
                "case": case,
                "dtype": "float32",
                "threads": options.threads,
                "sequences": len(prompts),
                "new_tokens": options.new_tokens,
                "disturbed": disturbed,
                **machine.facts(),
                "versions": versions,
            }
            rows = [facts | row_of(name, runs) for name in names]
            records.append(options.out / "generation.jsonl", rows)
            for row in rows:
                taken = (f"{what} {row[f'{what}_ms']} ms" for what in MEASURES)
                print(f"  {case} {row['system']}: {', '.join(taken)}", flush=True)
            if disturbed > DISTURBED:
                print(f"  NOT QUOTABLE: other work took up to {disturbed:.0%} of the cores")
    print(f"rows added to {options.out / 'generation.jsonl'}")


if __name__ == "__main__":
    main()
