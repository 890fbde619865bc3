"""Steps of GPT-2 with weights in several formats, for `weight_formats`."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks import generation_rivals
from benchmarks.generation import CASES, System, quiet_run, step_ms
from benchmarks.generation_rivals import Run
from benchmarks.records import Row
from benchmarks.rivals_int8 import EXACT

MODEL = "GPT-2 124M"
SYSTEMS = list(generation_rivals.FORMATS)
_CASES = {"decode 1": "1x128", "decode 8": "8x128"}


def same_tokens(run: Run, exact: Run) -> float:
    """Returns the share of greedy tokens equal to those of `exact`, up to the first difference."""
    pairs = [
        np.cumprod(np.equal(ours, wanted))
        for ours, wanted in zip(run.tokens, exact.tokens, strict=True)
    ]
    return float(np.mean(pairs))


def check(name: str, run: Run, exact: Run) -> None:
    """Raises SystemExit where float32 has other tokens than ours, or where with fewer bits none of
    the first tokens, of a vocabulary of 50257, equals float32's."""
    first = [a[0] == b[0] for a, b in zip(run.tokens, exact.tokens, strict=True)]
    exactly = name.endswith("float32")
    if run.tokens != exact.tokens if exactly else not any(first):
        raise SystemExit(
            f"{name}: got other tokens than {EXACT}, wanted "
            f"{'the same' if exactly else 'some of the first ones'}"
        )


def rows(folder: Path, names: list[str], options: argparse.Namespace) -> list[Row]:
    """`ms`: from one token to the next, while all sequences run."""
    vocabulary = generation_rivals.write_gpt2(folder)
    rng = np.random.default_rng(1)
    found: list[Row] = []
    with contextlib.ExitStack() as stack:
        systems = [stack.enter_context(System(n, folder, options.threads)) for n in names]
        prompts = [rng.integers(0, vocabulary, n).tolist() for n in CASES["8x128"]]
        warm = {system.name: system.run(prompts, options.new_tokens)[0] for system in systems}
        for name, run in warm.items():
            check(name, run, warm[EXACT])
        for label, case in _CASES.items():
            given = prompts[: len(CASES[case])]
            steps: dict[str, list[float]] = {name: [] for name in names}
            worst = 0.0
            for turn in range(options.rounds):
                at = turn % len(systems)
                for system in systems[at:] + systems[:at]:
                    run, disturbed = quiet_run(system, given, options)
                    worst = max(worst, disturbed)
                    taken = step_ms(run)
                    if taken is None:
                        raise SystemExit("new-tokens: too few, wanted more; ask for 16 or more")
                    steps[system.name].append(taken)
            found += [
                {
                    "case": f"{label}, {name}",
                    "input": label,
                    "system": name,
                    "ms": round(median(taken), 3),
                    "least_ms": round(min(taken), 3),
                    "times_float32": round(median(steps[EXACT]) / median(taken), 2),
                    "same_tokens": round(same_tokens(warm[name], warm[EXACT]), 3),
                    "disturbed": worst,
                }
                for name, taken in steps.items()
            ]
    return found
