"""Speed of translation on a CPU, compared with other engines: `python -m benchmarks.seq2seq`.

Marian of Transformer-base's size (6 + 6 layers, width 512, a vocabulary of 32,768, random weights,
fp32): 1, 8 and 32 sources of 32 tokens, and as many of 8 to 56, greedily and with 4 and 5 beams,
with a fixed number of new tokens each: no text ends by itself. Requests are submitted together. All
systems must first translate some sources to the same tokens (except int8, which rounds) and then
take turns, so that noise of the machine affects all of them equally. Compared are medians of
seconds, and minima of CPU seconds, which other processes disturb less.

Adds rows to bench-results/seq2seq.jsonl (one JSON object each).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks import arena, machine, records, seq2seq_rivals
from benchmarks.machine import DISTURBED
from benchmarks.seq2seq_report import INT8, OURS
from benchmarks.seq2seq_rivals import PACKAGES, SYSTEMS, Tokens
from benchmarks.worker import Handler, Worker

MODEL = "Marian base"
LENGTHS = {"32": (32, 32), "8..56": (8, 56)}  # of sources


@dataclass(frozen=True)
class Work:
    """Sources, and how each is translated."""

    sources: Tokens
    beams: int
    tokens: int


@dataclass(frozen=True)
class Turn(arena.Turn):
    """`cpu_s`: CPU seconds of each run, of all threads."""

    cpu_s: list[float]


class System(Worker):
    """One system in its own process."""

    def __init__(self, name: str, folder: Path, threads: int) -> None:
        super().__init__(name, _answering, name, folder, threads)

    def run(self, work: Work) -> Tokens:
        return self.ask((work, 0))

    def time(self, work: Work, runs: int) -> Turn:
        """Times `runs` runs after one warm-up."""
        worked: list[float] = []

        def ask() -> tuple[list[float], float]:
            seconds, worked[:], own = self.ask((work, runs))
            return seconds, own

        turn = arena.timed(ask)
        return Turn(turn.seconds, turn.disturbed, worked)


def _answering(name: str, folder: Path, threads: int) -> Handler:
    translate = SYSTEMS[name](folder, threads)
    machine.settle()

    def answer(question: tuple[Work, int]) -> object:
        work, runs = question
        given = work.sources, work.beams, work.tokens
        began = time.process_time()
        found = translate(*given)
        if not runs:
            return found
        seconds, worked = [], []
        for _ in range(runs):
            begin, cpu = time.perf_counter(), time.process_time()
            translate(*given)
            seconds.append(time.perf_counter() - begin)
            worked.append(time.process_time() - cpu)
        return seconds, worked, time.process_time() - began

    return answer


def sources_of(count: int, lengths: tuple[int, int], vocabulary: int, seed: int) -> Tokens:
    """Returns sources with evenly spread lengths in random order, without the tokens that end or
    pad."""
    rng = np.random.default_rng(seed)
    spread = rng.permutation(np.linspace(*lengths, count).round().astype(int))
    if count == 1:
        spread = np.array([sum(lengths) // 2])
    return [rng.integers(2, vocabulary - 1, length).tolist() for length in spread]


def check(systems: Sequence[System], vocabulary: int, beams: Sequence[int], tokens: int) -> None:
    """Raises SystemExit where a system in fp32 translates to other tokens than ours."""
    for count in beams:
        work = Work(sources_of(4, (3, 40), vocabulary, seed=0), count, tokens)
        found = {system.name: system.run(work) for system in systems}
        for name, texts in found.items():
            same = sum(a == b for a, b in zip(texts, found[OURS], strict=True))
            if name in INT8:
                print(f"  {count} beams: {name} has {same} of {len(texts)} texts in common")
            elif same < len(texts):
                raise SystemExit(f"{name}: got other tokens with {count} beams, wanted those of us")


def measure(systems: Sequence[System], work: Work, rounds: int, runs: int) -> dict[str, list[Turn]]:
    turns: dict[str, list[Turn]] = {system.name: [] for system in systems}
    for turn in range(rounds):
        at = turn % len(systems)
        for system in [*systems[at:], *systems[:at]]:
            turns[system.name].append(system.time(work, runs))
    return turns


def rows_of_case(turns: dict[str, list[Turn]], tokens: int, facts: records.Row) -> records.Rows:
    """Returns the rows of a case with the ratios of each system's time and CPU time to ours.
    `tokens`: of all texts together."""
    seconds = {name: median(s for turn in own for s in turn.seconds) for name, own in turns.items()}
    worked = {name: min(s for turn in own for s in turn.cpu_s) for name, own in turns.items()}
    return [
        {
            **facts,
            "system": name,
            "version": machine.version_of(PACKAGES.get(name, name)),
            "dtype": "int8" if name in INT8 else "float32",
            "median_ms": round(seconds[name] * 1e3, 2),
            "least_cpu_ms": round(worked[name] * 1e3, 2),
            "tokens_per_s": round(tokens / seconds[name], 1),
            "runs": sum(len(turn.seconds) for turn in turns[name]),
            "disturbed": round(max(turn.disturbed for turn in turns[name]), 3),
            "times_fusewire": round(seconds[name] / seconds[OURS], 3),
            "cpu_times_fusewire": round(worked[name] / worked[OURS], 3),
        }
        for name in turns
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each system")
    parser.add_argument("--runs", type=int, default=1, help="timed ones of a turn")
    parser.add_argument("--new-tokens", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--sources", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--lengths", nargs="+", default=list(LENGTHS), choices=list(LENGTHS))
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4, 5])
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--out", type=Path, default=records.RESULTS)
    options = parser.parse_args()
    names = [OURS]
    for name in options.systems:
        if name != OURS and importlib.util.find_spec(package := PACKAGES.get(name, name)) is None:
            print(f"{name}: not installed, left out; pip install {package}")
        elif name != OURS:
            names.append(name)
    arena.pin(options.threads)
    with tempfile.TemporaryDirectory() as work, contextlib.ExitStack() as stack:
        vocabulary = seq2seq_rivals.write_marian(Path(work))
        systems = [stack.enter_context(System(n, Path(work), options.threads)) for n in names]
        check(systems, vocabulary, options.beams, min(options.new_tokens))
        for tokens in options.new_tokens:
            for case, count, beams in (
                (f"{count} x {lengths} -> {tokens}, {beams} beams", (count, lengths), beams)
                for lengths in options.lengths
                for count in options.sources
                for beams in options.beams
                if count > 1 or lengths == "32"
            ):
                sources = sources_of(count[0], LENGTHS[count[1]], vocabulary, seed=1)
                given = Work(sources, beams, tokens)
                turns = measure(systems, given, options.rounds, options.runs)
                facts = {
                    "benchmark": "seq2seq",
                    "model": MODEL,
                    "case": case,
                    "threads": options.threads,
                    "sources": count[0],
                    "beams": beams,
                    "new_tokens": tokens,
                    **machine.facts(),
                }
                rows = rows_of_case(turns, tokens * len(sources), facts)
                records.append(options.out / "seq2seq.jsonl", rows)
                each = (
                    f"{row['system']} {row['median_ms']:.0f} ms ({row['least_cpu_ms']:.0f} of "
                    f"cores; x {row['times_fusewire']:.2f}, {row['cpu_times_fusewire']:.2f})"
                    for row in rows
                )
                print(f"  {case}: {', '.join(each)}", flush=True)
                if max(row["disturbed"] for row in rows) > DISTURBED:
                    print("  NOT QUOTABLE: other work took too much of the cores")
    print(f"rows added to {options.out / 'seq2seq.jsonl'}")


if __name__ == "__main__":
    main()
