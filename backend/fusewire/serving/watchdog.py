"""Keeps a server answering: a dead stub's model is reloaded, a dead server is restarted.

Triton itself does neither, and calls itself ready meanwhile. Two senses: the stubs' process states,
a few times a second, and a tiny real inference per model, every few seconds. A model is reloaded
by loading it again under a changed configuration (`reloads` counts up), because a load of the
unchanged one does nothing: the new instances come up before the old ones go, so instances that are
still alive answer all the while.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from fusewire.errors import FusewireError
from fusewire.serving import processes
from fusewire.serving.endpoint import EndpointError
from fusewire.serving.model_config import settings_of
from fusewire.serving.probe import Probe
from fusewire.serving.pulse import Pulse
from fusewire.serving.surplus import Surplus

if TYPE_CHECKING:
    from fusewire.serving.server import Server

_TICK_S = 0.25
_RETRY_S = 5.0
_MINUTE_S = 60.0


class Watchdog:
    """Watches one server from two threads, until stopped. `failed` is set when it gives up."""

    def __init__(self, server: Server, report: Callable[[str], None]) -> None:
        self._server = server
        self._report = report
        self._ended = threading.Event()
        self._restarting = threading.Event()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._alive: dict[int, processes.Stub] = {}
        self._suspects: dict[str, str] = {}  # model -> what is wrong with it
        self._retry_at: dict[str, float] = {}
        self._reloads_of: collections.Counter[str] = collections.Counter()
        self._leftovers: dict[int, float] = {}  # stubs of a replaced model -> since when
        self._failures: collections.Counter[str] = collections.Counter()  # of probes, in a row
        self._short: set[str] = set()  # models that had too few processes at the last count
        self._pulse = Pulse(server)
        self._surplus = Surplus(server.settings.exit_timeout_s)
        self._restarts: list[float] = []
        self.reloads = 0
        self.restarts = 0
        self.failed: str | None = None

    def start(self) -> None:
        """Starts watching a ready server."""
        self._look_for_dead_stubs()
        for watch in (self._watch_processes, self._watch_answers):
            thread = threading.Thread(target=self._guarded, args=(watch,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Stops watching. A running call may still wait for the server's answer; it ends with
        the server, and its result is ignored."""
        self._ended.set()
        for thread in self._threads:
            thread.join(timeout=1)

    def _guarded(self, watch: Callable[[], None]) -> None:
        """A watchdog that breaks must not be taken for one that watches."""
        try:
            watch()
        except Exception as error:
            if self._ended.is_set():
                return
            self._give_up(f"the watchdog failed ({type(error).__name__}: {error})")

    def _give_up(self, why: str) -> None:
        self.failed = why
        self._report(why)
        self._ended.set()

    def _watch_processes(self) -> None:
        while not self._ended.wait(_TICK_S):
            if not self._server.process.running():
                self._restart()
                continue
            self._look_for_dead_stubs()
            with self._lock:
                now, suspects, at = time.monotonic(), self._suspects.items(), self._retry_at
                due = [(model, what) for model, what in suspects if at.get(model, 0) <= now]
            for model, what in due:
                if self._server.process.running():
                    self._reload(model, what)

    def _look_for_dead_stubs(self) -> None:
        """A stub that was killed or crashed remains as a zombie of the server."""
        children = processes.children(self._server.process.pid)
        for pid, dead in children.items():
            stub = self._alive.get(pid)
            if dead and stub is not None:
                del self._alive[pid]
                with self._lock:
                    replaced = self._leftovers.pop(pid, None)
                self._server.lost(stub.model, replaced or time.monotonic())
                if replaced is None:
                    self._suspect(stub.model, f"the process of {stub.instance} died (pid {pid})")
        for stub in self._server.process.stubs():
            self._alive[stub.pid] = stub
        self._alive = {pid: stub for pid, stub in self._alive.items() if pid in children}

    def _end_leftovers(self) -> None:
        """From the thread that never loads: a load may wait for what is left over to go."""
        due_since = time.monotonic() - self._server.settings.exit_timeout_s
        with self._lock:
            self._leftovers = {pid: at for pid, at in self._leftovers.items() if pid in self._alive}
            due = [pid for pid, at in self._leftovers.items() if at <= due_since]
        for pid in due:
            processes.kill(pid)

    def _suspect(self, model: str, what: str) -> None:
        self._server.process.stub_died = True
        with self._lock:
            self._suspects.setdefault(model, what)

    def _reload(self, model: str, what: str) -> None:
        """Loads the model anew beside the old one, which the server then lets go."""
        began = time.monotonic()
        old = [pid for pid, stub in self._alive.items() if stub.model == model]
        self._report(f"{model}: {what}; loading the model again")
        try:
            config = self._server.endpoint.call(f"models/{model}/config")
        except EndpointError as error:
            if error.status:
                self._report(f"{model}: no longer loaded ({error}); not reloaded")
                with self._lock:
                    self._suspects.pop(model, None)
            return  # without an answer the server itself is looked at next
        try:
            parameters = config.setdefault("parameters", {})
            reloads = settings_of(parameters).reloads + 1
            parameters["reloads"] = {"string_value": str(reloads)}
            self._server.load(model, config)
        except FusewireError as error:
            if self._ended.is_set() or not self._server.process.running():
                return
            with self._lock:
                self._retry_at[model] = time.monotonic() + _RETRY_S
            self._report(
                f"{model}: could not be loaded again ({error}); retrying in {_RETRY_S:.0f} s"
            )
            return
        # The new stubs must be known before one of them can die unseen.
        self._look_for_dead_stubs()
        with self._lock:
            self.reloads += 1
            self._reloads_of[model] += 1
            self._suspects.pop(model, None)
            self._retry_at.pop(model, None)
        # The server cannot finish unloading a model that lost a stub, so the survivors would stay.
        # They answer what was queued for them first.
        now = time.monotonic()
        with self._lock:
            self._leftovers.update((pid, now) for pid in old if pid in self._alive)
        self._report(f"{model}: serving again after {now - began:.1f} s")

    def _restart(self) -> None:
        """Starts a dead server again on the same ports; gives up when it keeps dying."""
        now = time.monotonic()
        self._restarts = [when for when in self._restarts if now - when < _MINUTE_S]
        last = (list(self._server.process.last_lines) or [""])[-1][:200]
        if len(self._restarts) >= self._server.settings.restarts:
            self._give_up(
                f"the server died {len(self._restarts) + 1} times within a minute; last line of "
                f"its log: {last}"
            )
            return
        self._restarts.append(now)
        code = self._server.process.exit_code()
        self._report(
            f"the server died (exit code {code}); starting it again (last line of its log: {last})"
        )
        self._alive.clear()
        with self._lock:
            self._leftovers.clear()
            self._suspects.clear()
        self._restarting.set()
        try:
            self._server.launch()
        except FusewireError as error:
            if self._ended.is_set():
                return
            self._report(f"the server did not start ({error})")
            self._server.process.clear()
            return
        finally:
            self._restarting.clear()
        self._look_for_dead_stubs()
        self.restarts += 1
        self._report(f"the server is ready again after {time.monotonic() - now:.1f} s")

    def _watch_answers(self) -> None:
        """Probes each ready model; one without an answer and without progress hangs."""
        while not self._ended.wait(self._server.settings.watch_interval_s):
            self._end_leftovers()
            for model, versions in self._ready_models().items():
                if self._ended.is_set():
                    return
                self._count_processes(model, versions)
                question = self._pulse.question(model)
                if question is not None:
                    self._ask(model, question)

    def _ready_models(self) -> collections.Counter[str]:
        """Name -> versions. A server that does not answer this hangs, and is ended."""
        process, timeout_s = self._server.process, self._server.settings.watch_timeout_s
        pid = process.pid if process.running() else None
        try:
            rows = self._server.index(timeout_s)
            return collections.Counter(row["name"] for row in rows if row.get("state") == "READY")
        except EndpointError as error:
            hangs = "timed out" in str(error) and not self._restarting.is_set()
            if hangs and pid is not None and process.pid == pid and not self._ended.is_set():
                self._report(f"the server gave no answer for {timeout_s:.0f} s; ending it")
                processes.kill(pid)
            return collections.Counter()

    def _count_processes(self, model: str, versions: int) -> None:
        """A ready model with fewer processes than instances, twice in a row, lost one unseen."""
        reloads = self._reloads_of[model]
        try:
            groups = self._server.endpoint.call(f"models/{model}/config")["instance_group"]
        except (EndpointError, KeyError):
            return
        wanted = versions * sum(
            int(group.get("count", 1)) * max(1, len(group.get("gpus", []))) for group in groups
        )
        stubs = [stub for stub in self._server.process.stubs() if stub.model == model]
        living = [stub for stub in stubs if stub.pid not in self._leftovers]
        # A model that is none of ours may have no processes at all.
        ours = self._pulse.question(model) is not None
        short = ours and len(living) < wanted and reloads == self._reloads_of[model]
        if short and model in self._short:
            self._suspect(model, f"{len(living)} of {wanted} processes are left")
        (self._short.add if short else self._short.discard)(model)
        loaded_at = self._server.process.loaded_at.get(model, 0.0)
        for pid in self._surplus.idle(living, wanted, loaded_at) if ours else []:
            self._report(f"{model}: ending a process that was unloaded and idles (pid {pid})")
            with self._lock:
                self._leftovers[pid] = loaded_at

    def _ask(self, model: str, question: Probe) -> None:
        timeout_s = self._server.settings.watch_timeout_s
        done, reloads = self._pulse.done(model), self._reloads_of[model]
        try:
            self._pulse.ask(model, question, timeout_s)
            self._failures[model] = 0
        except EndpointError as error:
            if self._ended.is_set():
                return
            if error.status == 0 and done is not None and done == self._pulse.done(model):
                for pid, stub in list(self._alive.items()):
                    if stub.model == model:
                        processes.kill(pid)
                self._suspect(model, f"no answer for {timeout_s:.0f} s")
            elif "is not healthy" in str(error) and reloads == self._reloads_of[model]:
                self._suspect(model, "a process of the model died")
            elif error.status == 500:
                # Once may be a lack of memory that passes; after a fault a GPU answers no more.
                self._failures[model] += 1
                if self._failures[model] == 2:  # should a reload not help, another would not
                    self._suspect(model, f"its test inference fails ({error})")
