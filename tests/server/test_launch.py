"""What other users of the machine see of a server, and what a server leaves behind."""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fusewire.serving.config import ServerSettings
from fusewire.serving.endpoint import EndpointError
from fusewire.serving.repository import import_folder
from fusewire.serving.supervisor import processes
from fusewire.serving.supervisor.server import Server
from fusewire.serving.supervisor.starter import ServerFailed
from tritonclient.utils import InferenceServerException

from tests.server.asking import PATIENCE_S, Asker, Traffic, ids, until
from tests.server.recovery import Recovery

KEY = "a-control-key-that-nobody-else-has"
QUESTION = ids([5, 6, 7])
SHARED_MEMORY = Path("/dev/shm")
OTHER_USER = 65534
ENDED_S = 60  # beside the exit timeout, on a busy machine


@pytest.fixture(scope="module")
def server(tiny: Callable[..., Path]) -> Iterator[Server]:
    settings = ServerSettings(
        http_port=0, grpc_port=0, metrics_port=0, control_key=KEY, exit_timeout_s=3
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", "libm.so.6")  # of the user, for every program
        with Server([f"one={tiny('bert', 'embed')}"], settings, report=print) as server:
            yield server


def of(server: Server) -> list[int]:
    """The living processes of a server."""
    return [server.process.pid, *(stub.pid for stub in server.process.stubs())]


def environment(pid: int) -> dict[str, str]:
    words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


def regions(server: Server) -> list[Path]:
    return list(SHARED_MEMORY.glob(f"{server.process._region_prefix}*"))


def zombies(server: Server) -> list[int]:
    children = processes.children(server.process.pid)
    return [pid for pid, state in children.items() if state != "running"]


def test_no_command_line_shows_the_control_key(server: Server) -> None:
    shown = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes()
        except OSError:
            continue
        if KEY.encode() in words:
            shown.append(words)
    assert shown == []


def test_the_control_key_restricts_the_apis_that_it_did(server: Server) -> None:
    assert [row["name"] for row in server.index()] == ["one"]
    for key in (None, "$FUSEWIRE_RESTRICTED_APIS", KEY[:-1]):
        with pytest.raises(EndpointError) as caught:
            server.endpoint.call("repository/index", {}, control_key=key)
        assert caught.value.status == 403


def test_child_processes_get_neither_key_nor_what_was_preloaded(server: Server) -> None:
    for pid in of(server):
        assert KEY not in str(environment(pid))
    (stub,) = server.process.stubs()
    assert environment(stub.pid)["LD_PRELOAD"] == "libm.so.6"
    assert (
        not {"FUSEWIRE_RESTRICTED_APIS", "FUSEWIRE_TEMPORARY_FOLDERS"}
        & environment(stub.pid).keys()
    )
    assert "tritonserver_preload" not in Path(f"/proc/{stub.pid}/maps").read_text()
    assert os.readlink(f"/proc/{stub.pid}/fd/0") == "/dev/null"


def test_shared_memory_and_temporary_files_are_for_this_user_alone(server: Server) -> None:
    assert regions(server)
    for region in regions(server):
        assert stat.S_IMODE(region.stat().st_mode) == 0o600
    for pid in of(server):
        folder = Path(environment(pid)["TMPDIR"])
        assert folder.parent == server._workplace.path
        assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder.parent)] == [
            0o700,
            0o700,
        ]
        assert "Umask:\t0077" in Path(f"/proc/{pid}/status").read_text()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_reads_nothing(server: Server) -> None:
    secret = [*regions(server), server._workplace.path]
    secret += [Path(f"/proc/{pid}/environ") for pid in of(server)]
    secret += [Path(f"/proc/{pid}/mem") for pid in of(server)]
    look = (
        "import os, sys\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n"
        "        (os.listdir if os.path.isdir(path) else open)(path)\n"
        "        print('read', path)\n"
        "    except PermissionError: pass\n"
    )
    done = subprocess.run(
        ["/usr/bin/env", "python3", "-c", look, *map(str, secret)],
        user=OTHER_USER,
        group=OTHER_USER,
        extra_groups=[],
        cwd="/",
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""


def test_code_is_not_uploaded_without_the_key(server: Server) -> None:
    program = base64.b64encode(b"raise SystemExit").decode()
    upload = {"parameters": {"config": '{"backend": "python"}', "file:1/model.py": program}}
    for path in ("repository/models/new/load", "repository/models/one/load"):
        with pytest.raises(EndpointError) as caught:
            server.endpoint.call(path, upload)
        assert caught.value.status == 403
    with Asker(server) as asker:
        with pytest.raises(InferenceServerException, match="restricted"):
            asker.client.load_model("new", files={"file:1/model.py": b"raise SystemExit"})
        assert asker.ask("one", QUESTION)["embedding"].size


def test_killed_stubs_leave_no_zombies_and_no_shared_memory(server: Server) -> None:
    """Killed with requests in their hands, they stay as long as tritonserver keeps those."""
    with Asker(server) as asker, Traffic(asker, "one", QUESTION) as traffic:
        for _ in range(3):
            (stub,) = server.process.stubs()
            recovery = Recovery(server)
            os.kill(stub.pid, signal.SIGKILL)
            until(lambda recovery=recovery: recovery)
            traffic.more(5)
            until(lambda: len(server.process.stubs()) == 1)
    until(lambda: zombies(server) == [])
    # To pass requests by, what admission shows, cancellations.
    until(lambda: len(regions(server)) == 3)


def test_tritonserver_refuses_to_run_without_what_is_preloaded(server: Server) -> None:
    """So that the placeholder of the key is never a key."""
    command = Path(f"/proc/{server.process.pid}/cmdline").read_bytes().decode().split("\0")[:-1]
    assert "--http-restricted-api=$FUSEWIRE_RESTRICTED_APIS" in command
    libraries = environment(server.process.pid)["LD_LIBRARY_PATH"]
    done = subprocess.run(
        command,
        env={"LD_LIBRARY_PATH": libraries},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode != 0
    assert "Bad option" in done.stdout + done.stderr


def test_stops_with_open_connections_are_in_time_and_without_a_crash(
    tiny: Callable[..., Path],
) -> None:
    """tritonserver waits for requests that are half sent, and often crashes when it may wait no
    more."""
    settings = ServerSettings(
        http_port=0, grpc_port=0, metrics_port=0, exit_timeout_s=2, log_level="info"
    )
    head = b"POST /v2/models/one/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"
    for _ in range(2):
        lines: list[str] = []
        sources = [f"{name}={tiny('bert', 'embed')}" for name in ("one", "two")]
        server = Server(sources, settings, log=lambda _, line, to=lines: to.append(line))
        server.start()
        with contextlib.ExitStack() as connections:
            at = server.endpoint
            for port in (at.http_port, at.grpc_port, at.metrics_port) * 100:
                address = ("127.0.0.1", port)
                connection = connections.enter_context(socket.create_connection(address))
                if port == at.http_port:
                    connection.sendall(head)
            began = time.monotonic()
            server.stop()
        assert time.monotonic() - began < settings.exit_timeout_s + ENDED_S
        assert [line for line in lines if line.startswith("Signal")] == ["Signal (15) received."]


def test_a_process_killed_while_it_loads_is_told_as_the_likely_want_of_memory(
    tiny: Callable[..., Path],
) -> None:
    settings = ServerSettings(http_port=0, grpc_port=0, metrics_port=0)
    server = Server([f"one={tiny('bert', 'embed')}"], settings)

    def kill() -> None:
        def loads() -> bool:
            stubs = server.process.stubs()
            return bool(stubs) and "/_C." in Path(f"/proc/{stubs[0].pid}/maps").read_text()

        until(loads)
        os.kill(server.process.stubs()[0].pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(ServerFailed, match=r"one: .* died while it loaded.*no memory"):
        server.start()
    killer.join()


def entry_without_program(repository: Path) -> None:
    """Another backend's."""
    (repository / "theirs" / "1").mkdir(parents=True)
    (repository / "theirs" / "config.pbtxt").write_text(
        'name: "theirs" backend: "python" '
        'input { name: "X" data_type: TYPE_FP32 dims: 4 } '
        'output { name: "Y" data_type: TYPE_FP32 dims: 4 }'
    )


def test_a_process_that_dies_before_it_loads_ends_the_start_with_what_it_said(
    tmp_path: Path,
) -> None:
    """tritonserver waits for ever."""
    entry_without_program(tmp_path)
    settings = ServerSettings(http_port=0, grpc_port=0, metrics_port=0, start_timeout_s=600)
    server = Server([tmp_path], settings)
    began = time.monotonic()
    with pytest.raises(ServerFailed, match=r"(?s)^theirs: .*theirs/1/model.py"):
        server.start()
    assert time.monotonic() - began < settings.start_timeout_s / 2


def test_a_load_whose_process_dies_before_it_loads_is_reported_with_what_it_said(
    tiny: Callable[..., Path], tmp_path: Path
) -> None:
    import_folder(tiny("bert", "embed"), tmp_path, name="one")
    settings = ServerSettings(
        http_port=0, grpc_port=0, metrics_port=0, watch_interval_s=0.5, exit_timeout_s=1
    )
    reports: list[str] = []
    with ThreadPoolExecutor(1) as caller:
        with Server([tmp_path], settings, report=reports.append) as server:
            entry_without_program(tmp_path)
            call = caller.submit(server.load, "theirs")
            until(lambda: reports)
            (report,) = reports
            assert report.startswith("theirs: its process died before it could tell why")
            assert "theirs/1/model.py" in report
            assert call.running()  # it would be for start_timeout_s
        with pytest.raises(EndpointError):
            call.result()


def test_more_connections_fit_than_the_soft_limit_of_open_files(
    tiny: Callable[..., Path], tmp_path: Path
) -> None:
    program, (group, _, _, http_port, *_) = supervisor(
        tiny("bert", "embed"), tmp_path, "0", "0", "0", soft_limit=128
    )
    with contextlib.ExitStack() as connections:
        for _ in range(400):
            address = ("127.0.0.1", int(http_port))
            connections.enter_context(socket.create_connection(address))
        url = f"http://127.0.0.1:{http_port}/v2/health/ready"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            assert answer.status == 200
        assert len(os.listdir(f"/proc/{group}/fd")) > 400
    program.communicate(timeout=PATIENCE_S)
    assert program.returncode == 0


KILLED = """\
import sys
from fusewire.serving.config import ServerSettings
from fusewire.serving.supervisor.server import Server
from fusewire.serving.supervisor.starter import ServerFailed
ports = map(int, sys.argv[2:])
settings = ServerSettings(**dict(zip(("http_port", "grpc_port", "metrics_port"), ports)))
server = Server(["one=" + sys.argv[1]], settings)
server.start()
at = server.endpoint
print(server.process.pid, server._workplace.path, server.process._region_prefix, at.http_port,
      at.grpc_port, at.metrics_port, flush=True)
sys.stdin.read()
server.stop()
"""


def supervisor(
    folder: Path, temporary: Path, *ports: str, soft_limit: int | None = None
) -> tuple[subprocess.Popen[str], list[str]]:
    """A process with a server, and what it says about it."""
    limited = f'ulimit -Sn {soft_limit}; exec "$@"'
    shell = [] if soft_limit is None else ["sh", "-c", limited, "sh"]
    process = subprocess.Popen(
        [*shell, sys.executable, "-c", KILLED, str(folder), *ports],
        env=os.environ | {"TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    said = process.stdout.readline().split()
    assert said
    return process, said


@pytest.mark.parametrize("stopped", [False, True])
def test_nothing_outlives_a_killed_supervisor_and_its_ports_are_free(
    tiny: Callable[..., Path], tmp_path: Path, stopped: bool
) -> None:
    """Also while a stub cannot notice anything."""
    folder = tiny("bert", "embed")
    killed, (group, workplace, prefix, *ports) = supervisor(folder, tmp_path, "0", "0", "0")
    stubs = [pid for pid in processes.children(int(group)) if processes.stub(pid)]
    assert stubs
    if stopped:
        os.kill(stubs[0], signal.SIGSTOP)
    made = {Path(os.readlink(link)) for link in Path(workplace).glob("recorded/*")}
    assert made
    assert all(path.is_dir() for path in made)
    killed.kill()
    killed.wait()
    assert processes.wait_for_group(int(group), PATIENCE_S)
    assert list(SHARED_MEMORY.glob(f"{prefix}*"))
    following, said = supervisor(folder, tmp_path, *ports)  # at once, on the same ports
    assert said[3:] == ports
    assert not Path(workplace).exists()
    assert not list(SHARED_MEMORY.glob(f"{prefix}*"))
    assert not [path for path in made if path.exists()]
    following.communicate()
    assert following.returncode == 0
    assert list(tmp_path.iterdir()) == []
