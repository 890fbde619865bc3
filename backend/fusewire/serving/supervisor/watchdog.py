"""Keeps a server answering: detects what is wrong with it, and has it healed (healing.py).

Triton itself does neither, and still reports that it is ready. There are three checks: the states
of the processes, several times per second; a tiny inference with each model, every few seconds; and
the memory of the server's process.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Iterable

from fusewire.serving import instance_group
from fusewire.serving.config import ServerSettings
from fusewire.serving.endpoint import EndpointError
from fusewire.serving.probe import Probe
from fusewire.serving.supervisor import memory, processes
from fusewire.serving.supervisor.healing import Healer
from fusewire.serving.supervisor.pulse import Outcome, Pulse
from fusewire.serving.supervisor.regions import Regions
from fusewire.serving.supervisor.shared_memory import SharedMemory
from fusewire.serving.supervisor.surplus import Surplus
from fusewire.serving.supervisor.unheard import UnheardLoads, last_words
from fusewire.serving.supervisor.watched import Watched
from fusewire.serving.supervisor.zombies import Zombies

_TICK_S = 0.25
_PAUSE_S = 1.0  # after a step that failed
# A connection may be assigned to one of Triton's HTTP threads that is busy with a huge body. So
# several connections are tried.
_LIVE_CONNECTIONS = 3


class Watchdog:
    """Watches one server from three threads, one per check, until it is stopped."""

    def __init__(self, watched: Watched, report: Callable[[str], None]) -> None:
        """`report`: called with what the watchdog found and did."""
        self._process = watched.process
        self._control = watched.control
        self._settings = watched.settings
        self._lost = watched.lost
        self._report = _unfailing(report)
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._healer = Healer(watched, self._report, self._ended)
        self._reloads_of = self._healer.reloads_of
        self._alive: dict[int, processes.Stub] = {}
        self._remembered = -1  # `changes` of the process when the pins were last refreshed
        self._failures: collections.Counter[str] = collections.Counter()  # probes, in a row
        self._short: set[str] = set()  # models with too few processes at the last count
        self._pulse = Pulse(self._control.endpoint, watched.repositories)
        self._surplus = Surplus(self._settings.exit_timeout_s)
        self._shared_memory = SharedMemory()
        self._regions = Regions()
        self._zombies = Zombies()
        self._unheard = UnheardLoads()
        self._memory_limit_bytes = _memory_limit_bytes(self._settings)

    @property
    def reloads(self) -> int:
        """How often a model has been reloaded."""
        return self._healer.reloads

    @property
    def restarts(self) -> int:
        """How often the server has been restarted."""
        return self._healer.restarts

    def start(self) -> None:
        """Starts watching a ready server."""
        self._remember()
        self._look_for_dead_stubs()
        interval_s = self._settings.watch_interval_s
        for step, every_s in (
            (self.watch_processes, _TICK_S),
            (self.watch_memory, _TICK_S),
            (self.watch_answers, interval_s),
        ):
            thread = threading.Thread(target=self._repeat, args=(step, every_s), daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Stops watching. A running call may still wait for the server's answer; it ends with the
        server, and its result is ignored."""
        self._ended.set()
        for thread in self._threads:
            thread.join(timeout=1)

    def _repeat(self, step: Callable[[], None], every_s: float) -> None:
        """Repeats a step. Errors do not end the watch: exhausted file descriptors and memory become
        available again."""
        reported = ""
        while not self._ended.wait(every_s):
            try:
                step()
                reported = ""
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                if what != reported and not self._ended.is_set():
                    self._report(f"the watchdog met an error ({what}) and tries again")
                reported = what
                self._ended.wait(_PAUSE_S)

    def watch_processes(self) -> None:
        """Detects processes that died, restarts a dead server, and starts to reload models."""
        if not self._process.running():
            self._alive.clear()
            self._healer.restart()
        if self._process.running():
            self._remember()
            self._look_for_dead_stubs()
            self._healer.heal()

    def _remember(self) -> None:
        """Stores which versions are served whenever a model was loaded or unloaded."""
        changes = self._process.changes
        if changes != self._remembered and self._healer.remember():
            self._remembered = changes

    def _look_for_dead_stubs(self) -> None:
        """Finds stubs that were killed or crashed: they stay as zombies of the server."""
        process = self._process
        children = processes.children(process.pid)
        for pid, state in children.items():
            stub = self._alive.get(pid)
            if state == "died" and stub is not None:
                del self._alive[pid]
                replaced = self._healer.replaced(pid)
                self._lost(stub.model, replaced or time.monotonic())
                if replaced is None:
                    self._suspect(stub.model, f"the process of {stub.instance} died (pid {pid})")
        process.reap(self._zombies.due(pid for pid, s in children.items() if s != "running"))
        regions, stubs = process.regions(), process.stubs()
        process.remove_regions(self._regions.due(regions, stubs))
        self._unheard.see(children, stubs)
        self._alive |= {stub.pid: stub for stub in stubs}
        self._alive = {pid: stub for pid, stub in self._alive.items() if pid in children}

    def _suspect(self, model: str, what: str) -> None:
        self._process.stub_died = True
        self._healer.suspect(model, what)

    def watch_memory(self) -> None:
        """Ends a server that uses too much memory: some requests make Triton allocate tens of
        gigabytes."""
        process = self._process
        pid, limit = process.pid, self._memory_limit_bytes
        taken = memory.resident(pid).anonymous_bytes if pid > 0 else 0
        if taken > limit and process.running():
            self._report(
                f"the server takes {taken >> 20} MiB of memory, more than the "
                f"{limit >> 20} MiB of --memory-limit-mib; ending it"
            )
            processes.kill(pid)

    def watch_answers(self) -> None:
        """Probes each ready model. A model without an answer and without progress hangs."""
        self._healer.end_leftovers()  # in this thread, as a load may wait for them to end
        for model, versions in self._ready_models().items():
            if self._ended.is_set():
                return
            self._count_processes(model, versions)
            question = self._pulse.question(model)
            if question is not None:
                self._ask(model, question)

    def _ready_models(self) -> collections.Counter[str]:
        """Returns name -> number of versions. A server that does not answer this hangs, and is
        ended."""
        process, timeout_s = self._process, self._settings.watch_timeout_s
        pid = process.pid if process.running() else None
        try:
            rows = self._control.index(timeout_s)
            self._report_unheard(row["name"] for row in rows if row.get("state") == "LOADING")
            return collections.Counter(row["name"] for row in rows if row.get("state") == "READY")
        except EndpointError as error:
            hangs = error.timed_out and not self._healer.restarting.is_set()
            if hangs and pid is not None and not self._live() and process.pid == pid:
                self._report(f"the server gave no answer for {timeout_s:.0f} s; ending it")
                processes.kill(pid)
            return collections.Counter()

    def _report_unheard(self, loading: Iterable[str]) -> None:
        for model in self._unheard.due({*loading}):
            self._report(
                f"{model}: its process died before it could tell why, and tritonserver waits for "
                "it for ever, as calls that load the model do: restart the server when the model "
                f"is corrected; {last_words(self._process)}"
            )

    def _live(self) -> bool:
        """Whether the server answers at all, or the watch has ended."""
        tries = range(_LIVE_CONNECTIONS)
        return any(self._ended.is_set() or self._control.live() for _ in tries)

    def _count_processes(self, model: str, versions: int) -> None:
        """Compares a model's processes with its instances. A ready model with too few, twice in a
        row, has lost one unnoticed. Ends surplus processes that idle."""
        reloads = self._reloads_of[model]
        try:
            groups = self._control.endpoint.call(f"models/{model}/config")["instance_group"]
        except (EndpointError, KeyError):
            return
        wanted = versions * instance_group.instances(groups)
        stubs = [stub for stub in self._process.stubs() if stub.model == model]
        leftovers = self._healer.leftovers()
        living = [stub for stub in stubs if stub.pid not in leftovers]
        # A model of another backend may have no processes at all.
        ours = self._pulse.question(model) is not None
        short = ours and len(living) < wanted and reloads == self._reloads_of[model]
        if short and model in self._short:
            self._suspect(model, f"{len(living)} of {wanted} processes are left")
        (self._short.add if short else self._short.discard)(model)
        loaded_at = self._process.loaded_at.get(model, 0.0)
        for pid in self._surplus.idle(living, wanted, loaded_at) if ours else []:
            self._report(f"{model}: ending a process that was unloaded and idles (pid {pid})")
            self._healer.leave([pid], loaded_at)
        # On a GPU a second process may not fit beside the first.
        on_cpus = all(group.get("kind") == "KIND_CPU" for group in groups)
        if on_cpus and self._pulse.encodes(model):
            self._give_shared_memory_back(model, living)

    def _give_shared_memory_back(self, model: str, stubs: list[processes.Stub]) -> None:
        surplus = self._shared_memory.due_bytes(model, stubs)
        if surplus:
            words = f"its processes hold {surplus >> 20} MiB of shared memory for past requests"
            self._healer.suspect(model, words, healthy=True)

    def _ask(self, model: str, question: Probe) -> None:
        timeout_s = self._settings.watch_timeout_s
        before, reloads = self._pulse.done(model), self._reloads_of[model]
        outcome, words = self._pulse.ask(model, question, timeout_s)
        if self._ended.is_set():
            return
        if outcome is Outcome.ANSWERED:
            self._failures[model] = 0
        elif outcome is Outcome.UNANSWERED and self._pulse.hangs(model, before):
            for pid, stub in list(self._alive.items()):
                if stub.model == model:
                    processes.kill(pid)
            self._suspect(model, f"no answer for {timeout_s:.0f} s")
        elif outcome is Outcome.PROCESS_DIED and reloads == self._reloads_of[model]:
            self._suspect(model, "a process of the model died")
        elif outcome is Outcome.FAILED:
            # A single failure may be a temporary lack of memory; after a fault a GPU stays
            # unusable.
            self._failures[model] += 1
            if self._failures[model] == 2:  # if a reload does not help, another will not
                self._suspect(model, f"its test inference fails ({words})")


def _memory_limit_bytes(settings: ServerSettings) -> int:
    """Returns the limit that was set, otherwise half of the available memory."""
    set_mib = settings.memory_limit_mib
    return memory.total_bytes() // 2 if set_mib is None else set_mib << 20


def _unfailing(report: Callable[[str], None]) -> Callable[[str], None]:
    """Returns a report that never raises: a reader that has gone must not stop the healing."""

    def reported(text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            report(text)

    return reported
