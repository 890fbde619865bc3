"""/health and /metrics: for load balancers, orchestrators and Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Sequence
from http.client import HTTPException

from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fusewire_client import AsyncClient
from fusewire_client.errors import ClientError

from fusewire.serving.endpoint import Endpoint
from fusewire.serving.openai.errors import ApiError

_WITHIN_S = 5.0
_TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"  # Prometheus'


async def health(
    client: AsyncClient, models: Sequence[str], left_out: Container[str], *, named: bool
) -> Response:
    """Returns status 200 where every model accepts requests. Raises ApiError otherwise. `left_out`:
    models that the endpoint itself cannot serve. `named`: whether the answer lists models."""

    async def ready(model: str) -> bool:
        try:
            return model not in left_out and await client.ready(model, timeout_s=_WITHIN_S)
        except ClientError:
            return False

    answers = await asyncio.gather(*map(ready, models))
    if not all(answers):
        missing = [model for model, answer in zip(models, answers, strict=True) if not answer]
        got = ", ".join(missing) if named else f"{len(missing)} of {len(models)}"
        message = f"models: got {got} not ready, wanted all; try again later"
        raise ApiError(503, message, code="not_ready")
    return JSONResponse({"status": "ok"} | ({"models": list(models)} if named else {}))


async def metrics(endpoint: Endpoint) -> Response:
    """Returns Triton's metrics page unchanged."""
    try:
        page = await asyncio.to_thread(endpoint.metrics)
    except (OSError, HTTPException):
        raise ApiError(503, "metrics: Triton's page cannot be read; try again later") from None
    return PlainTextResponse(page, media_type=_TEXT_FORMAT)
