"""The tables of translation with beam search on a GPU."""

from __future__ import annotations

from benchmarks.records import Rows

OURS = "fusewire"
# Columns of our rows about rivals: heading, key, format. The step in torch is compared with our
# device time.
_BESIDE = (
    ("times", "times_transformers", "{:.1f}"),
    ("torch's device", "torch_step_ms", "{:.3f}"),
    ("times", "times_torch", "{:.2f}"),
)


def tables(rows: Rows, where: str) -> str:
    """Returns the tables; `where` they were measured is below each."""
    return "\n\n".join([_speed(rows), where, _host(rows), where])


def _speed(rows: Rows) -> str:
    others = list(dict.fromkeys(row["system"] for row in rows if row["system"] != OURS))
    columns = {
        "tokens/s": "{tokens_per_s:,.0f}",
        "ms a step": "{step_ms:.3f}",
        "device": "{device_ms:.3f}",
        "engine / device": "{engine_over_device:.2f}",
        "floor": "{floor_ms:.3f}",
        "device / floor": "{times_floor:.2f}",
        "beams' share": "{beam_share:.1%}",
    }
    beside = [each for each in _BESIDE if any(each[1] in row for row in rows)]
    headings = [
        *columns,
        *(f"{name} tokens/s" for name in others),
        *(heading for heading, _, _ in beside),
    ]
    found = {(row["model"], row["case"], row["system"]): row for row in rows}
    lines = [
        "Translation with beams (sources x tokens of each -> new tokens), all sources given at "
        "once, no text ends by itself: tokens/s of the best texts with the encoder's pass and all "
        "of the host's work, and ms of a step:",
        "",
        f"| | {' | '.join(headings)} |",
        "|---" * (len(headings) + 1) + "|",
    ]
    for model, case, system in found:
        own = found[model, case, system]
        if system != OURS or "device_ms" not in own:
            continue
        cells = [form.format(**own) for form in columns.values()]
        for name in others:
            other = found.get((model, case, name))
            cells.append(f"{other['tokens_per_s']:,.0f}" if other else "")
        cells += [form.format(own[key]) if key in own else "" for _, key, form in beside]
        lines.append(f"| {model} {own['dtype']}, {case} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _host(rows: Rows) -> str:
    own = [row for row in rows if "host_us" in row]
    parts = list(dict.fromkeys(name for row in own for name in row["host_us"]))
    lines = [
        "The host's microseconds of a step, median by part; `device_wait` is spent waiting:",
        "",
        f"| | {' | '.join(parts)} | page copies |",
        "|---" * (len(parts) + 2) + "|",
    ]
    for row in own:
        cells = [f"{row['host_us'].get(name, 0.0):.0f}" for name in parts]
        copies = f"{row['page_copies']:.0f}"
        lines.append(f"| {row['model']}, {row['case']} | {' | '.join([*cells, copies])} |")
    return "\n".join(lines)
