"""Healing: a model whose process died is reloaded, a server that died is restarted.

Both load what was served before (pins.py), and both are retried for ever, with back-off: what
prevents a model or a server from starting may go away, and nothing else would start it.

A model is reloaded by loading it under a changed configuration (`reloads` is incremented), because
loading an unchanged one does nothing. The new instances start before the old ones end, so instances
that are still alive answer all the time.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fusewire.errors import FusewireError
from fusewire.serving.backoff import Backoff
from fusewire.serving.endpoint import EndpointError
from fusewire.serving.supervisor import processes
from fusewire.serving.supervisor.pins import Pin
from fusewire.serving.supervisor.triton_words import reason_in_words
from fusewire.serving.supervisor.watched import Watched

_INDEX_TIMEOUT_S = 5.0


@dataclass
class _Suspect:
    """A model that must be reloaded."""

    what: str  # what is wrong with it
    healthy: bool  # whether its processes complete what they have begun
    backoff: Backoff = field(default_factory=Backoff)
    loading: bool = False


class Healer:
    """Heals one server and its models. Reloads run in separate threads, so that a model that takes
    long to load does not delay others."""

    def __init__(
        self, watched: Watched, report: Callable[[str], None], ended: threading.Event
    ) -> None:
        """`ended`: set when healing must stop."""
        self._watched = watched
        self._process = watched.process
        self._control = watched.control
        self._pins = watched.pins
        self._report = report
        self._ended = ended
        self._lock = threading.Lock()
        self._suspects: dict[str, _Suspect] = {}
        self._leftovers: dict[int, float] = {}  # replaced process -> time of its replacement
        self._starts = Backoff()
        self.restarting = threading.Event()
        self.reloads_of: collections.Counter[str] = collections.Counter()
        self.reloads = 0
        self.restarts = 0

    def remember(self) -> bool:
        """Stores what is served now. Returns False when the server does not answer."""
        try:
            self._pins.refresh(_INDEX_TIMEOUT_S)
        except EndpointError:
            return False
        return True

    def suspect(self, model: str, what: str, *, healthy: bool = False) -> None:
        """Marks a model to be reloaded. `healthy`: its processes complete what they have begun,
        however long that takes."""
        with self._lock:
            if not healthy and model in self._suspects:
                self._suspects[model].healthy = False
            self._suspects.setdefault(model, _Suspect(what, healthy))

    def suspects(self) -> dict[str, str]:
        """Returns model -> what is wrong with it."""
        with self._lock:
            return {model: suspect.what for model, suspect in self._suspects.items()}

    def heal(self) -> None:
        """Starts to reload the models that are due."""
        with self._lock:
            due = {
                model: suspect
                for model, suspect in self._suspects.items()
                if not suspect.loading and suspect.backoff.wait_s() == 0
            }
        if not due or not self.remember():  # otherwise it would undo an operator's unload
            return
        for model, suspect in due.items():
            pin = self._pins.get(model)
            if pin is None:
                self._report(f"{model}: {suspect.what}; not loaded again, as it was unloaded")
                self._recovered(model, suspect)
                continue
            suspect.backoff.begin()
            thread = threading.Thread(target=self._reload, args=(model, suspect, pin), daemon=True)
            suspect.loading = True
            try:
                thread.start()
            except RuntimeError:  # no more threads at the moment
                suspect.loading = False
                raise

    def leave(self, pids: list[int], since: float) -> None:
        """Registers processes that were replaced at `since`. They have the exit timeout to end by
        themselves."""
        with self._lock:
            self._leftovers.update((pid, since) for pid in pids)

    def leftovers(self) -> set[int]:
        """Returns the processes that were replaced and have not ended yet."""
        with self._lock:
            return set(self._leftovers)

    def replaced(self, pid: int) -> float | None:
        """Returns when a process that died was replaced, or None for one that was not."""
        with self._lock:
            return self._leftovers.pop(pid, None)

    def end_leftovers(self) -> None:
        """Ends the replaced processes whose time is over. Triton cannot finish unloading a model
        that lost a process, so its other processes would stay."""
        living = {stub.pid for stub in self._process.stubs()}
        due_since = time.monotonic() - self._watched.settings.exit_timeout_s
        with self._lock:
            self._leftovers = {pid: at for pid, at in self._leftovers.items() if pid in living}
            due = [pid for pid, at in self._leftovers.items() if at <= due_since]
        for pid in due:
            processes.kill(pid)

    def restart(self) -> None:
        """Restarts a dead server on the same ports. Returns when it is ready, or when healing
        ended. Models that are not ready then become suspects."""
        self._starts.ended()
        process, died = self._process, time.monotonic()
        what = f"the server died (exit code {process.exit_code()})"
        last = next((line[:200] for line in reversed(process.last_lines) if line.strip()), "")
        log = f" (last line of its log: {last})"
        for attempt in itertools.count():
            wait_s = self._starts.wait_s()
            self._report(f"{what}; starting it again{_in(wait_s)}{log}")
            if self._ended.wait(wait_s):
                return
            self._starts.begin()
            try:
                # If the first attempt fails, the cause may be a model that it loaded.
                self._start(by_repository=attempt == 0)
                break
            except Exception as error:  # of any type: no file descriptors, no memory, no port
                if self._ended.is_set():
                    return
                what, log = f"the server did not start ({error})", ""
                with contextlib.suppress(OSError):  # the next start removes what is left
                    process.clear()
        self._starts.succeeded()
        self.restarts += 1
        missing = ", ".join(self.suspects())
        without = f", without {missing}" if missing else ""
        self._report(f"the server is ready again after {time.monotonic() - died:.1f} s{without}")

    def _start(self, *, by_repository: bool) -> None:
        """Starts the server. With `by_repository` it loads the models whose repository entries
        equal what was served, and answers when they are ready; the other models become suspects."""
        pins = self._pins.all()
        with self._lock:
            self._leftovers.clear()
            self._suspects.clear()
        self.restarting.set()
        try:
            self._watched.start(
                [
                    model
                    for model, pin in pins.items()
                    if by_repository and pin.in_repositories(self._watched.repositories, model)
                ]
            )
            rows = self._control.index(_INDEX_TIMEOUT_S)
        finally:
            self.restarting.clear()
        for model, pin in pins.items():
            states = {int(r["version"]): r for r in rows if r["name"] == model and r.get("state")}
            if any(states.get(each, {}).get("state") != "READY" for each in pin.versions):
                reasons = [reason_in_words(r["reason"]) for r in states.values() if "reason" in r]
                self.suspect(model, f"not loaded ({reasons[0]})" if reasons else "not loaded yet")

    def _reload(self, model: str, suspect: _Suspect, pin: Pin) -> None:
        """Loads the model beside the old one, which the server then unloads."""
        process, began = self._process, time.monotonic()
        server = process.pid
        self._report(f"{model}: {suspect.what}; loading the model again")
        try:
            old = {stub.pid for stub in process.stubs() if stub.model == model}
            try:
                self._control.load(model, pin.override(pin.versions))
            except FusewireError as error:
                if old or len(pin.versions) == 1:
                    raise  # the remaining processes continue to serve
                self._load_newest(model, pin, error)
            now = time.monotonic()
            # Old processes first answer the requests in their queues.
            if not suspect.healthy:
                self.leave([stub.pid for stub in process.stubs() if stub.pid in old], now)
        except Exception as error:
            suspect.loading = False
            if process.pid == server and process.running() and not self._ended.is_set():
                self._report(
                    f"{model}: could not be loaded again ({reason_in_words(str(error))}); trying "
                    f"again{_in(suspect.backoff.wait_s())}"
                )
            return
        with self._lock:
            self.reloads += 1
            self.reloads_of[model] += 1
        self._recovered(model, suspect)
        self._report(f"{model}: serving again after {now - began:.1f} s")

    def _load_newest(self, model: str, pin: Pin, error: FusewireError) -> None:
        """Loads the newest version that can be loaded, where loading all versions failed. The pin
        then has only this version."""
        for version in reversed(pin.versions):
            try:
                self._control.load(model, pin.override([version]))
            except FusewireError:
                continue
            self._report(
                f"{model}: only version {version} could be loaded ({reason_in_words(str(error))})"
            )
            return
        raise error

    def _recovered(self, model: str, suspect: _Suspect) -> None:
        with self._lock:
            if self._suspects.get(model) is suspect:
                del self._suspects[model]


def _in(wait_s: float) -> str:
    return f" in {wait_s:.1f} s" if wait_s else ""
