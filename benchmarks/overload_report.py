"""The overload benchmark's rows as lines and tables."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.records import Row, Rows

_GOODPUT, _POSSIBLE = "goodput_tokens_of_capacity", "possible_of_capacity"
_CLEARLY = 0.95
LATE_MS = 10.0  # p99 of clients' delay; above it the clients were the bottleneck, not the server


def line(row: Row) -> str:
    accepted = f"{row.get('accepted_ms_p50', '-')} p99 {row.get('accepted_ms_p99', '-')} ms"
    refused = f"refused {row['refused_requests']} p99 {row.get('refused_ms_p99', '-')} ms"
    return (
        f"{row['case']} of {', '.join(map(str, row['capacity']))}/s: "
        f"goodput {row['goodput_per_s']:.1f}/s = "
        f"{row['goodput_of_capacity']:.1%} of capacity, {row['goodput_tokens_of_capacity']:.1%} of "
        f"its tokens ({row['possible_of_capacity']:.1%} possible, "
        f"{row['goodput_of_offered']:.1%} of offered); accepted p50 {accepted}"
        f"{_first(row)}, {refused}, expired {row['expired_requests']}, "
        f"failed {row['failed_requests']}; recovered "
        f"{row['recovered_s']} s; Jain {row['jain']}; {row['resident_mib_before']} -> "
        f"{row['resident_mib_after']} MiB; busy cores: server {row['server_busy_cores']}, clients "
        f"{row['clients_busy_cores']}; client lag p99 {row.get('client_lag_ms_p99', '-')} ms; "
        f"others took {row['disturbed']:.0%}"
    )


def _first(row: Row) -> str:
    if "first_ms_p99" not in row:
        return ""
    return f", first token p50 {row['first_ms_p50']} p99 {row['first_ms_p99']} ms"


def late(rows: Rows) -> list[str]:
    """Returns the cases whose clients could not keep up."""
    return [row["case"] for row in rows if row.get("client_lag_ms_p99", 0.0) > LATE_MS]


def table(rows: Rows) -> str:
    """Returns a table of goodput by load and system, in tokens: for texts of equal length, the same
    as in requests. The possible goodput is shown below a load where it is clearly less than the
    offered load."""
    shares = sorted({row["share"] for row in rows})
    header = ["load", "protocol", "system", *(f"{share:g} x" for share in shares)]
    lines = []
    for load in dict.fromkeys(row["load"] for row in rows):
        of_load = [row for row in rows if row["load"] == load]
        lines += [
            [*kind, *(_median(of_load, _GOODPUT, kind, share) for share in shares)]
            for kind in _kinds(of_load)
        ]
        known = [row for row in of_load if _POSSIBLE in row]  # older rows lack it
        if any(row[_POSSIBLE] < _CLEARLY * min(1.0, row["share"]) for row in known):
            lines.append(
                [load, "", "possible", *(_median(known, _POSSIBLE, None, s) for s in shares)]
            )
    return _markdown(header, lines)


def tables(rows: Rows, where: Callable[[Rows], str] | None = None) -> str:
    """Returns the documentation's tables for each model: goodput, then further measurements of the
    lowest and of the highest load. `where` its rows were measured is below each."""
    models = dict.fromkeys(row["model"] for row in rows)
    parts: list[str] = []
    for model in models:
        of_model = [row for row in rows if row["model"] == model]
        for each in _of_model(of_model):
            parts += [each, where(of_model)] if where else [each]
    return "\n\n".join(parts)


def _of_model(rows: Rows) -> list[str]:
    shares = {row["share"] for row in rows}
    most = max(shares)
    columns: list[tuple[str, float, Callable[[Row], str]]] = []
    for share in dict.fromkeys((min(shares), most)):
        if any("first_ms_p99" in row for row in rows):
            columns.append(("first token p99 ms", share, _number("first_ms_p99")))
        columns.append(("accepted p99 ms", share, _number("accepted_ms_p99")))
    columns += [
        ("refusals' p99 ms", most, _number("refused_ms_p99")),
        ("expired", most, lambda row: f"{row['expired_requests'] / row['requests']:.0%}"),
        ("Jain's index", most, lambda row: f"{row['jain']:.2f}"),
        ("recovered s", most, lambda row: f"{row['recovered_s']:.1f}"),
        (
            "resident MiB",
            most,
            lambda row: f"{row['resident_mib_before']:.0f} → {row['resident_mib_after']:.0f}",
        ),
    ]
    found = {(_kind(row), row["share"]): row for row in rows}
    header = ["load", "protocol", "system", *(f"{name} at {at:g} x" for name, at, _ in columns)]
    lines = [
        [*kind, *(of(found[kind, at]) if (kind, at) in found else "" for _, at, of in columns)]
        for kind in _kinds(rows)
    ]
    first = rows[0]
    cores = f"{len(first['server_cores'])} cores" if first["server_cores"] else "the same cores"
    goodput = (
        f"{first['model']} on a CPU, the server on {cores}; requests arrive {_times(rows)} "
        "at so many times the rate that this server answers in a "
        f"closed loop before and after, each with a deadline of {first['deadline_s']:g} s. Tokens "
        "answered within the deadline, of the closed loop's rate"
    )
    if weights := [row["prompt_weight"] for row in rows if "prompt_weight" in row]:
        goodput += f" (a token of a prompt counts as about {median(weights):.1f})"
    return [f"{goodput}:\n\n{table(rows)}", f"The same runs:\n\n{_markdown(header, lines)}"]


def _times(rows: Rows) -> str:
    turns = sorted({(len(row["capacity"]) - 1, row["seconds"]) for row in rows})
    return " or ".join(f"{count} x {seconds:g} s" for count, seconds in turns)


def _kinds(rows: Rows) -> list[tuple[str, ...]]:
    return list(dict.fromkeys(_kind(row) for row in rows))


def _kind(row: Row) -> tuple[str, ...]:
    return row["load"], row["protocol"], row["system"]


def _median(rows: Rows, key: str, kind: tuple[str, ...] | None, share: float) -> str:
    """`kind` None: of all."""
    of = [row for row in rows if kind in (None, _kind(row)) and row["share"] == share]
    return f"{median(row[key] for row in of):.1%}" if of else ""


def _number(key: str) -> Callable[[Row], str]:
    def shown(row: Row) -> str:
        value: Any = row.get(key)
        return "none" if value is None else f"{value:.{0 if value >= 99.95 else 1}f}"

    return shown


def _markdown(header: list[str], lines: list[list[str]]) -> str:
    rule = "|" + "---|" * len(header)
    return "\n".join([f"| {' | '.join(header)} |", rule, *(f"| {' | '.join(x)} |" for x in lines)])
