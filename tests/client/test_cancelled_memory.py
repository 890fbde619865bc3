"""Calls on asyncio that are cancelled, one after another, leave no memory outside Python's heap."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from itertools import pairwise

import numpy as np
import pytest
from fusewire_client.calls import Infer
from fusewire_client.grpc_transports import AsyncGrpcTransport

CALLS, ROUNDS = 200, 4
SPARE = 32  # bytes a call; of a cancelled task grpcio keeps 96, for calls with one answer 960
CALL = Infer("any", {"x": np.zeros(3, np.float32)}, ("y",), {})


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """That of a server whose allocations are not this process's."""
    command = [sys.executable, "-m", "tests.client.endless_server"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as server:
        assert server.stdout is not None
        yield f"127.0.0.1:{int(server.stdout.readline())}"
        server.communicate()


async def leave_before_the_answer(transport: AsyncGrpcTransport) -> None:
    task = asyncio.ensure_future(transport.send(CALL, 60))
    await asyncio.sleep(0.002)
    await cancelled(task)


async def leave_a_stream_after_a_response(transport: AsyncGrpcTransport) -> None:
    arrived = asyncio.Event()

    async def read() -> None:
        async with aclosing(transport.stream(CALL, 60)) as responses:
            async for _ in responses:
                arrived.set()

    task = asyncio.ensure_future(read())
    await arrived.wait()
    await asyncio.sleep(0)  # it waits for the next one
    await cancelled(task)


async def cancelled(task: asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


def allocated() -> int:
    """The bytes of all that `malloc` has given out."""

    class Statistics(ctypes.Structure):
        _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]  # of which h: uordblks

    libc = ctypes.CDLL("libc.so.6")
    libc.mallinfo2.restype = Statistics
    gc.collect()
    return int(libc.mallinfo2().h)


@pytest.mark.parametrize("leave", [leave_before_the_answer, leave_a_stream_after_a_response])
def test_a_cancelled_call_leaves_no_memory(
    leave: Callable[[AsyncGrpcTransport], Awaitable[None]], address: str
) -> None:
    async def growths() -> list[int]:
        transport = AsyncGrpcTransport(address, False, {}, 0)
        seen = []
        for _ in range(ROUNDS):
            for _ in range(CALLS):
                await leave(transport)
            await asyncio.sleep(0.1)  # its last calls end
            seen.append(allocated())
        await transport.close()
        return [after - before for before, after in pairwise(seen)]

    # What a call leaves is in every round; buffers that grow once are not.
    assert min(asyncio.run(growths())) < CALLS * SPARE
