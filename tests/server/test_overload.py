"""A server with more work than time: what it cannot do in time it refuses at once and never
computes, what it took it answers, and it recovers.

The engine is held by one long request, which a thread computes alone, however fast the machine is
and however many cores it has; the others come while it is computed. Another as long cannot be
answered soon then, a short one can.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import re
import time
from collections.abc import Iterator
from typing import Any

import fusewire_client
import numpy as np
import pytest
from fusewire.serving.config import Deployment, ServerSettings
from fusewire.serving.repository import import_folder
from fusewire.serving.supervisor.server import Server
from tritonclient.utils import InferenceServerException

from tests.reference import tiny_checkpoint
from tests.server.asking import Asker, _inputs, ids, until

# Far more work than the limits below and what a test does meanwhile, for any core; micro-batches
# of a row, after each of which the model says what it has still to do.
ROWS, LENGTH, HIDDEN = 120, 1024, 384
ROW = [101, *[7] * (LENGTH - 2), 102]
LONG = ids(*[ROW] * ROWS)
MODELS = {
    "slow": {"max_queue_ms": 86_400_000},
    "narrow": {"max_queue_ms": 20},
    "strict": {"max_queue_ms": 86_400_000, "slo_ms": 20},
}
SHORT = [101, 7, 8, 102]
# A text that fits, of three tokens a word: the model, too, has to refuse it for lack of time.
FULL = b"word " * ((LENGTH - 2) // 3)
POLLED_S = 1.0  # within it the metrics are up to date
PATIENT_S = 60.0
REFUSALS = 20
REFUSED = r"queue: got .*; try again in \d+\.\d s"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root, folder = tmp_path_factory.mktemp("repository"), tmp_path_factory.mktemp("slow")
    tiny_checkpoint(
        folder, "bert", max_length=LENGTH, hidden_size=HIDDEN, intermediate_size=4 * HIDDEN
    )
    for name, limits in MODELS.items():
        import_folder(
            folder,
            root,
            name=name,
            settings={
                "task": "embed",
                "dtype": "float32",
                "max_batch_tokens": LENGTH,
                "threads": 1,
                **limits,
            },
            deployment=Deployment(device="cpu"),
            link=True,
        )
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "openai_port": 0}
    # The watchdog's own requests would count.
    settings = ServerSettings(
        log_level="error", accept_token_ids=True, watch_interval_s=3600, exit_timeout_s=2, **ports
    )
    with Server([root], settings) as server:
        yield server


@pytest.fixture(scope="module")
def asker(server: Server) -> Iterator[Asker]:
    with Asker(server) as asker:
        yield asker


@contextlib.contextmanager
def held(asker: Asker, model: str) -> Iterator[None]:
    """While the model computes a long request, whose client leaves at the end."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    before = tokens(asker, model)
    long = asker.client.async_infer(
        model, _inputs(LONG), lambda result, error: answers.put(error or result)
    )
    until(lambda: tokens(asker, model) > before)
    try:
        yield
        assert answers.empty()  # all of this came while it was computed
    finally:
        long.cancel()
        assert "CANCELLED" in str(answers.get(timeout=30).status())
        time.sleep(POLLED_S)
        until(lambda: asker.metric("fusewire_backlog_seconds", model=model) == 0)


def tokens(asker: Asker, model: str) -> float:
    return asker.metric("fusewire_tokens_total", model=model)


def rejected(asker: Asker, reason: str, model: str) -> float:
    return asker.metric("fusewire_rejected_total", model=model, reason=reason)


def at(seconds: float) -> int:
    """As Triton has it."""
    return int(seconds * 1e6)


def test_what_cannot_be_in_time_is_refused_at_once_and_not_computed(asker: Asker) -> None:
    time.sleep(POLLED_S)
    before, computed = rejected(asker, "overload", "narrow"), tokens(asker, "narrow")
    with held(asker, "narrow"):
        for _ in range(REFUSALS):
            with pytest.raises(InferenceServerException, match=f"UNAVAILABLE.*{REFUSED}"):
                asker.ask("narrow", LONG)
    until(lambda: rejected(asker, "overload", "narrow") == before + REFUSALS)
    time.sleep(POLLED_S)
    rows = (tokens(asker, "narrow") - computed) / LENGTH
    assert 1 <= rows <= ROWS  # of the first one, not of the others
    assert rows == int(rows)


