"""Streams several texts from a server at once and shows the pieces as they arrive.

    fusewire serve writer=MODEL
    python examples/streaming.py [ADDRESS] [PROMPT]...

ADDRESS is the server's gRPC address. Leaving a stream cancels the rest of its text.
"""

from __future__ import annotations

import asyncio
import sys

from fusewire_client import AsyncClient

PROMPTS = ("A function", "The value of", "If an exception is raised")


async def show(client: AsyncClient, number: int, prompt: str) -> None:
    pieces = await client.generate(prompt, stream=True, max_new_tokens=24, temperature=0.8)
    async for piece in pieces:
        print(f"{number}: {piece!r}", flush=True)


async def main(address: str = "localhost:8001", *prompts: str) -> None:
    async with AsyncClient(address) as client:
        await asyncio.gather(
            *(show(client, number, prompt) for number, prompt in enumerate(prompts or PROMPTS))
        )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
