"""The four clients, as one function to call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fusewire_client import AsyncClient, Client

KINDS = ["grpc", "http", "grpc-async", "http-async"]
Call = Callable[..., Any]


def caller(kind: str, addresses: dict[str, str]) -> Call:
    """call(method, *args, options={...}, **kwargs) on a client of this kind."""
    protocol = kind.partition("-")[0]

    def call(method: str, *args: Any, options: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        settings = {"protocol": protocol, "timeout_s": 10, "backoff_s": 0.01, **(options or {})}
        if kind.endswith("async"):

            async def ask() -> Any:
                async with AsyncClient(addresses[protocol], **settings) as client:
                    return await getattr(client, method)(*args, **kwargs)

            return asyncio.run(ask())
        with Client(addresses[protocol], **settings) as client:
            return getattr(client, method)(*args, **kwargs)

    return call
