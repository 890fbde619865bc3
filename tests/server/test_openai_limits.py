"""Attacks on the process of the OpenAI endpoint: what one client sends, or does not, costs bounded
time and memory, and keeps no other client waiting."""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fusewire.serving.openai.reading import MOST_BODY_BYTES, MOST_TOTAL_BYTES
from fusewire.serving.repository import import_folder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.generating import tiny_folder
from tests.server.asking import until

JSON = {"Content-Type": "application/json"}
# Of a short request while the endpoint is attacked, and of the attack: on a machine with other
# work. Alone they take a tenth of that.
SOON_S = 3.0
BOUNDED_S = 6.0
# A body, its text, and what is parsed of it; and the pages of the code that runs.
MOST_GROWTH_BYTES = 3 * MOST_BODY_BYTES + (8 << 20)
# What stays of an attack: caches, and threads that were started.
REMAINS_BYTES = 40 << 20
FILES = 256  # that the endpoint may have open
PATIENCE_S = 2.0


class Endpoint:
    """Its process."""

    def __init__(self, version: Path, **constants: dict[str, float]) -> None:
        command = [sys.executable, "-m", "tests.server.openai_endpoint"]
        command += [str(version), json.dumps(constants)]
        limited = ["sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh", *command]
        self.process = subprocess.Popen(limited, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.ask("GET", "/v1/models")
        self.ask("POST", "/tokenize", b'{"prompt": "once"}')

    def close(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=30)

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, Any]:
        """(status, the answer's JSON)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body, JSON | headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())

    def connect(self, sent: bytes = b"", receive_buffer: int | None = None) -> socket.socket:
        client = socket.socket()
        if receive_buffer is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client.settimeout(10)
        client.connect(("127.0.0.1", self.port))
        client.sendall(sent)
        return client

    def memory_bytes(self, kind: str = "VmRSS") -> int:
        """Resident now, or with `VmHWM` at most since `forget_peak`."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        (line,) = (line for line in lines if line.startswith(kind))
        return int(line.split()[1]) << 10

    def forget_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def connections(self) -> int:
        """Those that it holds; what the kernel still sends for it is none."""
        found = set()
        for file in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                found.add(file.readlink().name.removeprefix("socket:[").removesuffix("]"))
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        port, listens = f":{self.port:04X}", "0A"
        return sum(row[9] in found for row in rows if row[1].endswith(port) and row[3] != listens)

    @contextlib.contextmanager
    def others_are_answered(self) -> Iterator[None]:
        """Asserts it of short requests, each on a connection of its own, one after the other."""
        ended = threading.Event()
        slowest = [0.0]
        statuses = set()

        def ask() -> None:
            while not ended.is_set():
                began = time.perf_counter()
                statuses.add(self.ask("POST", "/tokenize", b'{"prompt": "once"}')[0])
                slowest[0] = max(slowest[0], time.perf_counter() - began)
                time.sleep(0.005)

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        assert statuses == {200}
        assert slowest[0] < SOON_S


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_folder(tmp_path_factory.mktemp("tiny"))
    template = "{% for one in messages %}{{ one.content }}{% endfor %}"
    (folder / "chat_template.jinja").write_text(template)
    root = tmp_path_factory.mktemp("repository")
    return import_folder(folder, root, name="tiny", link=True) / "1"


@pytest.fixture(scope="module")
def endpoint(version: Path) -> Iterator[Endpoint]:
    with contextlib.closing(Endpoint(version)) as endpoint:
        yield endpoint


@pytest.fixture
def impatient(version: Path) -> Iterator[Endpoint]:
    """One with short timeouts."""
    with contextlib.closing(
        Endpoint(
            version,
            connections={"HEADER_TIMEOUT_S": PATIENCE_S, "READ_TIMEOUT_S": PATIENCE_S},
            reading={"BODY_TIMEOUT_S": PATIENCE_S},
        )
    ) as endpoint:
        yield endpoint


