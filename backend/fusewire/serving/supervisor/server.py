"""A server with its models, from repositories and checkpoint folders until it is removed."""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fusewire.serving import model_config, repository
from fusewire.serving.config import Deployment, ServerSettings
from fusewire.serving.endpoint import Endpoint, reserve
from fusewire.serving.installation import find
from fusewire.serving.supervisor import open_files, processes
from fusewire.serving.supervisor.control import Control
from fusewire.serving.supervisor.embedded import EmbeddedServer, LogLine
from fusewire.serving.supervisor.gateway import Gateway
from fusewire.serving.supervisor.pins import Pins
from fusewire.serving.supervisor.source_process import collect_apart
from fusewire.serving.supervisor.sources import Source, source_of
from fusewire.serving.supervisor.starter import Loading, ServerFailed, Starter
from fusewire.serving.supervisor.triton_words import reason_in_words
from fusewire.serving.supervisor.watchdog import Watchdog
from fusewire.serving.supervisor.watched import Watched
from fusewire.serving.supervisor.workplace import Workplace
from fusewire.text.tokenizer_files import WANTED

_log = logging.getLogger(__name__)


def _quiet(level: str, line: str) -> None:
    pass


def _nobody(model: str, began_before: float) -> None:
    """Does nothing: without an OpenAI endpoint there are no requests to end."""


class Server:
    """tritonserver with our backend, its watchdog, and all temporary files.

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
        """`model_settings`, `deployment`: for folders that are given without a Source. `log`:
        called with the server's log lines of the set level. `report`: called with what the watchdog
        found and did."""
        open_files.open_standard()
        open_files.raise_limit()
        self.settings = settings or ServerSettings()
        control_key = self.settings.control_key or secrets.token_hex(16)
        installation = find(self.settings.tritonserver)
        self._workplace = Workplace()
        self._cleared = contextlib.ExitStack()
        self._cleared.callback(self._workplace.remove)
        try:
            self.repositories, self.models, self.left_out = collect_apart(
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
            # A server that was killed keeps its ports until the kernel has freed its memory.
            wait_s = 10 if self._workplace.swept else 0
            # Reserved until the end: at every start tritonserver binds them after loading models.
            reserved = self._cleared.enter_context(reserve(self.settings.host, wanted, wait_s))
            ports = reserved.ports
            self.endpoint = Endpoint(reserved.address, *ports[:3])
            self._control = Control(self.endpoint, control_key, self.settings.start_timeout_s)
            self.pins = Pins(self._control)
            self.openai = self._gateway(ports[3], report) if ports[3:] else None
            self.process = EmbeddedServer(
                installation,
                self.settings,
                self.endpoint,
                self._workplace.path,
                control_key,
                on_gpus=any(self.device(model) != "cpu" for model in self.models),
            )
        except BaseException:
            self._cleared.close()
            raise
        self._starter = Starter(self.process, self._control, self.repositories, self.settings, log)
        self.watchdog = Watchdog(
            Watched(
                self.process,
                self._control,
                self.pins,
                self.repositories,
                self.settings,
                start=self._starter.start,
                lost=_nobody if self.openai is None else self.openai.lost,
            ),
            report,
        )

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self, loading: Loading = lambda loaded, models: None) -> None:
        """Starts the process, waits until every model is ready, then starts the watchdog.

        Raises ServerFailed with the models that could not be loaded and the reasons; nothing keeps
        running.
        """
        openai = self.openai

        def checked(loaded: set[str], models: Sequence[str]) -> None:
            if openai is not None:
                openai.check()
            loading(loaded, models)

        try:
            if openai is not None:
                openai.start()
            self._starter.start(self.models, checked)
            self._check_loaded()
            if openai is not None:
                openai.open()
        except BaseException:
            self.stop()
            raise
        for model in self.models:
            if repository.takes_ids_only(self.entry(model)):
                _log.warning("%s: no tokenizer, takes input_ids only; wanted %s", model, WANTED)
        self.watchdog.start()

    def _check_loaded(self) -> None:
        """Raises ServerFailed where a model failed to load: at the first start nothing was served
        before."""
        failed = {
            row["name"]: reason_in_words(row.get("reason", ""))
            for row in self.index()
            if row["name"] in self.models and row.get("state") != "READY"
        }
        if failed:
            raise ServerFailed("\n".join(f"{name}: {text}" for name, text in failed.items()))

    def stop(self) -> None:
        """Ends server, stubs and watchdog, removes shared memory and temporary folders, and frees
        the ports."""
        self.process.leave_rotation()
        if self.openai is not None:
            self.openai.close()
        self.watchdog.stop()
        self.process.stop(self._starter.serving)
        self._cleared.close()

    def kill(self) -> None:
        """Ends the processes without waiting for requests. `stop` must still be called. Takes no
        lock, so that a signal handler may call it while `stop` runs."""
        if self.openai is not None:
            self.openai.kill()
        if self.process.running():
            processes.kill_group(self.process.pid)

    def index(self, timeout_s: float = 10.0) -> list[dict[str, Any]]:
        """Returns the server's index of models and their states."""
        return self._control.index(timeout_s)

    def load(self, model: str, config: dict[str, Any] | None = None) -> None:
        """Loads a model, or reloads a changed one. `config`: replaces that of its entry."""
        self._control.load(model, config)

    def unload(self, model: str) -> None:
        """Unloads a model. It accepts no more requests."""
        self._control.unload(model)

    def entry(self, model: str) -> Path:
        """Returns the repository entry of a model."""
        return repository.entry(self.repositories, model)

    def device(self, model: str) -> str:
        """Returns the devices of a model's instances as text."""
        return model_config.places(model_config.read(self.entry(model) / repository.CONFIG))

    def _gateway(self, port: int, report: Callable[[str], None]) -> Gateway:
        entries = {model: self.entry(model) for model in self.models}
        return Gateway(self.endpoint, port, entries, self.pins.get, self.settings, report)
