"""vLLM's side of random arrivals: `python -m benchmarks.gpu.arrivals_vllm_theirs MODEL SECONDS
OUT`.

Its asynchronous engine with the defaults of its OpenAI server, random weights in fp16, token ids in
and out. Needs vllm, transformers, torch and numpy, not fusewire.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.arrivals import WARM, Request, all_but, requests_per_s, statistics
from benchmarks.gpu import arrivals_beside_vllm as load
from benchmarks.gpu.beside_vllm_theirs import write_config
from benchmarks.gpu.generation_workload import SHAPES
from benchmarks.gpu.random_weights import randomise

SETTLING_S = 1.0  # until the engine has dropped the requests that were cancelled


class Clients:
    """Submits requests to an engine and records when each of their tokens came."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._names = map(str, count())
        self._reading: list[asyncio.Task[None]] = []

    def offer(self, request: Request) -> None:
        self._reading.append(asyncio.ensure_future(self._read(request)))

    async def stop(self) -> None:
        """Cancels those that still read; raises the errors of others."""
        for reading in self._reading:
            reading.cancel()
        for ended in await asyncio.gather(*self._reading, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
        self._reading = []
        await asyncio.sleep(SETTLING_S)

    async def _read(self, request: Request) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = SamplingParams(
            temperature=0,
            ignore_eos=True,
            max_tokens=request.new,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        prompt = {"prompt_token_ids": request.prompt}
        async for output in self._engine.generate(prompt, sampling, next(self._names)):
            request.times += [time.perf_counter()] * len(output.outputs[0].token_ids)
            request.done = output.finished


async def capacity(clients: Clients, vocabulary: int, seed: int) -> float:
    """Returns the requests/s where enough requests always wait."""
    offered = load.waiting(vocabulary, seed)
    began = time.perf_counter()
    for request in offered:
        clients.offer(request)
    while not all_but(load.LAST, offered):
        await asyncio.sleep(0.002)
    found = requests_per_s(offered, time.perf_counter() - began)
    await clients.stop()
    return found


async def measured(clients: Clients, offered: list[Request], seconds: float) -> dict[str, Any]:
    """Offers each request at its time and returns the statistics of those after the warm-up. Ends
    after `seconds`, however many requests still wait."""
    began = time.perf_counter()
    for request in offered:
        await asyncio.sleep(max(0.0, began + request.at - time.perf_counter()))
        clients.offer(request)
    await asyncio.sleep(max(0.0, began + seconds - time.perf_counter()))
    end = time.perf_counter()
    await clients.stop()
    return statistics(offered, began, began + WARM * seconds, end)


async def measure(engine: Any, vocabulary: int, seconds: float, out: Path) -> None:
    versions = {package: version(package) for package in ("vllm", "torch")}
    clients = Clients(engine)
    await capacity(clients, vocabulary, load.WARM_UP_SEED)
    most = await capacity(clients, vocabulary, load.SEED)
    for share, offered in load.loads(load.SHARES, most, seconds, vocabulary):
        seen = await measured(clients, offered, seconds)
        load.write(out, versions, share, {"vllm": most}, seconds, seen)


async def main() -> None:
    model, seconds, out = sys.argv[1:]
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    with tempfile.TemporaryDirectory() as folder:
        arguments = AsyncEngineArgs(
            str(write_config(Path(folder), SHAPES[model])),
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="float16",
        )
        engine = AsyncLLM.from_engine_args(arguments, usage_context=UsageContext.OPENAI_API_SERVER)
        try:
            await engine.collective_rpc("apply_model", args=(randomise,))
            await measure(engine, SHAPES[model].vocabulary, float(seconds), Path(out))
        finally:
            engine.shutdown()


if __name__ == "__main__":
    # The second sends a function to the engine's process, which is ours.
    os.environ |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
    import uvloop  # the event loop of vLLM's server

    uvloop.run(main())