def filled(start: str, unit: str, end: str, size_bytes: int = MOST_BODY_BYTES) -> bytes:
    """As much of `unit` between the others as `size_bytes` allows."""
    count = (size_bytes - len((start + end).encode())) // len(unit.encode())
    return (start + unit * count + end).encode()


def members(count: int) -> str:
    return ",".join(f'"{index:06}": 1' for index in range(count))


CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
MODEL = '{"model": "tiny", '
MANY = 500_000 * "1, "
SHAPES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "messages 1 MB": (CHAT, lambda: filled(MODEL + '"messages": [', "1,", "1]}", 1 << 20)),
    "messages 16 MB": (CHAT, lambda: filled(MODEL + '"messages": [', "1,", "1]}")),
    "no objects": (CHAT, lambda: filled(MODEL + '"messages": [', "[],", "1]}")),
    "messages": (CHAT, lambda: f'{MODEL} "messages": [{10_000 * "{},"} {{}}]}}'.encode()),
    "parts": (CHAT, lambda: f'{MODEL} "messages": [{{"content": [{MANY}1]}}]}}'.encode()),
    "text": (CHAT, lambda: filled(MODEL + '"messages": [{"role": "a", "content": "', "x", '"}]}')),
    "nested": (CHAT, lambda: filled(MODEL + '"messages": ', "[", "")),
    "quotes": (CHAT, lambda: filled(MODEL + '"messages": ["', '"', '"]}')),
    "options": (
        CHAT,
        lambda: f'{MODEL} "messages": [], "stream_options": {{{members(30_000)}}}}}'.encode(),
    ),
    "prompts": (COMPLETION, lambda: f'{MODEL} "prompt": [{MANY} "a"]}}'.encode()),
    "unknown": (COMPLETION, lambda: f'{MODEL} "prompt": "a", {members(30_000)}}}'.encode()),
    "a key": (COMPLETION, lambda: filled(MODEL + '"prompt": "a", "', "x", '": 1}')),
    "stop": (COMPLETION, lambda: filled(MODEL + '"prompt": ["a", "a"], "stop": "', "\\n", '"}')),
    "stops": (COMPLETION, lambda: f'{MODEL} "prompt": "a", "stop": [{MANY} 1]}}'.encode()),
    "a number": (COMPLETION, lambda: filled(MODEL + '"prompt": ', "1", "}")),
    "a name": (COMPLETION, lambda: filled('{"prompt": "a", "model": "', "x", '"}')),
    "names": (COMPLETION, lambda: f'{{"prompt": "a", "model": [{MANY} 1]}}'.encode()),
    "embeddings": ("/v1/embeddings", lambda: f'{MODEL} "input": [{MANY} "a"]}}'.encode()),
    "documents": ("/rerank", lambda: f'{MODEL} "query": "a", "documents": [{MANY} 1]}}'.encode()),
    "pairs": ("/score", lambda: f'{MODEL} "text_1": "a", "text_2": [{MANY} 1]}}'.encode()),
    "tokenized": ("/tokenize", lambda: f'{{"messages": [{MANY} 1]}}'.encode()),
    "tokens": ("/detokenize", lambda: filled('{"tokens": [', '"a",', "1]}", 2 << 20)),
    "spaces": ("/detokenize", lambda: filled("{", " ", "}")),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_body_of_any_shape_is_refused_in_bounded_time_and_memory(
    endpoint: Endpoint, shape: str
) -> None:
    path, make = SHAPES[shape]
    body = make()
    with endpoint.others_are_answered():
        before = endpoint.memory_bytes()
        endpoint.forget_peak()
        began = time.perf_counter()
        status, answer = endpoint.ask("POST", path, body)
        assert time.perf_counter() - began < BOUNDED_S
    assert status in (400, 404)
    assert len(answer["error"]["message"]) < 1000
    assert endpoint.memory_bytes("VmHWM") - before < MOST_GROWTH_BYTES


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(endpoint: Endpoint) -> None:
    with endpoint.connect(head(1 << 40)) as client:
        assert client.recv(1000).startswith(b"HTTP/1.1 413 ")


