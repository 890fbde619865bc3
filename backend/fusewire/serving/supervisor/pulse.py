"""Checks whether a model answers its probe over HTTP, and whether it hangs if it does not."""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from fusewire.errors import FusewireError
from fusewire.serving import repository
from fusewire.serving.endpoint import Endpoint, EndpointError
from fusewire.serving.model_config import BACKEND, settings_of
from fusewire.serving.probe import PARAMETER, Probe, stored_probe
from fusewire.serving.supervisor import triton_words
from fusewire.tasks.contract import GENERATING

_SERIES = re.compile(
    r"^fusewire_(requests_total|tokens_total|compute_due_timestamp_seconds)\{([^}]*)\} (\S+)$",
    re.MULTILINE,
)


class Outcome(Enum):
    """The outcome of a probe."""

    ANSWERED = auto()
    UNANSWERED = auto()
    PROCESS_DIED = auto()
    FAILED = auto()  # an error of the model
    REFUSED = auto()  # the probe is invalid, or there was no room for it


@dataclass(frozen=True)
class Done:
    """The work of a model so far: answered requests and, as some take long, computed tokens, both
    by its own count: Triton counts a request as successful once the model has taken it. `due`: the
    Unix time at which the current work of all its instances is due; 0.0 without any."""

    answered: float
    tokens: float
    due: float


class Pulse:
    """Probes the models of one server."""

    def __init__(self, endpoint: Endpoint, repositories: Sequence[Path]) -> None:
        self._endpoint = endpoint
        self._repositories = repositories
        self._probes: dict[str, Probe | None] = {}

    def question(self, model: str) -> Probe | None:
        """Returns the model's probe, or None for models of other backends."""
        if model not in self._probes:
            self._probes[model] = None
            try:
                config = self._endpoint.call(f"models/{model}/config")
                if config["backend"] == BACKEND:
                    task = settings_of(config["parameters"]).task
                    entry = repository.entry(self._repositories, model)
                    tensors = stored_probe(entry, task)
                    self._probes[model] = Probe(task, tuple(tensors)) if tensors else None
            except EndpointError:
                del self._probes[model]
                return None
            except (FusewireError, KeyError, OSError):
                return None
        return self._probes[model]

    def ask(self, model: str, question: Probe, timeout_s: float) -> tuple[Outcome, str]:
        """Sends the probe. Returns its outcome and the message of its error."""
        path = f"models/{model}/{question.path}"
        body = {**question.json(), "parameters": {PARAMETER: True}}
        try:
            self._endpoint.call(path, body, timeout_s=timeout_s)
        except EndpointError as error:
            return _outcome(error, question.task in GENERATING), str(error)
        return Outcome.ANSWERED, ""

    def done(self, model: str) -> Done | None:
        """Returns the work of a model so far, or None when the metrics cannot be read."""
        try:
            page = self._endpoint.metrics()
        except (EndpointError, OSError, http.client.HTTPException):
            return None
        answered, tokens, due = 0.0, 0.0, 0.0
        for name, labels, value in _SERIES.findall(page):
            if f'model="{model}"' not in labels.split(","):
                continue
            if name == "tokens_total":
                tokens += float(value)
            elif name != "requests_total":
                due = max(due, float(value))
            elif 'outcome="ok"' in labels:
                answered += float(value)
        return Done(answered, tokens, due)

    def encodes(self, model: str) -> bool:
        """Whether it is a model of fusewire that is not generative."""
        question = self.question(model)
        return question is not None and question.task not in GENERATING

    def hangs(self, model: str, before: Done | None) -> bool:
        """Whether a model that gave no answer has made no other progress since `before`, although
        its current work is overdue."""
        now = self.done(model)
        if before is None or now is None:
            return False
        idle = (now.answered, now.tokens) == (before.answered, before.tokens)
        return idle and now.due < time.time()


def _outcome(error: EndpointError, generates: bool) -> Outcome:
    if error.status == 0:
        return Outcome.UNANSWERED
    if triton_words.process_died(str(error)):
        return Outcome.PROCESS_DIED
    if generates and error.status == 400 and not triton_words.no_room(str(error)):
        return Outcome.FAILED  # the probe itself is valid
    return Outcome.FAILED if error.status == 500 else Outcome.REFUSED
