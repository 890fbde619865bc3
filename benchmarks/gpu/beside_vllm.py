"""The cases of the comparison with vLLM, and how both sides time them.

Uses the standard library only: vLLM's side may run in an environment without fusewire.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from benchmarks import records

NEW_TOKENS = 128
FEW_TOKENS = 8
REPEATS = 2

Prompts = list[list[int]]
# Returns the seconds from the call until every prompt has this many new tokens.
Generate = Callable[[Prompts, int], float]


@dataclass(frozen=True)
class Case:
    """`sequences` prompts of `prompt` random token ids each, all submitted at once."""

    sequences: int
    prompt: int

    @property
    def name(self) -> str:
        return f"{self.sequences} x {self.prompt}"


SMALL = [Case(1, 1024), Case(64, 1024), Case(256, 128)]
CASES = {
    "gpt2": [Case(1, 128), Case(32, 512), Case(64, 128)],
    "qwen-0.5b": SMALL,
    "qwen-1.5b": SMALL,
    "llama-8b": [Case(1, 1024), Case(16, 1024), Case(64, 1024), Case(64, 128), Case(256, 128)],
}


@dataclass(frozen=True)
class Timing:
    """The fastest of REPEATS runs in seconds, with FEW_TOKENS per prompt and with NEW_TOKENS."""

    few_s: float
    whole_s: float

    def row(self, case: Case) -> dict[str, Any]:
        """Returns the row. The step time is that of the tokens after FEW_TOKENS, so it excludes the
        prompts."""
        tokens = case.sequences * NEW_TOKENS
        return {
            "case": case.name,
            **asdict(case),
            "new_tokens": NEW_TOKENS,
            "step_ms": round((self.whole_s - self.few_s) / (NEW_TOKENS - FEW_TOKENS) * 1e3, 3),
            "tokens_per_s": round(tokens / self.whole_s, 1),
            "first_8_ms": round(self.few_s * 1e3, 1),
        }


def longest(cases: list[Case]) -> int:
    """Returns the maximum tokens of a prompt and its answer."""
    return max(case.prompt for case in cases) + NEW_TOKENS


def timing(case: Case, vocabulary: int, generate: Generate) -> Timing:
    """Times a case. Each run has new prompts; the first one warms up and is not timed."""
    random = Random(0)

    def once(new_tokens: int) -> float:
        prompts = [
            [random.randrange(vocabulary) for _ in range(case.prompt)]
            for _ in range(case.sequences)
        ]
        return generate(prompts, new_tokens)

    once(FEW_TOKENS)
    few_s = min(once(FEW_TOKENS) for _ in range(REPEATS))
    return Timing(few_s, min(once(NEW_TOKENS) for _ in range(REPEATS)))


def write(
    path: Path, versions: dict[str, str], cases: list[Case], vocabulary: int, generate: Generate
) -> None:
    """Appends a line for each case as soon as it is measured."""
    for case in cases:
        row = timing(case, vocabulary, generate).row(case) | {"versions": versions}
        records.append(path, [row])
