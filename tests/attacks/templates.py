"""Chat templates and pre-tokenizers of folders that never finish: only their own model suffers."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tests.attacks.attack import Kind, Stage, attack
from tests.attacks.folders import Folders
from tests.attacks.requests import LATE, OK, TYPED, Outcome, post
from tests.attacks.service import Service

# Of a rendering or tokenisation that takes too long, and of those that waited for it.
_ENDED_S = 60.0
_STOPPED_S = 20.0  # of the service: its exit timeout of 3 s, and unloading
TEMPLATES = {
    "strip": "{{ ('a' * 3000000).strip('b' * 3000000 ~ 'a') }}",
    "sum": "{{ ([[]] * 200000) | sum(start=[1] * 200000) }}",
    "loop": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "memory": "{% set ns = namespace(t='a' * 1000) %}"
    "{% for a in range(40) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}{{ ns.t }}",
}


def _sources(folders: Folders) -> list[str]:
    hostile = [f"{name}={folders.chat(name, text)}" for name, text in TEMPLATES.items()]
    return [*hostile, f"backtracking={folders.backtracking}"]


HOSTILE = Kind("hostile", sources=_sources, flags=("--watch-interval-s=1", "--watch-timeout-s=5"))


def _chat(at: str, model: str, content: str = "Hello", route: str = "chat") -> Outcome:
    path = "/tokenize" if route == "tokenize" else "/v1/chat/completions"
    body = {"model": model, "messages": [{"role": "user", "content": content}]}
    return post(at, path, body, timeout_s=_ENDED_S)


def _refused(answers: list[Outcome]) -> None:
    for answer in answers:
        assert answer.kind != LATE, f"no answer within {_ENDED_S:.0f} s"
        assert answer.kind in (TYPED, OK), answer


@attack(HOSTILE)
def endless_templates(stage: Stage) -> None:
    """A client of each model that chats, and one that tokenises, all at once."""
    at = stage.target.addresses["openai"]
    names = [name for name in TEMPLATES for _ in range(2)]
    routes = ["chat", "tokenize"] * len(TEMPLATES)
    with ThreadPoolExecutor(len(names)) as pool:
        answers = list(pool.map(partial(_chat, at), names, ["Hello"] * len(names), routes))
    stage.note(f"refused after {max(answer.seconds for answer in answers):.1f} s")
    _refused(answers)


@attack(HOSTILE)
def backtracking_tokenizer(stage: Stage) -> None:
    """Eight chats of 5 KB that the pre-tokenizer's regular expression takes for ever to split."""
    at = stage.target.addresses["openai"]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(partial(_chat, at, "backtracking"), ["x" * 5000] * 8))
    stage.note(f"refused after {max(answer.seconds for answer in answers):.1f} s")
    _refused(answers)


def _rendering(stage: Stage) -> tuple[Service, ThreadPoolExecutor]:
    """A service whose OpenAI endpoint renders and tokenises what never finishes."""
    service = stage.make(_sources(stage.folders), HOSTILE.flags)
    at = service.addresses["openai"]
    pool = ThreadPoolExecutor(6)
    for name in ("strip", "sum"):
        pool.submit(_chat, at, name)
    for _ in range(4):
        pool.submit(_chat, at, "backtracking", "x" * 5000)
    stage.hold(1.5)  # for the requests to arrive
    return service, pool


@attack(None)
def sigterm_while_rendering(stage: Stage) -> None:
    service, pool = _rendering(stage)
    began = time.monotonic()
    service.signal(signal.SIGTERM)
    code = service.wait(_STOPPED_S)
    stage.note(f"exit code {code} after {time.monotonic() - began:.1f} s")
    if code is None:
        service.end()
    pool.shutdown()
    assert code == 0, f"SIGTERM while a template renders: exit code {code}"


@attack(None)
def second_signal(stage: Stage) -> None:
    """A second SIGTERM ends the service at once."""
    service, pool = _rendering(stage)
    service.signal(signal.SIGTERM)
    stage.hold(0.5)
    began = time.monotonic()
    service.signal(signal.SIGTERM)
    code = service.wait(8)
    stage.note(f"exit code {code} after {time.monotonic() - began:.1f} s")
    if code is None:
        service.end()
    pool.shutdown()
    assert code is not None, "a second SIGTERM did not end the service within 8 s"
