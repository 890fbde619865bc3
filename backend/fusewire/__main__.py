"""The command line: `fusewire`, or `python -m fusewire`. Ctrl-C ends it without a traceback, also
while it is still being imported."""

from __future__ import annotations

import sys


def main() -> None:
    """Imports the command line and runs it."""
    try:
        from fusewire.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
