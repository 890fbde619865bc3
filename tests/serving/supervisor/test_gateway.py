"""The process of the OpenAI endpoint: killed, stopped, closed and orphaned. No Triton server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fusewire.errors import CheckpointError, ConfigurationError, FusewireError
from fusewire.serving import model_config
from fusewire.serving.config import Deployment, ServerSettings
from fusewire.serving.endpoint import Endpoint
from fusewire.serving.repository import import_folder
from fusewire.serving.supervisor import gateway as gateway_module
from fusewire.serving.supervisor.gateway import Gateway
from fusewire.serving.supervisor.pins import Pin

from tests.engine.generating import tiny_folder
from tests.server.asking import until

# Starting the process again, on a machine with other work.
BACK_S = 60


def gateway_of(
    repository: Path,
    report: Callable[[str], None] = print,
    serves: Callable[[str], Pin | None] = {}.get,
    **settings: Any,
) -> Gateway:
    """One for a server whose ports are closed."""
    return Gateway(
        Endpoint("127.0.0.1", 1, 1, 1),
        0,
        {path.name: path for path in sorted(repository.iterdir())},
        serves,
        ServerSettings(**{"exit_timeout_s": 1, **settings}),
        report,
    )


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_folder(tmp_path_factory.mktemp("tiny"))
    root = tmp_path_factory.mktemp("repository")
    import_folder(folder, root, name="tiny", deployment=Deployment(device="cpu"), link=True)
    return root


Started = Callable[..., tuple[Gateway, list[str]]]


@pytest.fixture
def started(repository: Path) -> Iterator[Started]:
    """A gateway that is open, and what it reported."""
    with contextlib.ExitStack() as stack:

        def start(root: Path = repository, **arguments: Any) -> tuple[Gateway, list[str]]:
            reports: list[str] = []
            gateway = gateway_of(root, reports.append, **arguments)
            stack.callback(gateway.close)
            gateway.start()
            gateway.open()
            return gateway, reports

        yield start


def models(gateway: Gateway, timeout_s: float = BACK_S) -> list[str]:
    """Those that the endpoint lists."""
    url = f"http://{gateway.address}/v1/models"
    with urllib.request.urlopen(url, timeout=timeout_s) as answer:
        return [model["id"] for model in json.load(answer)["data"]]


def pid_of(gateway: Gateway) -> int:
    assert gateway._process is not None
    return gateway._process.pid


def children() -> list[str]:
    """The processes of endpoints that there are."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"fusewire.serving.openai" in path.read_bytes():
                status = (path.parent / "stat").read_text().rsplit(")", 1)[1].split()
                if int(status[1]) == os.getpid():
                    found.append(path.parent.name)
    return found


def test_a_killed_process_is_replaced_and_connections_wait_for_the_next(started: Started) -> None:
    gateway, reports = started()
    assert models(gateway) == ["tiny"]
    first = pid_of(gateway)
    os.kill(first, signal.SIGKILL)
    assert models(gateway) == ["tiny"]  # none is refused
    assert pid_of(gateway) != first
    until(lambda: len(reports) == 2)
    assert reports[0] == "the OpenAI endpoint ended (signal SIGKILL); starting it again in 1 s"
    assert reports[1].startswith("the OpenAI endpoint is ready again after ")


def test_a_process_that_stands_still_is_replaced(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "_HANGS_S", 5.0)
    gateway, reports = started()
    first = pid_of(gateway)
    os.kill(first, signal.SIGSTOP)
    for _ in range(10_000):  # more than a pipe holds
        began = time.monotonic()
        gateway.lost("tiny", began)
        assert time.monotonic() - began < 4
    assert models(gateway) == ["tiny"]
    assert pid_of(gateway) != first
    assert "it gave no sign of life for 5 s" in reports[0]


@pytest.fixture
def two_models(repository: Path, tmp_path: Path) -> Path:
    """A repository with copies of the model, `a` and `b`."""
    for name in ("a", "b"):
        import_folder(
            repository / "tiny" / "1", tmp_path, name=name, deployment=Deployment(device="cpu")
        )
    return tmp_path


