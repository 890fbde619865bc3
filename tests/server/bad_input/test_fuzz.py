"""Many requests of chance against the running server: it stays what it was."""

from __future__ import annotations

import collections
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fusewire.serving.server import Server

from tests.reference import SENTENCES
from tests.server.bad_input.generator import MASK_ID, MODELS, broken_body, generate
from tests.server.bad_input.message import (
    GrpcCaller,
    HttpCaller,
    Message,
    Reply,
    ids,
    texts,
)
from tests.server.bad_input.verdict import judge

SEED = 20261121
REQUESTS = 11_000
ROUND = 1000
THREADS = 4
# The largest request alone (300 kB of text, tokenised) takes a few MB; a leak of 10 kB a request
# would show.
GROWTH_BYTES = 64 << 20


def probes() -> Iterator[Message]:
    """Good requests of different lengths for every model, by text and by ids."""
    for model in MODELS:
        for words in (1, 4, 9):
            text = " ".join(SENTENCES[words].split()[:words])
            inputs = [texts(f"[MASK] {text}" if model == "fill" else text)]
            if model == "answer":
                inputs.append(texts(SENTENCES[2], name="text_pair"))
            yield Message(model, inputs)
        for length in (4, 33, 64):
            row = [2, 3, MASK_ID, *range(9, 6 + length)]
            yield Message(model, [ids(row)])


def resident_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("RssAnon"))
    return int(line.split()[1]) << 10


def send(index: int, grpc_caller: GrpcCaller, http_caller: HttpCaller) -> str:
    """Sends the request of that number and says how it ended; what is wrong with it, on FAILED."""
    case = generate(SEED, index)
    reply: Reply | None = None
    try:
        if index % 10:
            reply = grpc_caller.call(case.message)
        else:
            path, headers, body = case.message.http()
            if index % 20:
                rng = random.Random(f"{SEED}-{index}-body")
                body = broken_body(rng, body)
                headers = {} if rng.random() < 0.7 else headers
                case.good = False
            reply = http_caller.post(path, headers, body)
        return judge(case, reply)
    except Exception as error:
        return f"FAILED: generate({SEED}, {index}): {error}\n{repr(case.message)[:1000]}\n{reply}"


def test_no_request_of_chance_harms_the_server(
    hostile_server: Server, grpc_caller: GrpcCaller, http_caller: HttpCaller
) -> None:
    def probe() -> list[Reply]:
        """All at once, so that they also meet in executions."""
        calls = [grpc_caller.begin(message) for message in probes()]
        return [grpc_caller.finish(call) for call in calls]

    before = probe()
    assert all(reply.status == "OK" for reply in before), before
    process = hostile_server.process.pid
    stubs = {stub.instance: stub.pid for stub in hostile_server.process.stubs()}
    outcomes: collections.Counter[str] = collections.Counter()
    memory: dict[int, int] = {}
    began = time.monotonic()
    with ThreadPoolExecutor(THREADS) as threads:
        for first in range(0, REQUESTS, ROUND):
            numbers = range(first, first + ROUND)
            ends = list(threads.map(lambda index: send(index, grpc_caller, http_caller), numbers))
            failed = [end for end in ends if end.startswith("FAILED")]
            assert not failed, "\n\n".join([f"{len(failed)} failed", *failed[:3]])
            struck = [index for index, end in zip(numbers, ends, strict=True) if end == "struck"]
            again = [send(index, grpc_caller, http_caller) for index in struck]
            assert again == ["answered"] * len(struck), struck
            outcomes.update(ends)
            assert probe() == before, f"after generate({SEED}, {first + ROUND - 1})"
            # Whatever is made at first use has been made after the first round.
            memory = memory or {pid: resident_bytes(pid) for pid in stubs.values()}
    assert hostile_server.process.running()
    assert hostile_server.process.pid == process
    assert {stub.instance: stub.pid for stub in hostile_server.process.stubs()} == stubs
    grown = {pid: resident_bytes(pid) - bytes_before for pid, bytes_before in memory.items()}
    print(f"{dict(outcomes)} in {time.monotonic() - began:.1f} s, grown by {grown}")
    assert max(grown.values()) < GROWTH_BYTES, grown
    # Each kind of end is common: a generator that lost its aim would pass all of the above.
    assert min(outcomes[kind] for kind in ("answered", "refused", "refused by Triton")) > 1000
