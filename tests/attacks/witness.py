"""Sends a normal request to each honest model over each entrance, a few times a second.

    python -m tests.attacks.witness GRPC HTTP OPENAI

Runs in a process of its own and writes a JSON line for each answer; every request has a connection
of its own, as those of new clients have.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.attacks.requests import OK, Outcome, over_grpc, post

ENTRANCES = ("grpc", "http", "openai")
_EVERY_S = 0.35
_LATE_S = 30.0
_RETRIES = 2  # as the client has it: on a loaded machine a first connection may fail
_AT_ONCE = 4  # of one kind: requests that hang do not hide that others are answered
_TEXT = "the text of a witness"
_TOKENS = 4

Ask = Callable[[], Outcome]


@dataclass(frozen=True)
class Seen:
    """One normal request: when it was sent (time.monotonic()), and its outcome."""

    entrance: str
    model: str
    began: float
    outcome: Outcome

    @property
    def ended(self) -> float:
        return self.began + self.outcome.seconds


def questions(grpc: str, http: str, openai: str) -> dict[tuple[str, str], Ask]:
    """(entrance, model) -> a normal request."""
    tensor = {"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": [_TEXT]}
    generate = {"text_input": _TEXT, "parameters": {"max_new_tokens": _TOKENS}}
    chat = {
        "model": "gpt",
        "messages": [{"role": "user", "content": _TEXT}],
        "max_tokens": _TOKENS,
    }
    embed = {"model": "minilm", "input": _TEXT}
    return {
        ("grpc", "minilm"): lambda: over_grpc(grpc, "minilm", _TEXT, 0, _LATE_S, _RETRIES),
        ("grpc", "gpt"): lambda: over_grpc(grpc, "gpt", _TEXT, _TOKENS, _LATE_S, _RETRIES),
        ("http", "minilm"): lambda: post(http, "/v2/models/minilm/infer", {"inputs": [tensor]}),
        ("http", "gpt"): lambda: post(http, "/v2/models/gpt/generate", generate),
        ("openai", "minilm"): lambda: post(openai, "/v1/embeddings", embed),
        ("openai", "gpt"): lambda: post(openai, "/v1/chat/completions", chat),
    }


class Witness:
    """The witness's process, and all that it has seen."""

    def __init__(self, addresses: dict[str, str]) -> None:
        self.seen: list[Seen] = []
        words = [addresses[entrance] for entrance in ENTRANCES]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.attacks.witness", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        threading.Thread(target=self._read, daemon=True).start()

    def all_answered(self, since: float, timeout_s: float) -> float | None:
        """When every kind of request that was sent after `since` had been answered well, without an
        error after it; None when that is not so within the time."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            good: dict[tuple[str, str], float] = {}
            for one in sorted(list(self.seen), key=lambda one: one.ended):
                if one.began < since:
                    continue
                if one.outcome.kind == OK:
                    good.setdefault((one.entrance, one.model), one.ended)
                else:
                    good.pop((one.entrance, one.model), None)
            if len(good) == 6:
                return max(good.values())
            time.sleep(0.05)
        return None

    def between(self, began: float, ended: float) -> list[Seen]:
        """Requests that were under way at some time between the two."""
        return [one for one in list(self.seen) if one.ended >= began and one.began <= ended]

    def stop(self) -> None:
        self._process.communicate()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            row = json.loads(line)
            self.seen.append(Seen(**row | {"outcome": Outcome(**row["outcome"])}))


def _watch(entrance: str, model: str, ask: Ask, ended: threading.Event) -> None:
    room = threading.Semaphore(_AT_ONCE)

    def once() -> None:
        began = time.monotonic()
        seen = Seen(entrance, model, began, ask())
        room.release()
        sys.stdout.write(json.dumps(asdict(seen)) + "\n")  # one write: threads share the pipe
        sys.stdout.flush()

    while not ended.wait(_EVERY_S):
        room.acquire()
        threading.Thread(target=once, daemon=True).start()


def main() -> None:
    ended = threading.Event()
    for (entrance, model), ask in questions(*sys.argv[1:]).items():
        threading.Thread(target=_watch, args=(entrance, model, ask, ended), daemon=True).start()
    sys.stdin.read()
    ended.set()


if __name__ == "__main__":
    main()
