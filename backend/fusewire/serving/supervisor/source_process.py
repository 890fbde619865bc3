"""Collects the models of a server in a separate process.

Importing a folder loads its tokenizer and compiles its chat template, for which a malicious folder
can take any time and memory. The supervisor leaves that to a process that a signal can end.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fusewire.errors import FusewireError
from fusewire.parent_death import die_with
from fusewire.passed_errors import as_values, error_of
from fusewire.serving.config import Deployment, validated
from fusewire.serving.environment import of_own_process
from fusewire.serving.supervisor.sources import Collected, Source, collect

_COMMAND = (sys.executable, "-P", "-m", "fusewire.serving.supervisor.source_process")


def collect_apart(sources: Sequence[Source], imported: Path) -> Collected:
    """Runs `collect` in another process, with the same result, errors and warnings."""
    asked = {
        "parent": os.getpid(),
        "imported": str(imported),
        "sources": [_as_values(source) for source in sources],
    }
    process = subprocess.Popen(
        _COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=of_own_process(),
        start_new_session=True,  # the supervisor handles Ctrl-C
    )
    with process:
        try:
            answer, _ = process.communicate(json.dumps(asked, default=str).encode())
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise FusewireError(f"models: the process that reads them ended ({process.returncode})")
    found: dict[str, Any] = json.loads(answer)
    for name, level, text in found["logged"]:
        logging.getLogger(name).log(level, "%s", text)
    if "error" in found:
        raise error_of(found["error"])
    repositories, models, left_out = found["collected"]
    return Collected([Path(path) for path in repositories], models, left_out)


def main() -> None:
    """Reads the sources from stdin, and writes the result of `collect` to stdout."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # prints must not corrupt the answer
    asked = json.load(sys.stdin)
    die_with(asked["parent"])
    log = _Log()
    logging.getLogger("fusewire").addHandler(log)
    answer: dict[str, Any] = {"logged": log.logged}
    try:
        found = collect([_source(each) for each in asked["sources"]], Path(asked["imported"]))
    except (FusewireError, OSError) as error:
        answer["error"] = as_values(error)
    else:
        answer["collected"] = [list(map(str, found.repositories)), found.models, found.left_out]
    with answers:
        json.dump(answer, answers)


class _Log(logging.Handler):
    """Stores log records for the parent, which writes them to its log."""

    def __init__(self) -> None:
        super().__init__()
        self.logged: list[tuple[str, int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.logged.append((record.name, record.levelno, record.getMessage()))


def _as_values(source: Source) -> dict[str, Any]:
    return {
        "source": str(source.source),
        "path": isinstance(source.source, Path),
        "name": source.name,
        "revision": source.revision,
        "settings": source.settings,
        "shared": sorted(source.shared),
        "deployment": source.deployment.model_dump(mode="json", exclude_unset=True),
    }


def _source(values: dict[str, Any]) -> Source:
    path = Path(values["source"]) if values["path"] else values["source"]
    deployment = validated(Deployment, values["deployment"])
    named, settings = (values["name"], values["revision"]), values["settings"]
    return Source(path, *named, settings, deployment, frozenset(values["shared"]))


if __name__ == "__main__":
    main()