def refused_by(asker: Asker, protocol: str, text: bytes) -> str:
    """The words with which a request for far too many texts is refused."""
    texts = np.full((ROWS, 1), text, object)
    if protocol == "grpc":
        with pytest.raises(InferenceServerException) as caught:
            asker.ask("narrow", {"text_input": texts}, parameters={"tenant": "blue"})
        return str(caught.value)
    endpoint = asker.server.endpoint
    connection = http.client.HTTPConnection(endpoint.reachable, endpoint.http_port, timeout=30)
    with contextlib.closing(connection):
        data = [text.decode("latin-1") for text in texts[:, 0]]
        given = {"name": "text_input", "shape": [ROWS, 1], "datatype": "BYTES", "data": data}
        body = {"inputs": [given], "parameters": {"tenant": "blue", "request_priority": 1}}
        connection.request("POST", "/v2/models/narrow/infer", json.dumps(body))
        answer = connection.getresponse()
        return f"{answer.status} {answer.read().decode()}"


def answered_by(asker: Asker, model: str) -> int:
    """Requests that the model's process has answered; an error is an answer, too."""
    (row,) = asker.server.endpoint.call(f"models/{model}/stats")["model_stats"]
    return int(row["inference_stats"]["success"]["count"])


@pytest.mark.alone
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_what_is_refused_does_not_get_into_tritons_queue(asker: Asker, protocol: str) -> None:
    """But for those that come when the model has said nothing for 0.1 s. It counts all."""
    time.sleep(POLLED_S)
    before = rejected(asker, "overload", "narrow")
    answered = answered_by(asker, "narrow")
    with held(asker, "narrow"):
        for _ in range(REFUSALS):
            words = refused_by(asker, protocol, FULL)
            assert re.search(REFUSED, words)
            assert ("UNAVAILABLE" if protocol == "grpc" else "503") in words
    until(lambda: rejected(asker, "overload", "narrow") == before + REFUSALS)
    assert answered_by(asker, "narrow") - answered < REFUSALS


def test_what_is_invalid_is_answered_so_however_much_waits(asker: Asker) -> None:
    with held(asker, "narrow"):
        assert "text_input[0]: got byte 0xff" in refused_by(asker, "grpc", b"word \xff" * 50)
        wrong = ids(*[ROW] * ROWS, attention_mask=[[2] * LENGTH] * ROWS)
        with pytest.raises(InferenceServerException, match="attention_mask: got 2"):
            asker.ask("narrow", wrong)
        with pytest.raises(InferenceServerException, match="tenant: got 7"):
            asker.ask("narrow", LONG, parameters={"tenant": 7})


def test_the_service_recovers_as_soon_as_the_work_has_gone(asker: Asker) -> None:
    with held(asker, "narrow"), pytest.raises(InferenceServerException, match=REFUSED):
        asker.ask("narrow", LONG)
    time.sleep(POLLED_S)
    assert asker.ask("narrow", ids(ROW))["embedding"].shape == (1, HIDDEN)
    assert asker.metric("fusewire_backlog_seconds", model="narrow") < 1.0


def test_who_has_less_time_is_answered_before_who_has_more(asker: Asker) -> None:
    with held(asker, "slow"):
        found = asker.client.infer("slow", _inputs(ids(SHORT)), timeout=at(PATIENT_S))
        assert found.as_numpy("embedding").shape == (1, HIDDEN)


def test_what_is_late_is_not_computed_and_counted_as_that(asker: Asker) -> None:
    time.sleep(POLLED_S)
    before, computed = rejected(asker, "deadline", "slow"), tokens(asker, "slow")
    with pytest.raises(InferenceServerException, match=r"UNAVAILABLE.*timeout: got"):
        asker.client.infer("slow", _inputs(ids(SHORT)), timeout=1)
    until(lambda: rejected(asker, "deadline", "slow") == before + 1)
    time.sleep(POLLED_S)
    assert tokens(asker, "slow") == computed


