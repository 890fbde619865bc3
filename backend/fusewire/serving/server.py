"""A server with its models: from repositories and checkpoint folders to ready, and away again."""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fusewire.errors import ConfigurationError, FusewireError
from fusewire.serving import model_config, repository
from fusewire.serving.config import Deployment, ServerSettings
from fusewire.serving.control import Control
from fusewire.serving.embedded import EmbeddedServer, LogLine
from fusewire.serving.endpoint import Endpoint, EndpointError, choose_ports
from fusewire.serving.installation import find
from fusewire.serving.sources import Source, collect, source_of
from fusewire.serving.watchdog import Watchdog
from fusewire.serving.workplace import Workplace

if TYPE_CHECKING:
    from fusewire.serving.openai.listener import Listener

_log = logging.getLogger(__name__)
Loading = Callable[[set[str], Sequence[str]], None]  # loaded so far, all


class ServerFailed(FusewireError):
    """The server did not start, or did not stay alive."""


def _quiet(level: str, line: str) -> None:
    pass


class Server:
    """tritonserver with our backend, its watchdog, and everything temporary around them.

        with Server([Path("model_repository"), Path("some-checkpoint")]) as server:
            server.endpoint.http_port …

    A source is a model repository, a model folder, or the id of a model on Hugging Face; `NAME=`
    before the latter two names the model. They are imported on the fly, linked, into a temporary
    repository, with the settings of a Source.
    """

    def __init__(
        self,
        sources: Sequence[Source | Path | str],
        settings: ServerSettings | None = None,
        *,
        model_settings: dict[str, object] | None = None,
        deployment: Deployment | None = None,
        log: LogLine = _quiet,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`model_settings`, `deployment`: of folders that are given without a Source. `log`: gets
        the server's log lines of the set level. `report`: gets what the watchdog found and did."""
        self.settings = settings or ServerSettings()
        self.control_key = self.settings.control_key or secrets.token_hex(16)
        installation = find(self.settings.tritonserver)
        self._log = log
        self._starting = False
        self._serving = False
        self._workplace = Workplace()
        try:
            self.repositories, self.models, self.left_out = collect(
                [source_of(source, model_settings, deployment) for source in sources],
                self._workplace.path / "repository",
            )
            wanted = [
                ("http-port", self.settings.http_port),
                ("grpc-port", self.settings.grpc_port),
                ("metrics-port", self.settings.metrics_port),
            ]
            if self.settings.openai_port is not None:
                wanted.append(("openai-port", self.settings.openai_port))
            ports = choose_ports(self.settings.host, wanted)
            self.endpoint = Endpoint(self.settings.host, *ports[:3])
            self._control = Control(self.endpoint, self.control_key)
            self.openai = _openai_listener(self, ports[3], report) if ports[3:] else None
            self.process = EmbeddedServer(
                installation,
                self.settings,
                self.endpoint,
                self._workplace.path,
                self.control_key,
                on_gpus=any(self.device(model) != "cpu" for model in self.models),
            )
        except BaseException:
            self._workplace.remove()
            raise
        self.watchdog = Watchdog(self, report)

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self, loading: Loading = lambda loaded, models: None) -> None:
        """Starts the process, waits until every model is ready, then lets the watchdog watch.

        ServerFailed names the models that could not be loaded and why; nothing keeps running.
        """
        try:
            self.launch(loading)
            if self.openai is not None:
                self.openai.open()
        except BaseException:
            self.stop()
            raise
        for model in self.models:
            if repository.takes_ids_only(self.entry(model)):
                _log.warning("%s: no tokenizer.json, takes input_ids only", model)
        self.watchdog.start()

    def launch(self, loading: Loading = lambda loaded, models: None) -> None:
        """Starts the process and waits until every model is ready."""
        self._starting = self.settings.log_level in ("error", "warning")
        self.process.start(self.repositories, self.models, self._log_line)
        deadline = time.monotonic() + self.settings.start_timeout_s
        while not self._live():
            if not self.process.running():
                raise ServerFailed(
                    "tritonserver exited while starting; the end of its output:\n"
                    + "\n".join([line for line in self.process.last_lines if line][-8:])
                )
            if time.monotonic() > deadline:
                waiting = ", ".join(sorted(set(self.models) - self.process.loaded))
                raise ServerFailed(
                    f"not ready after {self.settings.start_timeout_s:.0f} s, still loading: "
                    f"{waiting}; give more time with --start-timeout-s"
                )
            loading(self.process.loaded, self.models)
            time.sleep(0.05)
        failed = {
            row["name"]: reason_in_words(row.get("reason", ""))
            for row in self.index()
            if row["name"] in self.models and row.get("state") != "READY"
        }
        if failed:
            raise ServerFailed("\n".join(f"{name}: {text}" for name, text in failed.items()))
        loading(set(self.models), self.models)
        self._starting = False
        self._serving = True

    def stop(self) -> None:
        """Ends server, stubs and watchdog; removes shared memory and temporary folders."""
        if self.openai is not None:
            self.openai.close()
        self.watchdog.stop()
        self.process.stop(self._serving)
        self._workplace.remove()

    def lost(self, model: str, began_before: float) -> None:
        """A process of the model has died: some of its requests started before then are lost."""
        if self.openai is not None:
            self.openai.lost(model, began_before)

    def index(self, timeout_s: float = 10.0) -> list[dict[str, Any]]:
        """The server's index of models and their states."""
        rows = self.endpoint.call(
            "repository/index", {}, timeout_s=timeout_s, control_key=self.control_key
        )
        return rows if isinstance(rows, list) else []

    def load(self, model: str, config: dict[str, Any] | None = None) -> None:
        """Loads a model, or reloads a changed one; `config`: instead of its entry's."""
        self._control.load(model, config, self.settings.start_timeout_s)

    def unload(self, model: str) -> None:
        """Unloads a model: it accepts no more requests."""
        self._control.unload(model, self.settings.start_timeout_s)

    def entry(self, model: str) -> Path:
        """The repository entry of a model."""
        for path in self.repositories:
            if (path / model / repository.CONFIG).is_file():
                return path / model
        raise ConfigurationError(f"{model}: in none of the repositories; import it first")

    def device(self, model: str) -> str:
        """Where a model's instances are, as operators say it."""
        return model_config.places(model_config.read(self.entry(model) / repository.CONFIG))

    def _log_line(self, level: str, line: str) -> None:
        # Errors while starting are reported by ServerFailed, not by the server's log as well.
        if not self._starting:
            self._log(level, line)

    def _live(self) -> bool:
        with contextlib.suppress(EndpointError):
            self.endpoint.call("health/live", timeout_s=2)
            return True
        return False


def reason_in_words(reason: str) -> str:
    """Triton's reason for a model that does not load, without its wrappings."""
    words = re.sub(
        r"^(Internal|Invalid argument|Unavailable): (TritonModelException: )?", "", reason.strip()
    )
    if "has kind KIND_GPU but" in words or "compute compatibility" in words:
        return (
            "instance_group: got a GPU that the server does not have, wanted KIND_CPU or a GPU "
            "that nvidia-smi shows; import the model with --device cpu, or another"
        )
    return words.split("\n\nAt:")[0].strip() or "the server gives no reason; see --log-level info"


def _openai_listener(server: Server, port: int, report: Callable[[str], None]) -> Listener:
    try:
        from fusewire.serving.openai.listener import Listener
    except ImportError as error:
        raise ConfigurationError(
            f"{error.name}: not installed, wanted for --openai-port; pip install "
            "'fusewire[openai]' ./client"
        ) from None
    return Listener(server, port, report)
