"""Tables and goals of translation with beam search of texts that arrive at random."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import generation_curves
from benchmarks.generation_curves import RUN_TO_COMPLETION
from benchmarks.goal import Goal
from benchmarks.records import Rows

BENCHMARK = "seq2seq_poisson"
CTRANSLATE2 = "ctranslate2"
# Ratio of throughputs at an equal p99 of the milliseconds per token.
WANTED = {RUN_TO_COMPLETION: 2.5, CTRANSLATE2: 2.0}


def times_at_equal_p99(rows: Rows, other: str) -> list[dict[str, float]]:
    return generation_curves.times_at_equal_p99(rows, other, "ms_per_token_p99")


def goals(rows: Rows) -> list[Goal]:
    """Returns the goals at the other policy's rate where continuous batching gains least."""
    found = []
    for group in groups(rows):
        for other, wanted in WANTED.items():
            if times := [each["times"] for each in times_at_equal_p99(group, other)]:
                what = f"{group[0]['model']}, {group[0]['beams']} beams, arrivals, "
                what += f"{group[0]['work']}, at equal p99, times the tokens/s of {other}"
                least = min(times)
                found.append(Goal(what, f">= {wanted}", f"{least:.2f}", least >= wanted))
    return found


def groups(rows: Rows) -> Iterator[Rows]:
    """Yields the rows that can be compared, by load."""
    for work in dict.fromkeys(row["work"] for row in rows):
        of_work = [row for row in rows if row["work"] == work]
        yield sorted(of_work, key=lambda row: row["share"])


def tables(rows: Rows, where: Callable[[Rows], str] = lambda rows: "") -> str:
    """`where`: when and on what rows were measured, below each table."""
    return "\n\n".join(f"{_table(group)}\n\n{where(group)}".rstrip() for group in groups(rows))


def _table(rows: Rows) -> str:
    middle, _, most = rows[0]["source"]
    lines = [
        f"{rows[0]['model']}, {rows[0]['beams']} beams, texts that arrive at random (Poisson, "
        f"{rows[0]['seconds']:g} s at each rate), sources of up to {most} tokens (median {middle}, "
        f"log-normal), translations: {rows[0]['work']}; at most {rows[0]['texts']} texts at once "
        "(load: of what continuous batching does when texts always wait; none: texts without a "
        "translation at the end of the run, whose wait until then counts):",
        "",
        "| load | texts/s | batching | tokens/s | translation, ms: p50 | p99 | none "
        "| by its length, ms a token: p50 | p99 |",
        "|---" * 9 + "|",
        *map(line, rows),
    ]
    compared = []
    for other in WANTED:
        if times := times_at_equal_p99(rows, other):
            named = ", ".join(f"{each['times']:.2f} ({each['share']:.0%})" for each in times)
            compared.append(f"{other} {named}")
    if compared:
        what = "Times the throughput of others at equal p99 of ms a token, by their load"
        lines += ["", f"{what}: {'; '.join(compared)}."]
    return "\n".join(lines)


def line(row: dict[str, Any]) -> str:
    """Formats one measurement as a line of the table."""
    none = f"{row['without_answer']} of {row['requests']}"
    cells = [f"{row['share']:.0%}", f"{row['rate']:.2f}", row["policy"]]
    cells += [f"{row['tokens_per_s']:.0f}"]
    cells += [f"{row[f'answer_ms_p{q}']:.0f}" for q in (50, 99)]
    cells += [none, *(f"{row[f'ms_per_token_p{q}']:.1f}" for q in (50, 99))]
    return f"| {' | '.join(cells)} |"
