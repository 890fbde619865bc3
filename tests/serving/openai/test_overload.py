"""What clients of the OpenAI endpoint are told by an overloaded server, and what it is told of
them, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fastapi import Request
from fusewire.errors import DeadlineExceeded, Overloaded, QueueFull
from fusewire.serving.openai import errors
from fusewire.serving.openai.embeddings import EmbeddingRequest
from fusewire.serving.openai.generation import Generation
from fusewire.serving.openai.ranking import RerankRequest, rerank
from fusewire.serving.openai.sender import TENANT_HEADER, sender
from fusewire.settings import EngineSettings
from fusewire_client.calls import Infer
from fusewire_client.triton_errors import from_grpc
from pydantic import ValidationError

WORDS = "queue: got 7.3 s of work waiting, wanted at most 1 s"


def seconds(error: Exception) -> int:
    """Of its header Retry-After."""
    answer = errors.of(error)
    assert answer.status_code == 429
    assert answer.headers is not None
    return int(answer.headers["Retry-After"])


def test_retry_after_is_never_earlier_than_the_work_is_done() -> None:
    arrived = from_grpc("UNAVAILABLE", str(Overloaded(WORDS, 7.3)))
    assert seconds(arrived) == 8
    assert errors.of(arrived).body["error"]["code"] == "overloaded"


def test_a_full_queue_asks_for_a_second() -> None:
    assert seconds(QueueFull("queue: got 3 sequences waiting")) == 1


def test_what_expired_is_a_504_that_names_its_limit() -> None:
    answer = errors.of(DeadlineExceeded("timeout: got a request whose time has passed"))
    assert answer.status_code == 504
    assert answer.headers == {"x-should-retry": "false"}  # which OpenAI's clients heed
    found = answer.body["error"]
    assert (found["param"], found["code"], found["type"]) == (
        "timeout_seconds",
        "timeout",
        "timeout_error",
    )


def headed(*headers: tuple[str, str]) -> Request:
    encoded = [(name.encode(), value.encode()) for name, value in headers]
    return Request({"type": "http", "headers": encoded})


def test_a_gateways_header_names_the_tenant() -> None:
    assert TENANT_HEADER == "x-gateway-inference-fairness-id"
    assert sender(headed((TENANT_HEADER, "blue"))) == {"tenant": "blue"}
    assert sender(headed()) == {}


def test_a_bodys_options_go_to_the_model_and_not_among_its_parameters() -> None:
    body = EmbeddingRequest(model="m", input="a", priority=-3, timeout_seconds=2, normalize=True)  # type: ignore[call-arg]
    assert body.given() == {"normalize": True}
    assert body.options({"tenant": "blue"}) == {
        "tenant": "blue",
        "request_priority": -3,
        "timeout_s": 2,
    }
    assert EmbeddingRequest(model="m", input="a").options({}) == {}
    with pytest.raises(ValidationError, match="timeout_seconds"):
        EmbeddingRequest(model="m", input="a", timeout_seconds=0)


def test_ranking_passes_them_with_every_call() -> None:
    asked: list[dict[str, Any]] = []

    class Client:
        async def classify(self, *texts: Any, **given: Any) -> list[Any]:
            asked.append({**given, "texts": texts})
            return [SimpleNamespace(scores=np.ones(1))] * 2

    async def count(*arguments: Any) -> int:
        return 5

    model: Any = SimpleNamespace(
        name="m", task="classify", score_function="none", query_prompt="ask: ", count=count,
        max_length=8, request_settings=lambda parameters: EngineSettings(),
    )  # fmt: skip
    body = RerankRequest(query="q", documents=["a", "b"], timeout_seconds=1.5)
    asyncio.run(rerank(Client(), model, body, body.options({"tenant": "blue"})))  # type: ignore[arg-type]
    assert asked[0]["timeout_s"] == 1.5
    assert asked[0]["tenant"] == "blue"
    assert asked[0]["texts"] == (["ask: q"] * 2, ["a", "b"])


def test_each_prompt_of_a_generation_is_its_tenants() -> None:
    asked: list[Infer] = []

    class Transport:
        async def stream(self, call: Infer, timeout_s: float) -> AsyncGenerator[dict[str, Any]]:
            asked.append(call)
            for nothing in ():
                yield nothing

    transport: Any = Transport()
    made = Generation(
        transport, "m", ["a", "b"], {"n": 1}, {}, stream=False, sender={"tenant": "blue"}
    )
    asyncio.run(made.whole())
    assert [call.parameters for call in asked] == [{"tenant": "blue"}] * 2
