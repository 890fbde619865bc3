"""Writes docs/performance.md and its pictures from the rows in docs/results: `python -m
benchmarks.pages`. `--take` first replaces those rows by newer ones of the same cases."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.pages import pictures, text
from benchmarks.pages.rows import COMMITTED, take
from benchmarks.records import RESULTS

PAGE, IMAGES = Path("docs/performance.md"), Path("docs/images")


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.pages", description=__doc__)
    parser.add_argument(
        "--take",
        nargs="?",
        const=RESULTS,
        type=Path,
        metavar="PATH",
        help=f"take rows from this file or folder (default: {RESULTS})",
    )
    options = parser.parse_args()
    if options.take is not None:
        for name, count in take(options.take, COMMITTED).items():
            print(f"{name}: {count} rows replaced or added")
    PAGE.write_text(text.page(COMMITTED), encoding="utf-8")
    print(PAGE)
    for name, picture in pictures.PICTURES.items():
        print(picture.write(COMMITTED, IMAGES / f"{name}.svg"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
