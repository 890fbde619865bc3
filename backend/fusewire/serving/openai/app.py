"""The door's routes, in front of one Triton server."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from fusewire_client import AsyncClient
from fusewire_client.errors import ClientError
from fusewire_client.transports import AsyncGrpcTransport

from fusewire.serving.openai import answering, errors
from fusewire.serving.openai.chat import ChatForm
from fusewire.serving.openai.completions import CompletionForm
from fusewire.serving.openai.embeddings import embeddings
from fusewire.serving.openai.generation import Generation
from fusewire.serving.openai.requests import (
    MOST_PROMPTS,
    BoundedRequest,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    names_used,
    texts_or_ids,
)
from fusewire.serving.openai.served import EMBED, Served
from fusewire.serving.openai.under_way import UnderWay
from fusewire.tasks.contract import GENERATE

# Of one call for embeddings; a client that leaves ends it at once.
_LONGEST_S = 86400


class _Route(APIRoute):
    """Reads bodies strictly, and says nothing where nobody is left to hear it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_bounded(request: Request) -> Response:
            call = request.state.call = request.app.state.under_way.begin()
            try:
                bounded = BoundedRequest(request.scope, request.receive)
                return await call.unless_ended(lambda: handle(bounded))
            except answering.ClientGone:
                return Response(status_code=499)

        return handle_bounded


class Api:
    """The routes, and what they share: the models, and the ways to them."""

    def __init__(self, models: Mapping[str, Served], address: str) -> None:
        """`address`: host:port of Triton's gRPC."""
        self._models = models
        self._address = address
        self._began = int(time.time())
        self._under_way = UnderWay()
        self._loop: asyncio.AbstractEventLoop | None = None  # while it runs

    def end(self, why: str, model: str | None = None, began_before: float | None = None) -> None:
        """Ends requests under way in an error, from any thread; see UnderWay."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # closed meanwhile, and its requests with it
                loop.call_soon_threadsafe(self._under_way.end, why, model, began_before)

    def app(self) -> FastAPI:
        # Pages of documentation would load scripts from elsewhere.
        app = FastAPI(
            title="fusewire",
            lifespan=self._connected,
            docs_url=None,
            redoc_url=None,
        )
        app.router.route_class = _Route
        app.state.under_way = self._under_way
        app.get("/v1/models")(self._list)
        app.get("/v1/models/{name}")(self._one)
        app.post("/v1/completions")(self._completions)
        app.post("/v1/chat/completions")(self._chat)
        app.post("/v1/embeddings")(self._embeddings)
        errors.install(app)
        return app

    @contextlib.asynccontextmanager
    async def _connected(self, app: FastAPI) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        # Over HTTP an event would cost less, but who leaves before the first one is not noticed.
        self._streams = AsyncGrpcTransport(self._address, False, {}, 0)
        try:
            # Nothing is tried again here: who is refused hears it at once.
            async with AsyncClient(self._address, retries=0, timeout_s=_LONGEST_S) as self._client:
                yield
        finally:
            self._loop = None
            await self._streams.close()

    async def _list(self) -> Response:
        data = [self._described(name) for name in self._models]
        return JSONResponse({"object": "list", "data": data})

    async def _one(self, name: str) -> Response:
        return JSONResponse(self._described(self._there(name).name))

    async def _completions(self, body: CompletionRequest, request: Request) -> Response:
        model = self._model(body.model, GENERATE, request)
        prompts = texts_or_ids("prompt", body.prompt, MOST_PROMPTS)
        return await self._generate(request, body, "prompt", model, prompts, CompletionForm())

    async def _chat(self, body: ChatRequest, request: Request) -> Response:
        model = self._model(body.model, GENERATE, request)
        ids = await asyncio.to_thread(model.conversation, body.plain_messages())
        return await self._generate(request, body, "messages", model, [ids], ChatForm())

    async def _generate(
        self,
        request: Request,
        body: CompletionRequest | ChatRequest,
        prompt: str,
        model: Served,
        prompts: list[str] | list[list[int]],
        form: answering.Form,
    ) -> Response:
        """`prompt`: the field that the prompts came in."""
        parameters = body.parameters(model.draws)
        names = names_used(body, prompt)
        generation = Generation(
            self._streams, model.name, prompts, parameters, names, stream=body.stream
        )
        if not body.stream:
            return await answering.whole(request, model.name, generation, form)
        usage = body.stream_options is not None and body.stream_options.include_usage
        return await answering.streamed(request, model.name, generation, form, usage)

    async def _embeddings(self, body: EmbeddingRequest, request: Request) -> Response:
        model = self._model(body.model, EMBED, request)
        try:
            work = embeddings(self._client, model, body)
            return JSONResponse(await answering.unless_gone(request, work))
        except ClientError as error:
            names = {"text_input": "input", "input_ids": "input"}
            raise errors.of(error, names) from None

    def _model(self, name: str, task: str, request: Request) -> Served:
        """The model that a request is for; 400 where it is of another task."""
        model = self._there(name)
        if task != model.task:
            message = f"model: got {name}, which is for {model.task}, wanted one for {task}"
            raise errors.ApiError(400, f"{message}; choose another", param="model")
        request.state.call.model = name
        return model

    def _there(self, name: str) -> Served:
        """404 for a name that is none."""
        if name not in self._models:
            there = ", ".join(self._models) or "none"
            message = f"model: got {name[:80]!r}, wanted one of {there}; see /v1/models"
            raise errors.ApiError(404, message, param="model", code="model_not_found")
        return self._models[name]

    def _described(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._began, "owned_by": "fusewire"}
