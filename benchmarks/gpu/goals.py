"""The goals on the GPU, with the values of the last runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import generation_curves, seq2seq_poisson_report
from benchmarks.goal import Goal
from benchmarks.records import Rows, latest

TIMES_STRONGEST = 1.3  # at every grid point
SHARES = {
    ("BERT-base", "16x512"): 0.72,
    ("BERT-base", "64x512"): 0.75,
    ("BERT-large", "16x512"): 0.78,
}
DEVICE_MS = {("BERT-base", "1x32"): 0.25, ("BERT-base", "1x128"): 0.30}
SHARE_OF_COPY = 0.9
SERVED_OVER_ENGINE = 0.85  # with ids, at best
TIMES_FLOOR = {
    ("Llama-3-8B", 1): 1.15,
    ("Llama-3-8B", 16): 1.25,
    ("Llama-3-8B", 64): 1.35,
}
STEP_MS = {
    ("GPT-2 124M", 1): 0.30,
    ("GPT-2 124M", 32): 0.45,
    ("GPT 1.3B", 4): 1.0,
    ("GPT 1.3B", 16): 1.6,
}
MOST_ADDED_MS = 0.3  # between tokens, the overhead of serving
GENERATION_OVER_ENGINE = 0.90
SERVED_STREAMS = (64, 256)
PROMPT_SHARE = 0.65  # of the matmul rate
BEAMS_TIMES_FLOOR = {32: 2.5, 128: 2.0}  # by batch size
ENGINE_OVER_DEVICE = 1.15
BEAM_SHARE = 0.08
TIMES_EAGER = {1: 40.0, 32: 30.0, 128: 15.0}  # by batch size
TARGET_TOKENS_PER_S = {("Transformer-base", "128 x 32 -> 32, 4 beams"): 300_000}


def goals(path: Path) -> list[Goal]:
    """Returns the goals of every benchmark that has rows."""
    found: list[Goal] = []
    for name, rows in latest(path, gpu=True).items():
        own = [row for row in rows if row["system"] == "fusewire"]
        if name == "served":
            own = _best_with_ids(own)
        if name == generation_curves.BENCHMARK:
            found += generation_curves.goals(own)
        elif name == seq2seq_poisson_report.BENCHMARK:
            found += seq2seq_poisson_report.goals(own)
        else:
            found += [goal for row in own for goal in _OF_BENCHMARK[name](row)]
    return found


def text(path: Path) -> str:
    lines = []
    for goal in goals(path):
        verdict = "reached" if goal.reached else "missed"
        lines.append(f"{verdict:8} {goal.what}: {goal.measured}, wanted {goal.wanted}")
    return "\n".join(lines)


def _encoder(row: dict[str, Any]) -> list[Goal]:
    case = row["model"], row["case"]
    name = " ".join(case)
    if "device_ms" not in row:
        return [Goal(f"{name}, as right as transformers", "yes", "no", False)]
    found = []
    if "times_strongest_rival" in row:
        what = f"{name}, times the strongest rival ({row['strongest_rival']})"
        found.append(_at_least(what, TIMES_STRONGEST, row["times_strongest_rival"], "{:.2f}"))
    if case in SHARES:
        what = f"{name}, of the matmul rate"
        found.append(_at_least(what, SHARES[case], row["share_of_matmul"], "{:.1%}"))
    if case in DEVICE_MS:
        found.append(_at_most(f"{name}, device ms", DEVICE_MS[case], row["device_ms"], "{:.3f}"))
    return found


def _kernels(row: dict[str, Any]) -> list[Goal]:
    what = f"{row['case']}, of the copy bandwidth"
    return [_at_least(what, SHARE_OF_COPY, row["share_of_copy"], "{:.1%}")]


def _attention(row: dict[str, Any]) -> list[Goal]:
    what = f"attention {row['case']}, times the best rival ({row['best_rival']})"
    return [_at_least(what, 1.0, row["times_best_rival"], "{:.2f}")]


def _memory(row: dict[str, Any]) -> list[Goal]:
    what = "device memory beyond the context and the kernels' code, MiB"
    return [_at_most(what, row["allowed_mib"], row["beyond_context_mib"], "{:.0f}")]


def _best_with_ids(rows: Rows) -> Rows:
    """Returns the row with the most tokens/s: users choose how to deploy it and how to send
    requests."""
    rows = [row for row in rows if row["form"] == "ids"]
    return sorted(rows, key=lambda row: row["served_tokens_per_s"])[-1:]


def _served(row: dict[str, Any]) -> list[Goal]:
    how = f"instances: {row['instances']}, under way: {row['under_way']}"
    what = f"served ids ({how}), of the engine's tokens/s"
    return [_at_least(what, SERVED_OVER_ENGINE, row["served_over_engine"], "{:.1%}")]


def _generation(row: dict[str, Any]) -> list[Goal]:
    name = f"{row['model']} {row['case']}"
    if row["part"] == "eet":
        if "times_transformers" not in row:
            return []
        what = f"{name}, times transformers compiled"
        return [_at_least(what, 1.0, row["times_transformers"], "{:.2f}")]
    if "device_ms" not in row:
        return [Goal(f"{name}, as right as torch", "yes", "no", False)]
    if row["part"] == "prompt":
        what = f"{name}, of the matmul rate"
        return [_at_least(what, PROMPT_SHARE, row["share_of_matmul"], "{:.1%}")]
    if row["part"] == "context" and row["context"] == row["shortest"]:
        return []
    if row["part"] == "context":
        what = f"{name}, times the step at {row['shortest']}, as the bytes grow"
        return [_at_most(what, row["bytes_times_shortest"], row["times_shortest"], "{:.3f}")]
    key = row["model"], row["batch"]
    if key in TIMES_FLOOR:
        what = f"{name}, times the floor"
        return [_at_most(what, TIMES_FLOOR[key], row["times_floor"], "{:.2f}")]
    return [_at_most(f"{name}, device ms", STEP_MS[key], row["device_ms"], "{:.3f}")]


def _generation_served(row: dict[str, Any]) -> list[Goal]:
    name = f"{row['model']} served, {row['case']}"
    if row["streams"] == 1:
        added = row["added_between_ms"]
        return [_at_most(f"{name}, ms added between tokens", MOST_ADDED_MS, added, "{:.2f}")]
    if row["streams"] not in SERVED_STREAMS:
        return []
    return [
        _at_least(
            f"{name}, {words}, of the engine's tokens/s",
            GENERATION_OVER_ENGINE,
            row[f"{way}_tokens_per_s"] / row["engine_tokens_per_s"],
            "{:.1%}",
        )
        for way, words in (("server", "gRPC"), ("endpoint", "OpenAI endpoint"))
        if f"{way}_tokens_per_s" in row
    ]


def _seq2seq(row: dict[str, Any]) -> list[Goal]:
    name = f"{row['model']} {row['case']}"
    if "device_ms" not in row:
        return [Goal(f"{name}, as right as transformers", "yes", "no", False)]
    found = []
    if row["batch"] in BEAMS_TIMES_FLOOR:
        wanted = BEAMS_TIMES_FLOOR[row["batch"]]
        found.append(_at_most(f"{name}, times the floor", wanted, row["times_floor"], "{:.2f}"))
    what = f"{name}, engine's step over the device's"
    found.append(_at_most(what, ENGINE_OVER_DEVICE, row["engine_over_device"], "{:.2f}"))
    found.append(_at_most(f"{name}, beams' share", BEAM_SHARE, row["beam_share"], "{:.1%}"))
    if "times_transformers" in row and row["batch"] in TIMES_EAGER:
        what, wanted = f"{name}, times transformers", TIMES_EAGER[row["batch"]]
        found.append(_at_least(what, wanted, row["times_transformers"], "{:.1f}"))
    wanted_rate = TARGET_TOKENS_PER_S.get((row["model"], row["case"]))
    if wanted_rate is not None:
        what = f"{name}, target tokens/s"
        found.append(_at_least(what, wanted_rate, row["tokens_per_s"], "{:,.0f}"))
    return found


def _at_least(what: str, wanted: float, value: float, form: str) -> Goal:
    return Goal(what, f">= {form.format(wanted)}", form.format(value), value >= wanted)


def _at_most(what: str, wanted: float, value: float, form: str) -> Goal:
    return Goal(what, f"<= {form.format(wanted)}", form.format(value), value <= wanted)


_OF_BENCHMARK = {
    "encoder": _encoder,
    "kernels": _kernels,
    "gemm": lambda row: [],
    "attention": _attention,
    "attention_training": lambda row: [],
    "memory": _memory,
    "served": _served,
    "generation": _generation,
    "generation_vllm": lambda row: [],
    "generation_served": _generation_served,
    "seq2seq_gpu": _seq2seq,
}