def test_a_models_objective_is_the_time_of_requests_that_name_none(asker: Asker) -> None:
    with pytest.raises(InferenceServerException, match=f"{REFUSED}|timeout: got"):
        asker.ask("strict", LONG)
    found = asker.client.infer("strict", _inputs(ids(*[ROW] * 2)), timeout=at(PATIENT_S))
    assert found.as_numpy("embedding").shape == (2, HIDDEN)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_clients_get_a_typed_error_that_says_when_to_return(asker: Asker, protocol: str) -> None:
    endpoint = asker.server.endpoint
    port = endpoint.grpc_port if protocol == "grpc" else endpoint.http_port
    address = f"{endpoint.reachable}:{port}"
    many: dict[str, Any] = {"ids": LONG["input_ids"], "model": "narrow"}
    with (
        fusewire_client.Client(address, protocol=protocol, max_batch=ROWS, retries=0) as client,  # type: ignore[arg-type]
        held(asker, "narrow"),
    ):
        with pytest.raises(fusewire_client.Overloaded) as caught:
            client.embed(**many, attention_mask=np.ones_like(LONG["input_ids"]))
        assert caught.value.retry_after_s is not None
        assert caught.value.retry_after_s > 0
        options: dict[str, Any] = {"timeout_s": PATIENT_S, "tenant": "b", "request_priority": -1}
        assert client.embed(ids=[SHORT], model="slow", **options).shape == (1, HIDDEN)


def test_the_generate_endpoint_takes_the_same_options(asker: Asker) -> None:
    endpoint = asker.server.endpoint

    def generate(**parameters: Any) -> tuple[int, str]:
        connection = http.client.HTTPConnection(endpoint.reachable, endpoint.http_port, timeout=30)
        with contextlib.closing(connection):
            body = {"input_ids": SHORT, "parameters": parameters}
            connection.request("POST", "/v2/models/slow/generate", json.dumps(body))
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    status, words = generate(timeout=1)
    assert status != 200  # 400, as Triton makes of every error there
    assert "timeout: got a request whose time has passed" in words
    assert generate(tenant="blue", request_priority=2, timeout=at(PATIENT_S))[0] == 200
    assert "tenant: got 7" in generate(tenant=7)[1]


class OpenAI:
    """Requests to the OpenAI endpoint without a client library, which would try again."""

    def __init__(self, server: Server) -> None:
        assert server.openai is not None
        self._address = server.openai.address

    def post(self, **body: Any) -> http.client.HTTPResponse:
        self.connection = http.client.HTTPConnection(self._address, timeout=60)
        head = {"Content-Type": "application/json", "x-gateway-inference-fairness-id": "blue"}
        self.connection.request("POST", "/v1/embeddings", json.dumps(body), head)
        return self.connection.getresponse()


def test_the_openai_endpoint_says_when_to_return(server: Server, asker: Asker) -> None:
    openai = OpenAI(server)
    with held(asker, "narrow"):
        answer = openai.post(model="narrow", input=[ROW] * ROWS)
        error = json.loads(answer.read())["error"]
        assert (answer.status, error["code"]) == (429, "overloaded")
        assert int(answer.headers["Retry-After"]) >= 1
    answer = openai.post(model="slow", input=[SHORT], timeout_seconds=PATIENT_S, priority=1)
    assert answer.status == 200
    answer = openai.post(model="slow", input=[SHORT], priority=5000)
    assert answer.status == 400
    assert json.loads(answer.read())["error"]["param"] == "priority"


def test_who_leaves_the_openai_endpoint_is_not_computed(server: Server, asker: Asker) -> None:
    time.sleep(POLLED_S)
    computed = tokens(asker, "slow")
    assert server.openai is not None
    connection = http.client.HTTPConnection(server.openai.address, timeout=30)
    body = json.dumps({"model": "slow", "input": [ROW] * ROWS})
    connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
    until(lambda: tokens(asker, "slow") > computed)
    connection.close()
    until(lambda: asker.metric("fusewire_requests_total", model="slow", outcome="cancelled") >= 1)
    time.sleep(POLLED_S)
    assert tokens(asker, "slow") - computed < ROWS * LENGTH
    asker.ask("slow", ids(SHORT))
