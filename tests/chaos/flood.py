"""A closed loop in a process of its own: so many requests, as fast as they are answered.

    python -m tests.chaos.flood ADDRESS MODEL REQUESTS UNDER_WAY EVERY TOKENS

Writes the number of answers to stdout, a line for every EVERY of them. Any error ends it.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.clients import OK, WAYS, Load, Ways

_PATIENCE_S = 60.0


def answered(
    address: str, way: str, requests: int, under_way: int, every: int, tokens: int
) -> Iterator[int]:
    """Yields the number of answers so far; RuntimeError where one is none."""
    numbers = [str(number) for number in (requests, under_way, every, tokens)]
    command = [sys.executable, "-m", "tests.chaos.flood", address, way, *numbers]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            yield int(line)
    if process.returncode:
        raise RuntimeError(f"{way}: its clients ended with exit code {process.returncode}")


async def _flood(load: Load, way: str, requests: int, under_way: int, every: int) -> None:
    ways = Ways(load)
    begun = ended = 0

    async def one_after_another() -> None:
        nonlocal begun, ended
        while begun < requests:
            begun += 1
            outcome, words = await WAYS[way](ways)
            if outcome != OK:
                raise RuntimeError(f"{way}: {outcome} {words}")
            ended += 1
            if ended % every == 0:
                print(ended, flush=True)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(under_way):
                group.create_task(one_after_another())
    finally:
        await ways.close()


def main() -> None:
    address, way, *numbers = sys.argv[1:]
    requests, under_way, every, tokens = map(int, numbers)
    load = Load({"grpc": address}, {}, _PATIENCE_S, 0.0, tokens)
    asyncio.run(_flood(load, way, requests, under_way, every))


if __name__ == "__main__":
    main()
