"""The models of the endpoint, found by name and by what a request needs."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import Request

from fusewire.serving.openai.errors import ApiError
from fusewire.serving.openai.loading import Models
from fusewire.serving.openai.served import (
    CLASSIFY,
    EMBED,
    Encoder,
    Generator,
    ImageEncoder,
    Served,
    Transcriber,
)
from fusewire.tasks.contract import GENERATE, TRANSCRIBE

Kind = TypeVar("Kind", bound=Served)


class Catalog:
    """Finds the model of a request, and stores its name for the request's log line."""

    def __init__(self, models: Models) -> None:
        self._models = models.served
        self._left_out = models.left_out
        self._began = int(time.time())

    def listed(self) -> dict[str, Any]:
        """Returns the body of /v1/models."""
        return {"object": "list", "data": [self.described(name) for name in self._models]}

    def described(self, name: str) -> dict[str, Any]:
        """Returns the entry of one model in /v1/models. Raises ApiError 404 for an unknown name."""
        model = self._named(name)
        return {
            "id": model.name,
            "object": "model",
            "created": self._began,
            "owned_by": "fusewire",
            "max_model_len": model.max_length,
        }

    def generator(self, name: str, request: Request) -> Generator:
        """Returns a generative model."""
        return self._found(name, request, Generator, GENERATE)

    def transcriber(self, name: str, request: Request) -> Transcriber:
        """Returns a speech model."""
        return self._found(name, request, Transcriber, TRANSCRIBE)

    def embedder(self, name: str, request: Request) -> Encoder | ImageEncoder:
        """Returns a model that embeds texts or images."""
        if isinstance(self._named(name), ImageEncoder):
            return self._found(name, request, ImageEncoder, EMBED)
        return self._found(name, request, Encoder, EMBED)

    def ranker(self, name: str | None, request: Request) -> Encoder:
        """Returns a classifier with one label; without a name the only one."""

        def ranks(model: Served) -> bool:
            return isinstance(model, Encoder) and model.task == CLASSIFY and model.labels == 1

        model = self._found(name or self._only(ranks, "rank"), request, Encoder, CLASSIFY)
        if model.labels != 1:
            raise ApiError(
                400,
                f"model: got {model.name}, which has {model.labels} labels, wanted a classifier "
                "with one, as rerankers (cross-encoders) have; choose another",
                param="model",
            )
        return model

    def any(self, name: str | None, request: Request) -> Served:
        """Returns the model with the name, of any task; without a name the only one."""
        return self._found(name or self._only(lambda model: True, "be asked"), request, Served)

    def _found(
        self, name: str, request: Request, kind: type[Kind], task: str | None = None
    ) -> Kind:
        model = self._named(name)
        if task not in (None, model.task) or not isinstance(model, kind):
            message = f"model: got {name}, which is for {model.task}, wanted one for {task}"
            raise ApiError(400, f"{message}; choose another", param="model")
        request.state.call.model = name
        return model

    def _named(self, name: str) -> Served:
        if name in self._left_out:
            raise ApiError(
                503,
                f"model: got {name}, whose tokenizer or chat template cannot be loaded at the "
                "moment, wanted another; try again later",
                param="model",
            )
        if name not in self._models:
            close = difflib.get_close_matches(name[:80], self._models, 1)
            there = ", ".join(self._models) or "none"
            remedy = f"did you mean {close[0]}?" if close else "see /v1/models"
            message = f"model: got {name[:80]!r}, wanted one of {there}; {remedy}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return self._models[name]

    def _only(self, fits: Callable[[Served], bool], verb: str) -> str:
        """Returns the name of the only model that fits."""
        names = [name for name, model in self._models.items() if fits(model)]
        if len(names) != 1:
            there = ", ".join(names) or "none"
            message = f"model: not set, wanted one of those that can {verb} ({there}); name it"
            raise ApiError(400, message, param="model")
        return names[0]