def head(length: int, path: str = COMPLETION) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


def test_what_a_page_in_a_browser_sends_by_itself_is_refused(endpoint: Endpoint) -> None:
    body = b'{"prompt": "once"}'
    for headers, status in (
        ({}, 200),
        ({"Host": "evil.example:9000"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:3000", "Host": "[::1]:9000"}, 200),
        ({"Content-Type": "text/plain"}, 400),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 400),
        ({"Content-Type": ""}, 400),
    ):
        assert endpoint.ask("POST", "/tokenize", body, **headers)[0] == status, headers
    assert endpoint.ask("GET", "/v1/models", Host="evil.example")[0] == 403


@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize(("size", "status"), [(30 << 10, 200), (33 << 10, 400), (60 << 10, 400)])
def test_headers_are_limited_however_they_come(
    endpoint: Endpoint, size: int, status: int, in_pieces: bool
) -> None:
    sent = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * size + b"\r\n\r\n"
    with endpoint.connect(sent[:9000] if in_pieces else sent) as client:
        if in_pieces:
            time.sleep(0.2)
            client.sendall(sent[9000:])
        assert client.recv(1000).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/models/tiny", "/none", "/tokenize"])
def test_head_is_answered_as_get_without_a_body(endpoint: Endpoint, path: str) -> None:
    answers = []
    for method in ("GET", "HEAD"):
        connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path)
            answer = connection.getresponse()
            headers = {name: answer.getheader(name) for name in ("Content-Type", "Allow")}
            answers.append((answer.status, headers))
            assert bool(answer.read()) == (method == "GET")
            connection.request("GET", "/v1/models")  # the connection goes on
            assert connection.getresponse().status == 200
    assert answers[0] == answers[1]


