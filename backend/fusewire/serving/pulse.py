"""Whether a model answers: its probe, sent over HTTP, and how much it has done so far."""

from __future__ import annotations

import http.client
import re
from typing import TYPE_CHECKING, Any

from fusewire.errors import FusewireError
from fusewire.serving import repository
from fusewire.serving.endpoint import EndpointError
from fusewire.serving.model_config import BACKEND, settings_of
from fusewire.serving.probe import Probe, probe
from fusewire.tasks.contract import GENERATE

if TYPE_CHECKING:
    from fusewire.serving.server import Server

_TOKENS = re.compile(r'^fusewire_tokens_total\{[^}]*model="([^"]+)"[^}]*\} (\S+)$', re.MULTILINE)


class Pulse:
    """Probes the models of one server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._probes: dict[str, Probe | None] = {}

    def question(self, model: str) -> Probe | None:
        """The model's probe, None for models of other backends."""
        if model not in self._probes:
            self._probes[model] = None
            try:
                config = self._server.endpoint.call(f"models/{model}/config")
                if config["backend"] == BACKEND:
                    newest = repository.versions(self._server.entry(model))[-1]
                    task = settings_of(config["parameters"]).task
                    tensors = probe(newest, task)
                    self._probes[model] = Probe(task, tuple(tensors)) if tensors else None
            except EndpointError:
                del self._probes[model]
                return None
            except (FusewireError, KeyError, IndexError):
                return None
        return self._probes[model]

    def ask(self, model: str, question: Probe, timeout_s: float) -> None:
        """EndpointError when the answer is an error, or none comes. `generate` answers 400 to every
        error of a model; as the probe is no client's, only a lack of room is none of status 500."""
        path = f"models/{model}/{question.path}"
        try:
            self._server.endpoint.call(path, question.json(), timeout_s=timeout_s)
        except EndpointError as error:
            if question.task == GENERATE and error.status == 400:
                busy = str(error).startswith("queue: ")
                raise EndpointError(503 if busy else 500, str(error)) from None
            raise

    def done(self, model: str) -> tuple[int, float] | None:
        """Requests answered and tokens computed so far, as some requests take long; None when the
        server does not say."""
        try:
            stats: dict[str, Any] = self._server.endpoint.call(f"models/{model}/stats")
            rows = [row["inference_stats"] for row in stats["model_stats"]]
            answered = sum(int(row["success"]["count"]) for row in rows)
        except (EndpointError, KeyError):
            return None
        return answered, self._tokens(model)

    def _tokens(self, model: str) -> float:
        try:
            page = self._server.endpoint.metrics()
        except (OSError, http.client.HTTPException):
            return 0.0
        return sum(float(count) for name, count in _TOKENS.findall(page) if name == model)
