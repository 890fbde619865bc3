"""The command line: which attacks, how often, and the table of what became of them."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.attacks import (  # noqa: F401 (each registers its attacks)
    bodies,
    busy,
    connections,
    ending,
    gateway,
    local_user,
    queued,
    slow_clients,
    templates,
    triton_ports,
    versions,
)
from tests.attacks.attack import ATTACKS, Attack
from tests.attacks.run import Result, Run, raise_limits

_HEAD = f"{'attack':38}  {'slowest':>7}  {'errors':>6}  {'healed':>6}  {'memory MB':>16}  verdict"


def chosen(names: Sequence[str]) -> list[Attack]:
    """By name, or all of a file; in the order in which they share services."""
    known = {*ATTACKS, *(attack.subject for attack in ATTACKS.values())}
    for name in names:
        if name not in known:
            sys.exit(f"{name}: no attack, wanted one of {', '.join(sorted(known))}")
    found = [a for a in ATTACKS.values() if not names or {a.name, a.subject} & set(names)]
    order = list(dict.fromkeys(attack.on for attack in ATTACKS.values()))
    return sorted(found, key=lambda attack: (order.index(attack.on), attack.heals_s))


def row(result: Result) -> str:
    slowest = "-" if result.slowest_s is None else f"{result.slowest_s:.2f} s"
    healed = "-" if result.healed_s is None else f"{result.healed_s:.1f} s"
    memory = "-"
    if result.memory is not None:
        memory = "/".join(str(used >> 20) for used in result.memory)
    line = f"{result.name:38}  {slowest:>7}  {result.errors:>6}  {healed:>6}  {memory:>16}  "
    line += result.verdict
    words = [result.skipped] if result.skipped else [*result.notes, *result.failures]
    return line + "".join(f"\n    {word}" for word in words)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of an attack, or of a file")
    parser.add_argument("--times", type=int, default=1, help="runs in a row")
    parser.add_argument("--keep", action="store_true", help="keep logs in the temporary folder")
    given = parser.parse_args()
    attacks = chosen(given.names)
    raise_limits()
    failed = 0
    for time_ in range(given.times):
        folder = Path(tempfile.mkdtemp(prefix="attacks-"))
        began = time.monotonic()
        print(f"run {time_ + 1} of {given.times}\n{_HEAD}", flush=True)
        for result in Run(folder).results(attacks):
            print(row(result), flush=True)
            failed += result.verdict == "FAILED"
        print(f"took {time.monotonic() - began:.0f} s", flush=True)
        if given.keep:
            print(f"logs: {folder}")
        else:
            shutil.rmtree(folder)
    print(f"{failed} failed" if failed else "all as promised")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
