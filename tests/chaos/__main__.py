"""Kills and freezes a service again and again under load: `python -m tests.chaos`.

`fusewire serve` with an encoder and a generator; clients ask both in an open loop, over gRPC, HTTP
and the OpenAI endpoint, each request with a deadline. First an operator reloads each model, which
must lose nothing. Then processes of models are killed and frozen, and tritonserver is killed: each
must be healed within the time that loading takes and five seconds, every client must get an answer
or an error within its deadline, and nothing may be left of what died.

Writes bench-results/chaos.jsonl, one JSON object a row.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import machine, records
from tests.chaos.faults import plan
from tests.chaos.run import Plan, Row, rows

RATES = {
    "grpc encode": 20.0,
    "grpc generate": 4.0,
    "http encode": 10.0,
    "http generate": 2.0,
    "openai encode": 4.0,
    "openai generate": 2.0,
}
_COUNTS = ("requests", "ok", "typed", "refused", "broken", "late")
_HEAD = f"{'what':20} {'healed':>8} {'limit':>7}  " + " ".join(f"{n:>8}" for n in _COUNTS)


def line(row: Row) -> str:
    notes = [*row["failures"][:5], *filter(None, [row.get("crash")])]
    words = "".join(f"\n    {note}" for note in notes)
    verdict = f"FAILED ({len(row['failures'])})" if row["failures"] else "as promised"
    if "healed_s" not in row:
        return f"{row['name']:20} {row['seconds']:>6} s  {verdict}{words}"
    healed = "never" if row["healed_s"] is None else f"{row['healed_s']:.2f} s"
    counts = " ".join(f"{row[name]:>8}" for name in _COUNTS)
    slowest = f"{row['slowest_error_s']:.2f} s"
    return f"{row['name']:20} {healed:>8} {row['limit_s']:>5.1f} s  {counts}  {slowest:>9}  " + (
        verdict + words
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--kills", type=int, default=20, help="of processes of models")
    parser.add_argument("--server-kills", type=int, default=5)
    parser.add_argument("--freezes", type=int, default=5, help="of processes of models")
    parser.add_argument("--reloads", type=int, default=3, help="of each model, by an operator")
    parser.add_argument("--deadline-s", type=float, default=10.0, help="of each request")
    parser.add_argument("--slack-s", type=float, default=1.0, help="for an answer to arrive")
    parser.add_argument("--tokens", type=int, default=20, help="of a generated text")
    parser.add_argument("--rate", type=float, default=1.0, help="times the usual load")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=records.RESULTS / "chaos.jsonl")
    given = parser.parse_args()
    chosen = Plan(
        faults=plan(given.kills, given.server_kills, given.freezes, given.seed),
        rates={way: given.rate * rate for way, rate in RATES.items()},
        reloads=given.reloads,
        deadline_s=given.deadline_s,
        slack_s=given.slack_s,
        tokens=given.tokens,
        seed=given.seed,
    )
    facts = machine.facts("fusewire", "nvidia-pytriton") | {"benchmark": "chaos"}
    failed, began = 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        print(f"{_HEAD}  last error", flush=True)
        for row in rows(Path(folder), chosen):
            records.append(given.out, [facts | {"case": row["name"]} | row])
            print(line(row), flush=True)
            failed += bool(row["failures"])
    print(f"took {time.monotonic() - began:.0f} s; " + (f"{failed} failed" if failed else "all ok"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
