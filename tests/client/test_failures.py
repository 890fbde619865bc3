"""Errors, retries, deadlines, cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fusewire_client import (
    AsyncClient,
    Cancelled,
    Client,
    ClientError,
    DeadlineExceeded,
    Expired,
    InvalidArgument,
    NoConnection,
    NotFound,
    Overloaded,
    PermissionDenied,
    ServerError,
    Unavailable,
)
from fusewire_client.pace import Pace
from fusewire_client.retry import Attempts, Retry
from fusewire_client.triton_errors import from_grpc, from_http, from_words

from tests.client.fake_triton import (
    OVERLOADED,
    QUEUE_FULL,
    FakeTriton,
    Refusal,
    serve_grpc,
    serve_http,
)
from tests.client.four_clients import KINDS, Call, caller
from tests.server.asking import until


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_errors_are_typed_and_carry_the_servers_words(call: Call, server: FakeTriton) -> None:
    with pytest.raises(InvalidArgument, match="pooling: got 'best', wanted cls or mean") as caught:
        call("embed", ["a"], model="mini", pooling="best")
    assert caught.value.message == "pooling: got 'best', wanted cls or mean"
    assert caught.value.status in ("INVALID_ARGUMENT", "400")
    with pytest.raises(NotFound, match="got 'absent', wanted one of masked, mini, mood, "):
        call("embed", ["a"], model="absent")
    with pytest.raises(NotFound, match="got 'absent', wanted one of masked"):
        call("infer", "absent", {"text_input": np.array([["x"]], np.object_)})
    assert len(server.seen) == 3  # none was tried again


def test_the_other_protocols_port_is_named(kind: str, addresses: dict[str, str]) -> None:
    """Also where "is it ready?" would be answered by no."""
    crossed = {"grpc": addresses["http"], "http": addresses["grpc"]}
    wanted = {"grpc": "speaks HTTP, wanted a gRPC port", "http": "does not speak HTTP, wanted an"}
    for method, args in (("embed", [["a"]]), ("ready", [])):
        with pytest.raises(InvalidArgument, match=wanted[kind.partition("-")[0]]):
            caller(kind, crossed)(method, *args)


def test_a_server_fault_is_not_tried_again(call: Call, server: FakeTriton) -> None:
    server.failures = [Refusal("INTERNAL", "stub process is not healthy")]
    with pytest.raises(ServerError, match="not healthy"):
        call("embed", ["a"], model="mini")
    assert len(server.seen) == 1


def test_unavailable_is_tried_again(call: Call, server: FakeTriton) -> None:
    server.failures = [Refusal("UNAVAILABLE", "busy")] * 3
    assert call("embed", ["a"], model="mini").shape == (1, 2)
    assert len(server.seen) == 4


def test_retries_end(call: Call, server: FakeTriton) -> None:
    server.failures = [Refusal("UNAVAILABLE", "busy")] * 9
    with pytest.raises(Unavailable, match="busy"):
        call("embed", ["a"], model="mini", options={"retries": 2})
    assert len(server.seen) == 3


def test_one_failed_request_of_several_fails_the_call(call: Call, server: FakeTriton) -> None:
    server.failures = [Refusal("INTERNAL", "broken")]
    with pytest.raises(ServerError, match="broken"):
        call("embed", ids=[[1], [2], [3]], model="mini")


def test_a_deadline_is_kept(call: Call, server: FakeTriton) -> None:
    server.delay_s = 60
    begin = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        call("embed", ["a"], model="mini", timeout_s=0.3)
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_listens(kind: str) -> None:
    with socket.socket() as taken:  # by nobody else, and refuses
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        call = caller(kind, {"grpc": address, "http": address})
        assert call("ready") is False
        with pytest.raises(NoConnection, match=r"(?i)connect"):
            call("embed", ["a"], model="mini", options={"retries": 1})


@pytest.mark.parametrize("kind", KINDS)
def test_a_host_without_an_address_has_no_connection(kind: str) -> None:
    call = caller(kind, dict.fromkeys(("grpc", "http"), "nowhere.invalid:8000"))
    with pytest.raises(NoConnection, match=r"nowhere\.invalid"):
        call("embed", ["a"], model="mini", options={"retries": 0})


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_comes_late_is_found(kind: str, server: FakeTriton) -> None:
    port = free_port()
    services = []

    def start() -> None:
        serve = serve_grpc if kind.startswith("grpc") else serve_http
        services.append(serve(server, port)[0])

    timer = threading.Timer(0.5, start)
    timer.start()
    call = caller(kind, {"grpc": f"127.0.0.1:{port}", "http": f"127.0.0.1:{port}"})
    try:
        options = {"retries": 200, "backoff_s": 0.2, "timeout_s": 60}
        assert call("embed", ["a"], model="mini", options=options).shape == (1, 2)
    finally:
        timer.join()
        for service in services:
            service.stop(None) if kind.startswith("grpc") else service.shutdown()


@contextlib.contextmanager
def relay(address: str, delay_s: float) -> Iterator[str]:
    """Another address of a server, where connections take long before anything comes back."""
    host, _, port = address.rpartition(":")

    def pump(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def serve(client: socket.socket) -> None:
        time.sleep(delay_s)
        with client, socket.create_connection((host, int(port))) as server:
            back = threading.Thread(target=pump, args=(server, client))
            back.start()
            pump(client, server)
            back.join()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threads.append(threading.Thread(target=serve, args=(client,)))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads = [threading.Thread(target=accept)]
        threads[0].start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


def test_a_connection_may_take_long(kind: str, addresses: dict[str, str]) -> None:
    with relay(addresses[kind.partition("-")[0]], 0.5) as address:
        call = caller(kind, {"grpc": address, "http": address})
        assert call("embed", ["a"], model="mini", options={"retries": 0}).shape == (1, 2)


def test_cancelling_a_task_cancels_the_request(
    addresses: dict[str, str], server: FakeTriton
) -> None:
    server.delay_s = 60

    async def ask() -> None:
        async with AsyncClient(addresses["grpc"]) as client:
            task = asyncio.ensure_future(client.embed(["a"], model="mini"))
            while not server.seen:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(ask())
    assert server.cancelled.wait(30)


def test_threads_share_a_client(addresses: dict[str, str], server: FakeTriton) -> None:
    server.delay_s = 0.01
    wrong: list[tuple[int, float]] = []
    with Client(addresses["grpc"], model="mini") as client:

        def work(n: int) -> None:
            for _ in range(10):
                value = client.embed(["x" * n])[0, 0]
                if value != n:
                    wrong.append((n, value))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
    assert len(server.seen) == 80


def test_waits_double_are_jittered_and_capped() -> None:
    highest = Retry(first_s=0.1, longest_s=0.5, uniform=lambda low, high: high)
    assert [highest.wait_s(n) for n in range(4)] == [0.1, 0.2, 0.4, 0.5]
    drawn = [Retry(first_s=1.0).wait_s(0) for _ in range(200)]
    assert 0 <= min(drawn) < 0.2 < 0.8 < max(drawn) <= 1.0


def test_a_wait_never_outlives_the_deadline() -> None:
    now = [0.0]
    retry = Retry(retries=9, first_s=1.0, uniform=lambda low, high: high)
    attempts = Attempts(retry, 2.5, clock=lambda: now[0])
    busy = Unavailable("busy")
    assert attempts.remaining_s() == 2.5
    assert attempts.wait_s(busy) == 1.0
    now[0] = 1.0
    with pytest.raises(Unavailable, match="busy"):  # the next wait, 2 s, would end at 3.0
        attempts.wait_s(busy)
    now[0] = 3.0
    with pytest.raises(DeadlineExceeded):
        attempts.remaining_s()


def test_restricted_is_not_unavailable() -> None:
    words = "This protocol is restricted, expecting header 'triton-grpc-protocol-key'"
    assert isinstance(from_grpc("UNAVAILABLE", words), PermissionDenied)
    assert isinstance(from_http(403, words), PermissionDenied)
    assert isinstance(from_http(500, "x"), ServerError)


@pytest.mark.parametrize(
    ("words", "meaning"),
    [
        (
            "unexpected inference output 'text_output' for model 'minilm'",
            "model: got minilm, wanted one that does 'generate'; name another with model=…",
        ),
        (
            "[request id: 1] unexpected inference output 'label' for model 'minilm'",
            "model: got minilm, wanted one that does 'classify'; name another with model=…",
        ),
        (
            "stream: got false, wanted one of the parameters of embed (pooling); remove it",
            "model: got one that does 'embed', wanted one that does 'generate'; name another with "
            "model=…",
        ),
        (
            "ModelInfer RPC doesn't support models with decoupled transaction policy",
            "model: got one that generates, wanted one that does another task; name another with "
            "model=…, or call generate(…), for audio transcribe(…)",
        ),
        (
            "unexpected inference output 'cumulative_logprob' for model 'minilm'",
            "model: got minilm, wanted one that does 'generate', or for audio 'transcribe'; name "
            "another with model=…",
        ),
        (
            "unexpected inference output 'alignment' for model 'gpt2'",
            "model: got gpt2, wanted an encoder-decoder model; name another with model=…",
        ),
        (
            "unexpected inference output 'language' for model 'gpt2'",
            "model: got gpt2, wanted one that does 'transcribe'; name another with model=…",
        ),
        (
            "unexpected inference input 'image' for model 'minilm'",
            "model: got minilm, wanted one that reads images; name another with model=…",
        ),
        (
            "unexpected inference input 'exclude_input_in_output' for model 'whisper'",
            "model: got whisper, wanted one that does 'generate' of a text; name another with "
            "model=…",
        ),
        (
            "unexpected inference input 'colour' for model 'other'",
            "model: got other, wanted one with the input 'colour'; name another with model=…",
        ),
    ],
)
def test_a_model_of_another_task_is_named_as_such(words: str, meaning: str) -> None:
    for error in (from_grpc("INVALID_ARGUMENT", words), from_http(400, words), from_words(words)):
        assert isinstance(error, InvalidArgument)
        assert str(error) == meaning


@pytest.mark.parametrize(
    "options",
    [{"protocol": "udp"}, {"timeout_s": 0}, {"max_batch": 0}, {"retries": -1}, {"concurrency": 0}],
)
def test_options_are_checked(options: dict) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        Client("localhost:8001", **options)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("address", ["http://localhost:8000", "localhost", "localhost:", ""])
def test_an_address_is_a_host_with_a_port(protocol: str, address: str) -> None:
    with pytest.raises(InvalidArgument, match="wanted host:port"):
        Client(address, protocol=protocol)  # type: ignore[arg-type]


def test_a_lone_surrogate_is_named() -> None:
    wanted = pytest.raises(InvalidArgument, match=r"texts\[1\]: got a lone surrogate at 2")
    with Client("localhost:8001") as client, wanted:
        client.embed(["fine", "ab\ud800"])


def test_the_server_is_told_how_long_an_answer_is_of_use(call: Call, server: FakeTriton) -> None:
    call("embed", ["a"], model="mini", timeout_s=5.0)
    call("embed", ["a"], model="mini", options={"timeout_s": 5.0})
    assert len(server.timeouts_us) == 2
    assert all(4_000_000 < told <= 5_000_000 for told in server.timeouts_us)
    # Where none is named, the server's own objective holds.
    call("embed", ["a"], model="mini", options={"timeout_s": None})
    call("embed", ["a"], model="mini", timeout_s=86400.0)
    assert len(server.timeouts_us) == 2


def test_each_attempt_tells_what_is_left(call: Call, server: FakeTriton) -> None:
    server.failures = [Refusal("UNAVAILABLE", OVERLOADED.format(0.4))]
    call("embed", ["a"], model="mini", timeout_s=5.0)
    first, second = server.timeouts_us
    assert first - second >= 400_000


def test_an_overloaded_server_says_when_to_try_again(call: Call, server: FakeTriton) -> None:
    server.failures = [Refusal("UNAVAILABLE", OVERLOADED.format(600.5))] * 9
    with pytest.raises(Overloaded) as caught:
        call("embed", ["a"], model="mini", options={"retries": 0})
    assert caught.value.retry_after_s == 600.5
    began = time.monotonic()
    with pytest.raises(Overloaded):  # it would be too late then, so it is not waited for
        call("embed", ["a"], model="mini", timeout_s=300.0)
    assert time.monotonic() - began < 200
    assert len(server.seen) == 2


def test_a_retry_waits_as_long_as_the_server_wants(call: Call, server: FakeTriton) -> None:
    server.failures = [Refusal("UNAVAILABLE", OVERLOADED.format(0.5))]
    began = time.monotonic()
    assert call("embed", ["a"], model="mini").shape == (1, 2)
    assert time.monotonic() - began >= 0.5


def test_what_expired_on_the_server_is_not_tried_again(call: Call, server: FakeTriton) -> None:
    words = "timeout: got a request whose time has passed, wanted to compute it within it"
    server.failures = [Refusal("UNAVAILABLE", words)]
    with pytest.raises(Expired):
        call("embed", ["a"], model="mini")
    assert len(server.seen) == 1


def test_requests_name_their_tenant_and_priority(call: Call, server: FakeTriton) -> None:
    options = {"tenant": "blue", "priority": -2}
    call("embed", ["a"], model="mini", options=options)
    call("embed", ["a"], model="mini", tenant="red", options=options)
    assert server.seen[0][2] == {"tenant": "blue", "request_priority": -2}
    assert server.seen[1][2] == {"tenant": "red", "request_priority": -2}
    with pytest.raises(InvalidArgument, match=r"priority: got a reserved .*send request_priority"):
        call("embed", ["a"], model="mini", priority=1)
    with pytest.raises(InvalidArgument, match=r"timeout: got a reserved .*set timeout_s"):
        call("embed", ["a"], model="mini", timeout=1)


def test_an_overloaded_server_is_asked_until_the_time_is_up(call: Call, server: FakeTriton) -> None:
    server.failures = [Refusal("UNAVAILABLE", OVERLOADED.format(0.1))] * 7
    assert call("embed", ["a"], model="mini", timeout_s=30.0).shape == (1, 2)
    assert len(server.seen) == 8
    server.failures = [Refusal("UNAVAILABLE", OVERLOADED.format(0.1))] * 1000
    began = time.monotonic()
    with pytest.raises((Overloaded, DeadlineExceeded)):  # the last wait may end too late
        call("embed", ["a"], model="mini", timeout_s=1.0)
    assert 0.3 < time.monotonic() - began < 10.0  # far below a thousand waits of 0.1 s
    assert len(server.seen) < 8 + 11  # none before it was wanted


def test_a_list_is_sent_as_fast_as_the_server_takes_it(call: Call, server: FakeTriton) -> None:
    server.takes, server.delay_s = 3, 0.02
    texts = [str(number) for number in range(60)]
    options = {"max_batch": 1, "concurrency": 16}
    vectors = call("embed", texts, model="mini", timeout_s=60.0, options=options)
    assert vectors[:, 0].tolist() == [len(text) for text in texts]
    # Of sixteen at a time as many as are too many are refused once; with as many always under way,
    # four of five would be, again and again.
    assert server.refused < 45


@pytest.mark.parametrize("words", [OVERLOADED.format(0.2), QUEUE_FULL])
def test_the_parts_of_a_list_do_not_fail_each_other(
    call: Call, server: FakeTriton, words: str
) -> None:
    """Even where nothing is tried again."""
    server.takes, server.delay_s, server.full = 1, 0.02, words
    texts = [str(number) for number in range(20)]
    options = {"max_batch": 1, "concurrency": 16, "retries": 0}
    vectors = call("embed", texts, model="mini", options=options)
    assert vectors[:, 0].tolist() == [len(text) for text in texts]


def test_a_list_of_which_nothing_is_taken_is_refused_at_once(
    call: Call, server: FakeTriton
) -> None:
    server.takes = 0
    options = {"max_batch": 1, "concurrency": 16, "retries": 0}
    with pytest.raises(Overloaded):
        call("embed", ["a"] * 20, model="mini", options=options)
    assert len(server.seen) <= 21


def test_pace_halves_once_for_all_that_were_under_way() -> None:
    pace = Pace(16)
    turns = [pace.begin() for _ in range(16)]
    assert not pace.room
    for turn in turns[:10]:
        pace.refuse(turn)
    assert pace.under_way == 6
    assert pace.room
    pace.begin()
    pace.begin()
    assert not pace.room  # eight
    assert not any(map(pace.may_return, turns))
    for _ in range(8):
        pace.end(answered=True)
    assert all(map(pace.may_return, turns))
    for _ in range(8):
        pace.begin()
    assert pace.room  # a round of answers is one more
    pace.begin()
    assert not pace.room


@pytest.mark.parametrize("error", [OSError, ValueError, RuntimeError])
def test_a_stream_that_ends_while_its_client_is_closed_raises_nothing(
    addresses: dict[str, str], error: type[Exception]
) -> None:
    class Ending:
        def shutdown(self) -> None:
            raise error("it has ended")

    client = Client(addresses["http"], protocol="http")
    client._transport._streams.add(Ending())  # type: ignore[attr-defined]
    client.close()


class Silent:
    """An HTTP server that refuses what has the word `bad` in it, and answers nothing else."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.waiting: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = self._listening.accept()[0]
                request = connection.recv(1 << 16)
                head, _, body = request.partition(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                while len(body) < length:
                    body += connection.recv(1 << 16)
                if b"bad" in body:
                    until(lambda: bool(self.waiting))
                    error = b'{"error": "text_input: got bad, wanted good; correct it"}'
                    head = b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n" % len(error)
                    connection.sendall(head + error)
                else:
                    self.waiting.append(connection)

    def close(self) -> None:
        for connection in (self._listening, *self.waiting):
            connection.close()


@pytest.fixture
def silent() -> Iterator[Silent]:
    server = Silent()
    yield server
    server.close()


def left(connection: socket.socket) -> bool:
    """Whether the client closes the connection before long."""
    connection.settimeout(20)
    return connection.recv(1) == b""


@pytest.mark.parametrize("method", ["embed", "generate"])
@pytest.mark.parametrize("texts", [1, 2])
def test_closing_a_client_ends_what_has_no_response_yet(
    silent: Silent, method: str, texts: int
) -> None:
    ended: list[BaseException] = []

    def ask(client: Client) -> None:
        try:
            getattr(client, method)(["a"] * texts, model="m")
        except BaseException as error:
            ended.append(error)

    with Client(silent.address, protocol="http", max_batch=1) as client:
        asking = threading.Thread(target=ask, args=(client,))
        asking.start()
        until(lambda: len(silent.waiting) == texts)
    asking.join(20)
    assert [type(error) for error in ended] == [Cancelled]
    assert "got its client closed" in str(ended[0])
    assert all(map(left, silent.waiting))


def test_an_error_ends_the_wait_of_the_other_requests_of_its_list(silent: Silent) -> None:
    with Client(silent.address, protocol="http") as client:
        with pytest.raises(InvalidArgument, match=r"^prompt\[1\]: got bad"):
            client.generate(["a", "bad", "b"], model="m")
        assert all(map(left, silent.waiting))


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_closed_client_says_so(addresses: dict[str, str], protocol: Any) -> None:
    words = "client: got a call after `close`, wanted one before"

    async def ask_closed() -> None:
        async with AsyncClient(addresses[protocol], protocol=protocol) as client:
            pass
        await client.embed(["a"], model="mini")

    with Client(addresses[protocol], protocol=protocol) as client:
        pass
    with pytest.raises(ClientError, match=words):
        client.embed(["a"], model="mini")
    with pytest.raises(ClientError, match=words):
        asyncio.run(ask_closed())
