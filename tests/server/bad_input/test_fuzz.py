"""Many requests of chance against the running server: it stays what it was."""

from __future__ import annotations

import collections
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fusewire.serving.supervisor.server import Server

from tests.reference import SENTENCES
from tests.server.bad_input.alike import alike
from tests.server.bad_input.broken_bodies import broken_body
from tests.server.bad_input.generator import MASK_ID, MODELS, generate
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
# Crashes and wrong answers show in each; what a small request leaves behind shows from 12 kB on in
# the short run, from 5 kB on in the long one.
LENGTHS = [3_000, pytest.param(7_000, marks=pytest.mark.sweep)]
ROUND = 1000
THREADS = 4
# Large requests leave a higher heap with holes in it; the same ones again do not add to it.
GROWTH_BYTES = 192 << 20
# Small requests, sent again, add nothing.
SMALL_BYTES = 4 << 10
SMALL_GROWTH_BYTES = 4 << 20


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


def small(index: int) -> bool:
    message = generate(SEED, index).message
    strings = [*message.parameters.values(), *message.parameters, message.id, message.model]
    sizes = [len(value) for value in strings if isinstance(value, str)]
    return sum(sizes) + sum(len(tensor.raw) for tensor in message.inputs) < SMALL_BYTES


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


@pytest.mark.parametrize("requests", LENGTHS)
def test_no_request_of_chance_harms_the_server(
    hostile_server: Server,
    grpc_caller: GrpcCaller,
    http_caller: HttpCaller,
    device: str,
    requests: int,
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
    began = time.monotonic()

    def send_all(threads: ThreadPoolExecutor, numbers: Sequence[int]) -> None:
        ends = list(threads.map(lambda index: send(index, grpc_caller, http_caller), numbers))
        failed = [end for end in ends if end.startswith("FAILED")]
        assert not failed, "\n\n".join([f"{len(failed)} failed", *failed[:3]])
        struck = [index for index, end in zip(numbers, ends, strict=True) if end == "struck"]
        again = [send(index, grpc_caller, http_caller) for index in struck]
        assert again == ["answered"] * len(struck), struck
        outcomes.update(ends)

    def memory() -> dict[str, int]:
        return {instance: resident_bytes(pid) for instance, pid in stubs.items()}

    def still_the_same() -> None:
        for reply, wanted in zip(probe(), before, strict=True):
            alike(device, reply, wanted)

    with ThreadPoolExecutor(THREADS) as threads:
        at_first = memory()
        for first in range(0, requests, ROUND):
            send_all(threads, range(first, first + ROUND))
            still_the_same()
        after_all = memory()
        send_all(threads, [index for index in range(requests * 3 // 4) if small(index)])
        at_last = memory()
    still_the_same()
    assert hostile_server.process.running()
    assert hostile_server.process.pid == process
    assert {stub.instance: stub.pid for stub in hostile_server.process.stubs()} == stubs
    grown = {name: after_all[name] - at_first[name] for name in stubs}
    grown_by_small = {name: at_last[name] - after_all[name] for name in stubs}
    print(f"{dict(outcomes)} in {time.monotonic() - began:.1f} s, {grown=}, {grown_by_small=}")
    assert max(grown.values()) < GROWTH_BYTES, grown
    if device == "cpu":  # on a GPU shapes are recorded on their second visit
        assert max(grown_by_small.values()) < SMALL_GROWTH_BYTES, grown_by_small
    # Each kind of end is common: a generator that lost its aim would pass all of the above.
    assert (
        min(outcomes[kind] for kind in ("answered", "refused", "refused by Triton"))
        > requests // 11
    )
