"""Bodies that are wrong, and large: each is refused, in bounded time and memory."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.attacks.attack import HONEST, Stage, attack
from tests.attacks.requests import TYPED, Outcome, post

_REFUSED_S = 10.0
MIB = 1 << 20
# Route -> a body around the list that is wrong.
_ROUTES: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/chat/completions": ({"model": "gpt"}, "messages"),
    "/tokenize": ({"model": "gpt"}, "messages"),
    "/v1/completions": ({"model": "gpt"}, "prompt"),
    "/v1/embeddings": ({"model": "minilm"}, "input"),
    "/v1/rerank": ({"model": "minilm", "query": "q"}, "documents"),
    "/v1/score": ({"model": "minilm", "text_1": "q"}, "text_2"),
    "/detokenize": ({"model": "gpt"}, "tokens"),
}
_ENTRIES = ("{}", "[]", '"a"', "1", "null", "1.5", "[[1]]", '{"role": 1}')


def _listed(route: str, entry: str, size_bytes: int) -> bytes:
    """A body of about this size: the route's list, of nothing but `entry`."""
    fields, name = _ROUTES[route]
    head = json.dumps(fields)[:-1] + f', "{name}": ['
    count = (size_bytes - len(head) - 2) // (len(entry) + 1)
    return (head + ",".join([entry] * count) + "]}").encode()


def _refused(answer: Outcome, what: str) -> None:
    assert answer.kind == TYPED, f"{what}: {answer}"
    assert 400 <= answer.status < 500, f"{what}: {answer}"
    assert answer.seconds < _REFUSED_S, f"{what}: refused after {answer.seconds:.1f} s"


def _wrong_messages(stage: Stage, size_bytes: int) -> None:
    route = "/v1/chat/completions"
    body = _listed(route, "1", size_bytes)
    answer = post(stage.target.addresses["openai"], route, body, timeout_s=60)
    stage.note(f"refused after {answer.seconds:.1f} s")
    _refused(answer, f"messages of {size_bytes // MIB} MB")


@attack(HONEST)
def wrong_messages_1mb(stage: Stage) -> None:
    _wrong_messages(stage, MIB)


@attack(HONEST)
def wrong_messages_4mb(stage: Stage) -> None:
    _wrong_messages(stage, 4 * MIB)


@attack(HONEST)
def wrong_messages_16mb(stage: Stage) -> None:
    _wrong_messages(stage, 16 * MIB - 64)


@attack(HONEST)
def wrong_lists(stage: Stage) -> None:
    """256 KB of each kind of entry on every route. Some are right for a route, and answered."""
    openai = stage.target.addresses["openai"]
    for route in _ROUTES:
        for entry in _ENTRIES:
            answer = post(openai, route, _listed(route, entry, MIB // 4))
            if answer.status != 200:
                _refused(answer, f"{route} with {entry}")


@attack(HONEST)
def wrong_lists_at_once(stage: Stage) -> None:
    """Eight clients with 4 MB each."""
    openai = stage.target.addresses["openai"]

    def send(number: int) -> Outcome:
        route = list(_ROUTES)[number % len(_ROUTES)]
        return post(openai, route, _listed(route, "[]", 4 * MIB))

    with ThreadPoolExecutor(8) as pool:
        for answer in pool.map(send, range(8)):
            assert answer.kind == TYPED, answer


@attack(HONEST)
def odd_bodies(stage: Stage) -> None:
    """Deep nesting, a hundred thousand fields, long numbers and names, no JSON at all."""
    route = "/v1/chat/completions"
    bodies = {
        "deep": b'{"model":"gpt","messages":' + b"[" * 500_000 + b"]" * 500_000 + b"}",
        "fields": json.dumps({f"a{n}": n for n in range(100_000)}).encode(),
        "extra fields": json.dumps(
            {"model": "gpt", "messages": [{"role": "user", "content": "a"}]}
            | {f"a{n}": n for n in range(100_000)}
        ).encode(),
        "number": b'{"model":"gpt","messages":' + b"1" * 4 * MIB + b"}",
        "name": b'{"model":"' + b"a" * 4 * MIB + b'","messages":[]}',
        "objects": b'{"model":"gpt","messages":[' + b'{"role":"user","content":"a"},' * 200_000
        + b"1]}",
        "no JSON": b"\xff" * MIB,
    }  # fmt: skip
    for what, body in bodies.items():
        _refused(post(stage.target.addresses["openai"], route, body), what)