def test_it_starts_again_with_what_serves_whatever_was_put_into_the_repository(
    started: Started, two_models: Path
) -> None:
    pins: dict[str, Pin] = {}
    config = model_config.as_json(model_config.read(two_models / "b" / "config.pbtxt"))
    gateway, reports = started(two_models, serves=pins.get)
    (two_models / "a" / "2").mkdir()
    (two_models / "a" / "2" / "config.json").write_text("no JSON")
    (two_models / "b" / "1").rename(two_models / "b" / "3")
    (two_models / "b" / "config.pbtxt").rename(two_models / "config.pbtxt")
    pins["b"] = Pin(config, (3,))
    os.kill(pid_of(gateway), signal.SIGKILL)
    assert models(gateway) == ["a", "b"]
    until(lambda: len(reports) == 2)


def test_a_model_that_cannot_be_loaded_again_keeps_no_other_from_being_served(
    started: Started, two_models: Path
) -> None:
    gateway, reports = started(two_models)
    tokenizer = two_models / "b" / "1" / "tokenizer.json"
    tokenizer.rename(two_models / "tokenizer.json")
    tokenizer.write_text("{}")
    os.kill(pid_of(gateway), signal.SIGKILL)
    assert models(gateway) == ["a"]
    words = "b: the OpenAI endpoint cannot serve it and goes on trying ("
    until(lambda: any(report.startswith(words) for report in reports))
    (two_models / "tokenizer.json").rename(tokenizer)
    until(lambda: "b: the OpenAI endpoint serves it again" in reports)
    assert models(gateway) == ["a", "b"]


def test_a_model_that_cannot_be_loaded_ends_the_first_start(two_models: Path) -> None:
    (two_models / "b" / "1" / "tokenizer.json").write_text("{}")
    assert type(refused(two_models)) is CheckpointError


def test_it_closes_in_its_time_whatever_state_it_is_in(started: Started) -> None:
    for sign in (None, signal.SIGSTOP, signal.SIGKILL):
        gateway, _ = started(exit_timeout_s=1)
        if sign is not None:
            os.kill(pid_of(gateway), sign)
        began = time.monotonic()
        gateway.close()
        assert time.monotonic() - began < 1 + 2 + 1 + BACK_S
        assert children() == []


def test_killing_it_shortens_the_time_to_close(started: Started) -> None:
    gateway, _ = started(exit_timeout_s=3600)
    os.kill(pid_of(gateway), signal.SIGSTOP)
    closing = threading.Thread(target=gateway.close)
    closing.start()
    time.sleep(0.5)
    gateway.kill()
    closing.join(BACK_S)
    assert not closing.is_alive()
    assert children() == []


def refused(repository: Path, **settings: Any) -> FusewireError:
    """The error of an endpoint that does not start."""
    gateway = gateway_of(repository, **settings)
    gateway.start()
    try:
        with pytest.raises(FusewireError) as error:
            gateway.open()
    finally:
        gateway.close()
    assert children() == []
    return error.value


def test_what_keeps_it_from_starting_is_the_error_it_was_in_that_process(
    repository: Path, tmp_path: Path
) -> None:
    keys = refused(repository, api_key_file=tmp_path / "none")
    assert type(keys) is ConfigurationError
    assert str(keys).startswith(f"api-key-file: got {tmp_path / 'none'} (No such file")
    (tmp_path / "broken.jinja").write_text("{% if %}")
    template = refused(repository, chat_template=tmp_path / "broken.jinja")
    assert type(template) is CheckpointError
    assert "Traceback" not in str(template)


def test_a_missing_package_is_named_with_its_remedy(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uvicorn.py").write_text("raise ModuleNotFoundError(name='uvicorn')")
    monkeypatch.syspath_prepend(tmp_path)
    error = refused(repository)
    assert type(error) is ConfigurationError
    assert str(error).startswith("uvicorn: not installed, wanted for --openai-port")


def test_one_that_does_not_start_in_time_is_ended(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uvicorn.py").write_text("import time; time.sleep(3600)")
    monkeypatch.syspath_prepend(tmp_path)
    error = refused(repository, start_timeout_s=2)
    assert "could not be opened (it gave no sign of life for 2 s)" in str(error)


def test_it_ends_with_its_supervisor_though_it_stands_still(repository: Path) -> None:
    program = """\
import sys, time
from pathlib import Path
from tests.serving.supervisor.test_gateway import gateway_of, pid_of
gateway = gateway_of(Path(sys.argv[1]))
gateway.start()
gateway.open()
print(pid_of(gateway), flush=True)
time.sleep(3600)
"""
    command = [sys.executable, "-c", program, str(repository)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        pid = int(supervisor.stdout.readline())
        os.kill(pid, signal.SIGSTOP)
        supervisor.kill()
    until(lambda: not Path(f"/proc/{pid}").exists())