def test_a_request_for_websocket_is_one_over_http_and_logs_nothing(
    version: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with contextlib.closing(Endpoint(version)) as endpoint:
        asked = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        assert endpoint.ask("GET", "/v1/models", **asked)[0] == 200
    assert capfd.readouterr().err == ""


def test_more_idle_connections_than_files_keep_nobody_out(impatient: Endpoint) -> None:
    with contextlib.ExitStack() as clients, impatient.others_are_answered():
        for index in range(2 * FILES):
            started = b"POST /tokenize HTTP/1.1\r\nHost: lo" if index % 2 else b""
            clients.enter_context(impatient.connect(started))
        assert impatient.files() < FILES
        few = 30
        until(lambda: impatient.files() < few)


def test_a_connection_is_kept_between_requests(impatient: Endpoint) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", impatient.port, timeout=60)
    with contextlib.closing(connection):
        for _ in range(8):  # for twice as long as one request may take, with short pauses
            connection.request("GET", "/v1/models")
            assert connection.getresponse().read()
            assert connection.sock is not None
            time.sleep(PATIENCE_S / 4)


def test_unfinished_bodies_share_bounded_memory_which_is_given_back(endpoint: Endpoint) -> None:
    large = MOST_BODY_BYTES - (1 << 20)
    count = MOST_TOTAL_BYTES // large + 4
    before = endpoint.memory_bytes()
    with contextlib.ExitStack() as stack, endpoint.others_are_answered():
        clients = [stack.enter_context(endpoint.connect()) for _ in range(count)]
        for client in clients:
            client.sendall(head(large + 1))
            with contextlib.suppress(ConnectionError):
                client.sendall(b" " * large)
        until(lambda: sum(map(answered, clients)) >= 4)
        refused = [client for client in clients if answered(client)]
        assert endpoint.memory_bytes() - before < MOST_TOTAL_BYTES + REMAINS_BYTES
        assert 4 <= len(refused) < count
        answers = [answer for client in refused if (answer := received(client))]
        assert answers
        for answer in answers:
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after: 1" in answer.lower()
            assert b"too_many_bytes" in answer
    until(lambda: endpoint.memory_bytes() - before < REMAINS_BYTES)
    assert endpoint.ask("POST", "/tokenize", b'{"prompt": "%s"}' % (b"x" * (1 << 17)))[0] == 200


def answered(client: socket.socket, within_s: float = 0.0) -> bool:
    """Whether there is an answer, or the end of the connection, which takes an answer along that
    comes while more is sent than is read."""
    return bool(select.select([client], [], [], within_s)[0])


def received(client: socket.socket) -> bytes:
    """The answer of an error; nothing where the connection took it along."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while b"}}" not in found and (more := client.recv(10_000)):
            found += more
    return found


def test_a_body_that_trickles_is_refused(impatient: Endpoint) -> None:
    with impatient.connect(head(1000)) as client, impatient.others_are_answered():
        began = time.monotonic()
        answer = b""
        while not answer:
            client.sendall(b" ")
            answer = client.recv(10_000) if answered(client, 0.3) else b""
            assert time.monotonic() - began < 10 * PATIENCE_S
        while b"}}" not in answer:
            answer += client.recv(10_000)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"request_timeout" in answer


def test_a_client_that_does_not_read_is_disconnected(impatient: Endpoint) -> None:
    body = json.dumps({"prompt": "x" * 1_000_000}).encode()
    request = head(len(body), "/tokenize") + body
    before = impatient.memory_bytes()
    until(lambda: impatient.connections() == 0)
    with contextlib.ExitStack() as clients:
        for _ in range(2):
            clients.enter_context(impatient.connect(request, receive_buffer=4096))
        until(lambda: impatient.connections() == 2)
        until(lambda: impatient.connections() == 0)
        until(lambda: impatient.memory_bytes() - before < REMAINS_BYTES)


NAMES = (
    "model messages prompt input query documents texts text_1 text_2 tokens stop n stream_options "
    "tools max_tokens logit_bias chat_template_kwargs role content type text user"
)
FIELDS = st.sampled_from(NAMES.split())
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.sampled_from(["tiny", "\ud800", "1" * 5000]),
    lambda inner: (
        st.lists(inner, max_size=6) | st.dictionaries(FIELDS | st.text(max_size=5), inner)
    ),
    max_leaves=30,
)
PATHS = st.sampled_from(
    [CHAT, COMPLETION, "/v1/embeddings", "/rerank", "/score", "/tokenize", "/detokenize"]
)
MOST_SENT_BYTES = MOST_BODY_BYTES + (4 << 20)


def body_of(fields: dict[str, Any], message: Any, times: int) -> bytes:
    """The fields, and where `times` is odd as many messages, or what fits of them."""
    if times % 2:
        most = MOST_SENT_BYTES // (len(json.dumps(message)) + 2)
        fields = {**fields, "messages": [message] * min(times, most)}
    return json.dumps(fields).encode()


# Bytes: hypothesis writes out what it draws, and a body may be 20 MB.
BODIES = st.builds(body_of, st.dictionaries(FIELDS, VALUES), VALUES, st.integers(1, 200_000))
QUIET = {"suppress_health_check": list(HealthCheck), "database": None}


def answers_with_an_error(endpoint: Endpoint, path: str, body: bytes) -> None:
    began = time.perf_counter()
    status, answer = endpoint.ask("POST", path, body)
    assert time.perf_counter() - began < BOUNDED_S
    # Triton's ports are closed: what is right ends in a 503.
    assert status in (200, 400, 404, 413, 503)
    assert status == 200 or answer["error"]["message"]


@settings(max_examples=60, **QUIET)
@given(path=PATHS, body=BODIES)
def test_bodies_of_chance_are_answered(endpoint: Endpoint, path: str, body: bytes) -> None:
    answers_with_an_error(endpoint, path, body)


@pytest.mark.sweep
@settings(max_examples=2000, **QUIET)
@given(path=PATHS, body=BODIES)
def test_many_bodies_of_chance_leave_no_memory(endpoint: Endpoint, path: str, body: bytes) -> None:
    answers_with_an_error(endpoint, path, body)
    assert endpoint.memory_bytes() < 1 << 30
