"""Clients that send slowly, that never finish, that never read, and that send too much."""

from __future__ import annotations

import contextlib
import json
import time

from tests.attacks.attack import HONEST, Stage, attack
from tests.attacks.requests import TYPED, closed_by_peer, connected, over_grpc

_CLOSED_S = 60.0
_HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
)
_MIB = 1 << 20
_STREAMS = 30


def _trickle(stage: Stage, head: bytes, byte: bytes) -> None:
    """200 connections that send a byte every second, until the endpoint has closed them all."""
    with contextlib.ExitStack() as stack:
        at = stage.target.addresses["openai"]
        opened = [stack.enter_context(connected(at)) for _ in range(200)]
        for connection in opened:
            connection.sendall(head)

        def all_closed() -> bool:
            nonlocal opened
            opened = [each for each in opened if not closed_by_peer(each)]
            for each in opened:
                with contextlib.suppress(OSError):
                    each.send(byte)
            time.sleep(1)
            return not opened

        took = stage.until(all_closed, _CLOSED_S, "slow connections are closed")
        stage.note(f"closed after {took:.0f} s")


@attack(HONEST)
def slow_headers(stage: Stage) -> None:
    _trickle(stage, b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ", b"a")


@attack(HONEST)
def slow_bodies(stage: Stage) -> None:
    _trickle(stage, _HEAD + b'Content-Length: 1000\r\n\r\n{"model": "', b"a")


@attack(HONEST)
def unfinished_bodies(stage: Stage) -> None:
    """60 bodies of 15 MB that never end."""
    block = b" " * _MIB
    before = stage.target.memory[-1][1]
    with contextlib.ExitStack() as stack:
        taken = 0
        for _ in range(60):
            with contextlib.suppress(OSError):  # refusing them is a good answer
                each = stack.enter_context(connected(stage.target.addresses["openai"]))
                each.sendall(_HEAD + f"Content-Length: {15 * _MIB}\r\n\r\n".encode())
                for _ in range(15):
                    each.sendall(block[: -1 if _ == 14 else None])
                    taken += 1
        stage.hold(1)  # a reading of the memory comes several times a second
        grown = stage.target.memory[-1][1] - before
    stage.note(f"{taken} MB taken, {grown >> 20} MB held")
    assert grown < 400 * _MIB, f"unfinished bodies hold {grown >> 20} MB"


@attack(HONEST)
def unread_streams(stage: Stage) -> None:
    """Streams of long texts that nobody reads, at the OpenAI endpoint and at Triton's HTTP port."""
    prompt = {"text_input": "Once", "parameters": {"max_new_tokens": 3000, "ignore_eos": True}}
    chat = {"model": "gpt", "prompt": "Once", "max_tokens": 3000, "stream": True}
    chat["ignore_eos"] = True
    with contextlib.ExitStack() as stack:
        for entrance, path, fields in (
            ("openai", "/v1/completions", chat),
            ("http", "/v2/models/gpt/generate_stream", prompt),
        ):
            body = json.dumps(fields).encode()
            head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            head += f"Content-Length: {len(body)}\r\n\r\n"
            for _ in range(_STREAMS // 2):
                each = stack.enter_context(connected(stage.target.addresses[entrance], 4096))
                each.sendall(head.encode() + body)
        stage.hold(8)


@attack(HONEST)
def refused_text(stage: Stage) -> None:
    """A text of 55 MB is refused, and the shared memory that it passed through is given back."""

    def shared() -> int:
        return sum(region.stat().st_blocks * 512 for region in stage.target.regions())

    before = shared()
    answer = over_grpc(stage.target.addresses["grpc"], "minilm", "a " * (27 * _MIB), 0, 60)
    assert answer.kind == TYPED, answer
    stage.note(f"refused after {answer.seconds:.1f} s, {(shared() - before) >> 20} MB shared")
    stage.until(lambda: shared() - before < 8 * _MIB, 30, "shared memory is given back")
