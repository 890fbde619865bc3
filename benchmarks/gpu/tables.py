"""The tables of the benchmarks on a GPU; all values come from rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import (
    generation_curves,
    seq2seq_poisson_report,
    training_report,
    turbo_report,
    weight_memory_report,
)
from benchmarks.gpu import (
    arrivals_vllm_table,
    generation_tables,
    seq2seq_tables,
    weight_formats_report,
)
from benchmarks.records import Rows, latest

UNITS = ("device_ms", "us", "traffic_mib", "served_over_engine", "run_ms", "tokens_per_s")
LAST_COLUMNS = ("speedup over the fastest other", "share", "wall ms")
GRID_TITLES = {
    "grid": "lengths uniform in 0.2 S..S",
    "lightseq": "LightSeq's grid, full lengths",
    "eet": "EET's grid, full lengths",
}


def markdown(path: Path) -> str:
    """Returns every table. Raises SystemExit when nothing was measured."""
    found = latest(path, gpu=True)
    tables = [table(found[name]) for name, table in TABLES.items() if name in found]
    if not tables:
        raise SystemExit(f"results: got none in {path}, wanted some; run python -m benchmarks.gpu")
    return "\n\n".join(tables)


def line(rows: Rows) -> str:
    """Formats one case that was just measured, for the terminal."""
    case = " ".join(str(rows[0][key]) for key in ("model", "case") if key in rows[0])
    right = [row for row in rows if "max_abs_difference" not in row or "device_ms" in row]
    unit = next((u for u in UNITS if right and all(u in row for row in right)), "")
    cells = [
        f"{r['system']} {r[unit]}" if unit in r else f"{r['system']} WRONG by {_off(r)}"
        for r in rows
    ]
    return f"{case} [{unit}]: {', '.join(cells)}"


def _off(row: dict[str, Any]) -> str:
    return f"{row['max_abs_difference']}, allowed {row['allowed_difference']}"


def _encoder(rows: Rows) -> str:
    parts = []
    for grid, title in GRID_TITLES.items():
        own = sorted(
            (r for r in rows if grid in r["grids"]), key=lambda r: (r["model"], r["tokens"])
        )
        if own:
            parts.append(_encoder_grid(own, title))
    return "\n\n".join(parts)


def _encoder_grid(rows: Rows, title: str) -> str:
    systems = _systems(rows)
    found = _by_case(rows)
    headings = ["batch x S (tokens)", *systems, *LAST_COLUMNS]
    lines = [
        f"Encoders in fp16, {title}: device ms of a forward, median (share: of the same run's "
        "8192³ matmul rate, real tokens' FLOPs only):",
        "",
        f"| {' | '.join(headings)} |",
        "|---" * len(headings) + "|",
    ]
    for (model, case), of_case in found.items():
        cells = [_cell(of_case.get(system), "device_ms", "{:.3f}") for system in systems]
        own = of_case.get("fusewire")
        last = [
            _cell(own, "times_strongest_rival", "{:.2f}"),
            _cell(own, "share_of_matmul", "{:.0%}"),
            _cell(own, "wall_ms", "{:.3f}"),
        ]
        tokens = next(iter(of_case.values()))["tokens"]
        lines.append(f"| {model} {case} ({tokens}) | {' | '.join([*cells, *last])} |")
    return "\n".join([*lines, "", _where(rows)])


def _kernels(rows: Rows) -> str:
    return _shares(
        rows,
        "Row kernels in fp16, {shape[0]} x {shape[1]}: TB/s read and written (share of the same "
        "run's copy bandwidth):",
        lambda row: f"{row['tb_s']:.2f} ({row['share_of_copy']:.0%})",
    )


def _gemm(rows: Rows) -> str:
    return _shares(
        rows,
        "BERT's matrix products in fp16 with bias, and erf GELU in the intermediate one, by "
        "tokens: TFLOP/s (share of the same run's 8192³ matmul rate):",
        lambda row: f"{row['tflops']:.0f} ({row['share_of_matmul']:.0%})",
    )


def _attention(rows: Rows) -> str:
    return _shares(
        rows,
        "Attention in fp16 on 16k packed tokens (heads x head_dim, longest sequence): TFLOP/s:",
        lambda row: f"{row['tflops']:.0f}",
    )


def _attention_training(rows: Rows) -> str:
    return _shares(
        rows,
        "Attention in training, in bf16 (heads x head_dim, sequences x tokens): TFLOP/s:",
        lambda row: f"{row['tflops']:.0f}",
    )


def _shares(rows: Rows, title: str, cell: Callable[[dict[str, Any]], str]) -> str:
    """Returns a table with a line per case and a column per system."""
    systems = _systems(rows)
    lines = [
        title.format(**rows[0]),
        "",
        f"| | {' | '.join(systems)} |",
        "|---" * (len(systems) + 1) + "|",
    ]
    for (_, case), of_case in _by_case(rows).items():
        cells = [cell(of_case[system]) if system in of_case else "" for system in systems]
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", _where(rows)])


def _memory(rows: Rows) -> str:
    columns = {
        "unloaded_mib": "context and code",
        "weights_mib": "weights",
        "planned_arena_mib": "arena, planned",
        "arena_mib": "arena, taken",
        "peak_reserved_mib": "peak from the driver",
        "beyond_context_mib": "all but context and code",
    }
    lines = [
        "Device memory of BERT-base in fp16 in service, MiB (150 sequences alone of 5 to 500 "
        "tokens, 30 batches of 16 of 102 to 512, twice):",
        "",
        f"| | {' | '.join(columns.values())} |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for row in rows:
        cells = [_cell(row, key, "{:.0f}") for key in columns]
        lines.append(f"| {row['system']} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", _where(rows)])


def _served(rows: Rows) -> str:
    return _listed(
        rows,
        "{model} in fp16 served over gRPC by the embedded Triton, {sequences} sequences of "
        "{lengths[0]} to {lengths[1]} tokens a request, tokens/s (queue: a request's; tokenize, "
        "compute: share of an instance's time):",
        {
            "requests": "{form}",
            "instances": "{instances}",
            "in flight": "{under_way}",
            "engine alone": "{engine_tokens_per_s:.0f}",
            "served": "{served_tokens_per_s:.0f}",
            "served / engine": "{served_over_engine:.0%}",
            "queue ms": "{queue_ms:.2f}",
            "tokenize": "{tokenize_share:.0%}",
            "compute": "{compute_share:.0%}",
        },
    )


def _generation(rows: Rows) -> str:
    parts = {row["part"]: [r for r in rows if r["part"] == row["part"]] for row in rows}
    return "\n\n".join(
        f"{table(parts[part])}\n\n{_where(parts[part])}"
        for part, table in generation_tables.TABLES.items()
        if part in parts
    )


def _generation_served(rows: Rows) -> str:
    lines = [
        "Generation in fp16 served by the embedded Triton over gRPC, and by the OpenAI endpoint "
        "in front of it, {prompt} + {tokens} tokens a stream, beside the engine alone: median ms "
        "between tokens of a stream, and tokens/s of all streams from their common beginning "
        "(share: of the engine's; some rows are from before the endpoint was measured):".format(
            **rows[0]
        ),
        "",
        "| streams | engine ms | gRPC ms | endpoint ms | engine tokens/s | gRPC tokens/s | share "
        "| endpoint tokens/s | share |",
        "|---" * 9 + "|",
    ]
    for row in rows:
        of_engine = row["engine_tokens_per_s"]
        rates = [row.get(f"{way}_tokens_per_s") for way in ("server", "endpoint")]
        cells = [f"{row['model']}, {row['case']}"]
        cells += [
            _cell(row, f"{side}_between_ms", "{:.2f}") for side in ("engine", "server", "endpoint")
        ]
        cells.append(f"{of_engine:.0f}")
        for rate in rates:
            cells += ["", ""] if rate is None else [f"{rate:.0f}", f"{rate / of_engine:.0%}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", _where(rows)])


def _generation_vllm(rows: Rows) -> str:
    lines = [
        "Generation beside vLLM in fp16, greedy, {new_tokens} new tokens for each prompt, all "
        "prompts submitted at once, host work included: ms a step, tokens/s of the whole run with "
        "its prompts, and ms until every prompt had 8 tokens (times: above 1 fusewire is "
        "faster):".format(**rows[0]),
        "",
        "| sequences x prompt | fusewire ms a step | vLLM | times | fusewire tokens/s | vLLM "
        "| times | fusewire first 8, ms | vLLM |",
        "|---" * 9 + "|",
    ]
    for (model, case), of_case in _by_case(rows).items():
        own, other = of_case["fusewire"], of_case["vllm"]
        cells = [f"{own['step_ms']:.3f}", f"{other['step_ms']:.3f}"]
        cells.append(f"{other['step_ms'] / own['step_ms']:.2f}")
        cells += [f"{own['tokens_per_s']:,.0f}", f"{other['tokens_per_s']:,.0f}"]
        cells.append(f"{own['tokens_per_s'] / other['tokens_per_s']:.2f}")
        cells += [_cell(row, "first_8_ms", "{:,.0f}") for row in (own, other)]
        lines.append(f"| {model} {case} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", _where(rows)])


def _listed(rows: Rows, title: str, columns: dict[str, str]) -> str:
    """Returns a table with a line per row; `columns` has the heading and format of each column."""
    lines = [title.format(**rows[0]), "", f"| {' | '.join(columns)} |"]
    lines.append("|---" * len(columns) + "|")
    lines += [f"| {' | '.join(columns.values())} |".format(**row) for row in rows]
    return "\n".join([*lines, "", _where(rows)])


def _images(rows: Rows) -> str:
    systems = _systems(rows)
    lines = [
        "Classifiers of images in fp16, 224 x 224, from pixel values on the host to logits on the "
        "host, median ms (all systems are given fp32 pixels in pageable memory):",
        "",
        f"| images | {' | '.join(systems)} | speedup over the fastest other |",
        "|---" * (len(systems) + 2) + "|",
    ]
    for (model, case), of_case in _by_case(rows).items():
        cells = [_cell(of_case.get(system), "median_ms", "{:.2f}") for system in systems]
        ratio = of_case["fusewire"]["times_best_rival"]
        lines.append(f"| {model}, {case} | {' | '.join(cells)} | {ratio:.2f} |")
    return "\n".join([*lines, "", _where(rows)])


def _served_images(rows: Rows) -> str:
    return _listed(
        rows,
        "{model} in fp16 served over gRPC by the embedded Triton, {images} JPEG files of "
        "{kilobytes} kB a request; beside it, alone on the machine, the engine given pixel "
        "values, and the processes that decode: images/s:",
        {
            "instances": "{instances}",
            "requests under way": "{under_way}",
            "engine": "{engine_images_per_s:.0f}",
            "decoder": "{decoder_images_per_s:.0f}",
            "served": "{served_images_per_s:.0f}",
            "of the slower": "{served_over_slower:.0%}",
        },
    )


def _python_api(rows: Rows) -> str:
    lines = [
        "Lists of texts from Python beside the engines that compute them (prompts: 128 tokens, and "
        "128 new tokens each; texts: of 25 to 128 tokens), of the engine's own rate in the same "
        "rounds:",
        "",
        "| model | work | system | per s | of the engine | CPU time, times the engine's |",
        "|---" * 6 + "|",
    ]
    for row in rows:
        lines.append(
            f"| {row['model']} | {row['case'].partition(' on ')[0]} | {row['system']} "
            f"| {row['per_s']:.0f} {row['unit']} | {row['share_of_engine']:.0%} "
            f"| {row['cpu_times_engine']:.2f} |"
        )
    return "\n".join([*lines, "", _where(rows)])


TABLES: dict[str, Callable[[Rows], str]] = {
    "encoder": _encoder,
    "kernels": _kernels,
    "gemm": _gemm,
    "attention": _attention,
    "attention_training": _attention_training,
    "memory": _memory,
    "served": _served,
    "images": _images,
    "served_images": _served_images,
    "python_api": _python_api,
    "generation": _generation,
    "generation_vllm": _generation_vllm,
    "arrivals_vllm": lambda rows: f"{arrivals_vllm_table.tables(rows)}\n\n{_where(rows)}",
    "generation_served": _generation_served,
    "seq2seq_gpu": lambda rows: seq2seq_tables.tables(rows, _where(rows)),
    generation_curves.BENCHMARK: lambda rows: f"{generation_curves.tables(rows)}\n\n{_where(rows)}",
    seq2seq_poisson_report.BENCHMARK: lambda rows: seq2seq_poisson_report.tables(rows, _where),
    turbo_report.BENCHMARK: lambda rows: f"{turbo_report.table(rows)}\n\n{_where(rows)}",
    training_report.GPU: lambda rows: f"{training_report.gpu_table(rows)}\n\n{_where(rows)}",
    training_report.GPU_MEMORY: lambda rows: (
        f"{training_report.gpu_memory_table(rows)}\n\n{_where(rows)}"
    ),
    weight_formats_report.BENCHMARK: lambda rows: (
        f"{weight_formats_report.table(rows)}\n\n{_where(rows)}"
    ),
    weight_memory_report.ON_GPUS: lambda rows: (
        f"{weight_memory_report.table(rows)}\n\n{_where(rows)}"
    ),
    training_report.DDP: lambda rows: f"{training_report.ddp_table(rows)}\n\n{_where(rows)}",
}


def _by_case(rows: Rows) -> dict[tuple[str, str], dict[str, dict[str, Any]]]:
    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row.get("model", ""), row["case"]), {})[row["system"]] = row
    return found


def _systems(rows: Rows) -> list[str]:
    """Returns the systems, ours first, the others in the order of their rows."""
    names = dict.fromkeys(row["system"] for row in rows)
    return sorted(names, key=lambda name: name != "fusewire")


def _cell(row: dict[str, Any] | None, key: str, form: str) -> str:
    return form.format(row[key]) if row is not None and key in row else ""


def _where(rows: Rows) -> str:
    row = rows[-1]
    named = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
    days = sorted({each["time"][:10] for each in rows})
    place = f"{' to '.join(dict.fromkeys((days[0], days[-1])))}, {row['gpu']}"
    place += f", driver {row['driver']}, CUDA {row['cuda']}; " if "driver" in row else "; "
    if "matmul_tflops" in row:
        place += f"matmul {row['matmul_tflops']:.0f} TFLOP/s, copy {row['copy_tb_s']:.2f} TB/s; "
    return f"{place}{named}."
