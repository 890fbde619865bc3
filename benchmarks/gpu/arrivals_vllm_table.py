"""The tables of random arrivals beside vLLM, one for each model."""

from __future__ import annotations

from typing import Any

from benchmarks.records import Rows

KINDS = [f"{kind}_token_ms_p{q}" for kind in ("first", "inter") for q in (50, 99)]


def tables(rows: Rows) -> str:
    models = dict.fromkeys(row["model"] for row in rows)
    return "\n\n".join(_table([row for row in rows if row["model"] == model]) for model in models)


def _table(rows: Rows) -> str:
    (prompt, _, longest), (answer, _, most) = rows[0]["prompt"], rows[0]["answer"]
    capacities = next(row["capacities"] for row in rows if "fusewire" in row["capacities"])
    lines = [
        f"Requests that arrive at random (Poisson, {rows[0]['seconds']:g} s at each rate) in fp16, "
        f"prompts of up to {longest} tokens (median {prompt}), answers of up to {most} ({answer}), "
        "both log-normal, at shares of the rate that vLLM serves while requests always wait "
        f"({capacities['vllm']:.1f} requests/s; fusewire {capacities['fusewire']:.1f}). fusewire "
        "also at 1.15 times each share: where its p99 there is not above vLLM's at the share, its "
        "throughput at equal p99 is at least 1.15 times vLLM's:",
        "",
        "| model, load | requests/s | system | tokens/s | first token, ms: p50 | p99 "
        "| between tokens, ms: p50 | p99 |",
        "|---" * 8 + "|",
        *map(_line, sorted(rows, key=lambda row: (row["share"], row["system"]))),
    ]
    return "\n".join(lines)


def _line(row: dict[str, Any]) -> str:
    cells = [f"{row['model']}, {row['case']}", f"{row['rate']:.1f}", row["system"]]
    cells += [f"{row['tokens_per_s']:,.0f}", *(f"{row[kind]:.1f}" for kind in KINDS)]
    return f"| {' | '.join(cells)} |"
