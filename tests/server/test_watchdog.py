"""Killed, hung and dead: the watchdog puts each right while clients go on asking."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fusewire.serving.config import Deployment, ServerSettings
from fusewire.serving.repository import import_folder
from fusewire.serving.supervisor import processes
from fusewire.serving.supervisor.server import Server
from tritonclient.utils import InferenceServerException

from tests.engine.generating import tiny_folder
from tests.server.asking import Asker, Traffic, ids, until
from tests.server.recovery import Recovery

QUESTION = ids([5, 6, 7])
INSTANCES = {"one": 1, "two": 2}
# What healing may take beside loading the model; these models load within a second or two.
HEALED_S = 60.0  # beside the start; seconds on an idle machine


class Watched:
    """A server, its client, and what its watchdog said and did since `begin`."""

    def __init__(self, repository: Path, device: str) -> None:
        settings = ServerSettings(
            http_port=0,
            grpc_port=0,
            metrics_port=0,
            exit_timeout_s=3,
            watch_interval_s=0.5,
            watch_timeout_s=2,
        )
        self.server = Server([repository], settings, report=self.note)
        began = time.monotonic()
        self.server.start()
        self.start_s = time.monotonic() - began
        self.asker = Asker(self.server, device)
        self.begin()

    def begin(self) -> None:
        """Waits until nothing of what was before goes on."""
        until(lambda: [len(self.pids(name)) for name in INSTANCES] == [*INSTANCES.values()])
        until(lambda: [self.answers(name) for name in INSTANCES] == [True] * len(INSTANCES))
        self.said: list[str] = []
        self._reloads = self.server.watchdog.reloads
        self._restarts = self.server.watchdog.restarts

    @property
    def reloads(self) -> int:
        return self.server.watchdog.reloads - self._reloads

    @property
    def restarts(self) -> int:
        return self.server.watchdog.restarts - self._restarts

    def answers(self, model: str) -> bool:
        try:
            return bool(self.asker.ask(model, QUESTION))
        except InferenceServerException:
            return False

    def note(self, text: str) -> None:
        print(f"{time.monotonic():.2f} {text}")  # shown where a test fails
        self.said.append(text)

    def pids(self, model: str) -> list[int]:
        return [stub.pid for stub in self.server.process.stubs() if stub.model == model]

    def reported(self, words: str) -> bool:
        return any(words in text for text in self.said)


@pytest.fixture(scope="module")
def server(
    tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory, device: str
) -> Iterator[Watched]:
    root = tmp_path_factory.mktemp("watched")
    fp32: dict[str, object] = {"dtype": "float32"}
    for name, folder in (("one", tiny("bert", "embed")), ("two", tiny("electra", "classify"))):
        deployment = Deployment(device=device, instances=INSTANCES[name])
        import_folder(folder, root, name=name, settings=fp32, deployment=deployment, link=True)
    watched = Watched(root, device)
    yield watched
    with watched.asker:
        watched.server.stop()
    regions = Path("/dev/shm").glob(f"fusewire_{os.getpid()}_*")
    prefix = watched.server.process._region_prefix
    assert not [region for region in regions if region.name.startswith(prefix)]
    assert not watched.server._workplace.path.exists()


@pytest.fixture
def watched(server: Watched) -> Watched:
    server.begin()
    return server


def test_a_killed_stub_is_healed_under_traffic(watched: Watched) -> None:
    asker = watched.asker
    (first,) = watched.pids("one")
    reloads = [asker.metric("fusewire_model_reloads", model=name) for name in INSTANCES]
    before = asker.ask("one", QUESTION)["embedding"]
    with Traffic(asker, "one", QUESTION) as traffic, Traffic(asker, "two", QUESTION) as other:
        killed = time.monotonic()
        recovery = Recovery(watched.server)
        os.kill(first, signal.SIGKILL)
        until(lambda: recovery)
        traffic.more(50)
        healed = time.monotonic()
        other.more(50)
    assert healed - killed < watched.start_s + HEALED_S
    last_error = max([when for when, _ in traffic.errors], default=killed)
    assert last_error - killed < watched.start_s + HEALED_S
    assert watched.reported(f"one: the process of one_0_0 died (pid {first})")
    asker.same(asker.ask("one", QUESTION)["embedding"], before)
    if watched.restarts:
        # Now and then tritonserver 2.51 crashes over a stub that died with a request in its hands;
        # then the whole server is started again, in the same time.
        assert watched.reported("the server is ready again")
        return
    # Only those that were waiting for the dead stub failed, and said so.
    assert all("not healthy" in text for _, text in traffic.errors), traffic.errors
    assert other.errors == []
    assert watched.reported("one: serving again after")
    assert asker.metric("fusewire_model_reloads", model="one") == reloads[0] + 1
    assert asker.metric("fusewire_model_reloads", model="two") == reloads[1]


def test_one_of_two_instances_may_die_again_and_again(watched: Watched) -> None:
    """The other instance answers meanwhile; what is left of the old model goes after."""
    asker = watched.asker
    reloads = [asker.metric("fusewire_model_reloads", model=name) for name in INSTANCES]
    gone: set[int] = set()
    with Traffic(asker, "two", QUESTION) as traffic:
        for _ in range(2):
            current = set(watched.pids("two")) - gone
            assert len(current) == 2
            recovery = Recovery(watched.server)
            os.kill(min(current), signal.SIGKILL)
            gone |= current
            until(lambda recovery=recovery: recovery)
            traffic.more(20)
        until(lambda: len(watched.pids("two")) == 2)
    assert not gone & set(watched.pids("two"))
    if not watched.restarts:  # as above: the server itself may crash
        assert asker.metric("fusewire_model_reloads", model="two") == reloads[1] + 2
        assert asker.metric("fusewire_model_reloads", model="one") == reloads[0]


def test_a_stopped_stub_is_replaced(watched: Watched) -> None:
    (pid,) = watched.pids("one")
    os.kill(pid, signal.SIGSTOP)
    until(lambda: watched.reloads == 1)
    assert watched.asker.ask("one", QUESTION)["embedding"].size
    until(lambda: pid not in watched.pids("one"))
    time.sleep(1)  # the ends of the old process are no reason for another reload
    assert watched.reloads == 1


def test_a_dead_server_is_started_again(watched: Watched) -> None:
    server = watched.server
    old = server.process.pid
    with Traffic(watched.asker, "one", QUESTION) as traffic:
        os.kill(old, signal.SIGKILL)
        until(lambda: watched.restarts == 1)
        traffic.more(20)
    assert server.process.pid != old
    assert watched.reported("the server died (exit code -9); starting it again")
    assert watched.reported("the server is ready again")


def test_a_server_that_dies_while_it_loads_a_model_is_started_again(watched: Watched) -> None:
    """Its new stub, half loaded, holds the connection on which the watchdog waits."""
    server = watched.server
    (old,) = watched.pids("one")
    os.kill(old, signal.SIGKILL)
    until(lambda: watched.pids("one") not in ([], [old]))
    (new,) = watched.pids("one")
    os.kill(new, signal.SIGSTOP)
    os.kill(server.process.pid, signal.SIGKILL)
    until(lambda: watched.restarts == 1)
    assert processes.stub(new) is None
    assert watched.reloads == 0
    assert watched.asker.ask("one", QUESTION)["embedding"].size


def test_a_hung_server_is_started_again(watched: Watched) -> None:
    os.kill(watched.server.process.pid, signal.SIGSTOP)
    until(lambda: watched.restarts == 1)
    assert watched.reported("the server gave no answer for 2 s; ending it")
    assert watched.asker.ask("one", QUESTION)["embedding"].size


def test_warm_up_ran_before_the_first_request(
    tiny: Callable[..., Path], tmp_path: Path, device: str
) -> None:
    deployment = Deployment(device=device)
    import_folder(
        tiny("albert", "fill"), tmp_path, name="unasked", deployment=deployment, link=True
    )
    settings = ServerSettings(http_port=0, grpc_port=0, metrics_port=0, watch_interval_s=3600)
    with Server([tmp_path], settings) as server, Asker(server) as asker:
        until(lambda: asker.metric("fusewire_requests_total", outcome="ok") == 1)
        assert asker.metric("fusewire_requests_total") == 1
        # One sequence alone was recorded for every length before the model was ready.
        assert asker.metric("fusewire_graph_hits_total") == (0 if device == "cpu" else 1)


@pytest.mark.parametrize("protocol", ["infer", "generate"])
def test_probes_are_in_no_metric_of_requests(
    tiny: Callable[..., Path], tmp_path: Path, device: str, protocol: str
) -> None:
    """The warm-up request alone is."""
    folder = tiny("albert", "fill") if protocol == "infer" else tiny_folder(tmp_path / "gpt2")
    settings = ServerSettings(http_port=0, grpc_port=0, metrics_port=0, watch_interval_s=0.2)
    deployment = Deployment(device=device)
    with Server([folder], settings, deployment=deployment) as server, Asker(server) as asker:
        until(lambda: asker.metric("nv_inference_request_success") >= 4)
        until(lambda: asker.metric("fusewire_requests_total") == 1)
        assert asker.metric("fusewire_goodput_total") == 1
        if protocol == "generate":
            name = "fusewire_time_to_first_token_seconds_count"
            until(lambda: asker.metric(name) == 1)
