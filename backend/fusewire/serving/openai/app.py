"""The endpoint's routes, in front of one Triton server."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from fusewire_client import AsyncClient
from fusewire_client.errors import ClientError
from fusewire_client.grpc_transports import AsyncGrpcTransport
from pydantic import ValidationError
from starlette.types import ASGIApp

from fusewire import __version__
from fusewire.serving.config import ServerSettings
from fusewire.serving.endpoint import Endpoint
from fusewire.serving.openai import answering, documentation, errors, status
from fusewire.serving.openai.access import HEALTH, Access, ApiKeys
from fusewire.serving.openai.catalog import Catalog
from fusewire.serving.openai.chat import ChatForm
from fusewire.serving.openai.completions import CompletionForm
from fusewire.serving.openai.connections import Connections
from fusewire.serving.openai.echo import Echo
from fusewire.serving.openai.embeddings import EmbeddingRequest, embeddings
from fusewire.serving.openai.generation import Generation
from fusewire.serving.openai.generation_bodies import (
    ChatRequest,
    CompletionRequest,
    GenerationBody,
    StreamOptions,
)
from fusewire.serving.openai.hosts import Hosts
from fusewire.serving.openai.in_flight import InFlight
from fusewire.serving.openai.limits import Limits
from fusewire.serving.openai.loading import Models
from fusewire.serving.openai.ranking import RerankRequest, ScoreRequest, rerank, score
from fusewire.serving.openai.reading import BoundedRequest, BoundedRoute
from fusewire.serving.openai.sender import TENANT_HEADER, sender
from fusewire.serving.openai.served import Generator
from fusewire.serving.openai.tokenization import (
    DetokenizeRequest,
    TokenizeRequest,
    detokenize,
    tokenize,
)
from fusewire.serving.openai.transcriptions import SpeechBody, answer, transcribed, usage
from fusewire.text.work_queue import MOST_WAITING

# Time limit of a call for embeddings or scores without `timeout_seconds`. It may be long: a client
# that disconnects ends its call at once, and the model has its own objective (`slo_ms`).
_LONGEST_S = 86400
_DESCRIPTION = "OpenAI's interface to models on Triton, and the routes of vLLM, Jina and Cohere."


class Api:
    """The routes and their shared state: the models, and the connections to them."""

    def __init__(
        self,
        models: Models,
        names: Sequence[str],
        endpoint: Endpoint,
        settings: ServerSettings,
    ) -> None:
        """`names`: those of all models of the server. `endpoint`: that of Triton. Raises
        ConfigurationError for invalid API keys."""
        self._catalog = Catalog(models)
        self._models = models
        self._names = names
        self._endpoint = endpoint
        self._settings = settings
        self._keys = ApiKeys.of(settings.api_key_file)
        self._hosts = Hosts(settings.host, settings.allowed_hosts)
        self._in_flight = InFlight()

    def end(self, why: str, model: str | None = None, began_before: float | None = None) -> None:
        """Ends requests in flight with an error. See InFlight.end."""
        self._in_flight.end(why, model, began_before)

    def app(self) -> ASGIApp:
        # FastAPI's own documentation pages would load scripts from other hosts.
        app = FastAPI(
            title="fusewire",
            version=__version__,
            description=_DESCRIPTION,
            lifespan=self._connected,
            docs_url=None,
            redoc_url=None,
            responses={"4XX": {"description": "OpenAI's error object."}},
        )
        app.router.route_class = BoundedRoute
        app.state.in_flight = self._in_flight
        app.get("/v1/models")(self.list_models)
        app.get("/v1/models/{name}")(self.one_model)
        app.post("/v1/completions")(self.completions)
        app.post("/v1/chat/completions")(self.chat_completions)
        app.post("/v1/embeddings")(self.embeddings)
        for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
            app.post(path)(self.rerank)
        for path in ("/v1/score", "/score"):
            app.post(path)(self.score)
        form = {"requestBody": {"content": SpeechBody.form(), "required": True}}
        for task in ("transcriptions", "translations"):
            app.post(f"/v1/audio/{task}", openapi_extra=form)(getattr(self, task))
        app.post("/tokenize")(self.tokenize)
        app.post("/detokenize")(self.detokenize)
        app.get(HEALTH)(self.health)
        app.get("/metrics")(self.metrics)
        app.get("/docs")(self.docs)
        errors.install(app)
        return Access(Limits(app), self._keys, self._hosts, self._settings.access_log)

    @contextlib.asynccontextmanager
    async def _connected(self, app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        address = f"{self._endpoint.reachable}:{self._endpoint.grpc_port}"
        # HTTP would cost less per event, but would not notice a client that leaves before the
        # first.
        self._streams = AsyncGrpcTransport(address, False, {}, 0)
        try:
            # No retries here: clients get a refusal at once, and decide themselves. The parts of
            # one call that are in flight are fewer than the long texts that may wait at a model,
            # which would refuse more; a part that was just answered may still count as waiting.
            async with AsyncClient(
                address, retries=0, timeout_s=_LONGEST_S, concurrency=MOST_WAITING - 1
            ) as self._client:
                yield {"connections": Connections()}
        finally:
            await self._streams.close()

    async def list_models(self) -> Response:
        """The available models."""
        return JSONResponse(self._catalog.listed())

    async def one_model(self, name: str) -> Response:
        """One of the available models."""
        return JSONResponse(self._catalog.described(name))

    async def completions(self, body: CompletionRequest, request: Request) -> Response:
        """The text that the model generates after a prompt, or after each of several."""
        model = self._catalog.generator(body.model, request)
        prompts: Sequence[str] | Sequence[list[int]] = body.prompt
        parameters = body.parameters(model.draws)
        if body.truncate_prompt_tokens is not None:
            prompts = await model.shortened(prompts, body, parameters)
        echo = None
        if body.echo:
            echo = await Echo.of(model, prompts, parameters)
            prompts = echo.ids
        form = CompletionForm(echo)
        return await self._generate(request, body, "prompt", model, prompts, parameters, form)

    async def chat_completions(self, body: ChatRequest, request: Request) -> Response:
        """The assistant's answer to messages."""
        model = self._catalog.generator(body.model, request)
        parameters = body.parameters(model.draws)
        ids = await model.conversation(
            body.messages,
            add_generation_prompt=body.add_generation_prompt,
            add_special_tokens=body.add_special_tokens,
            template_kwargs=body.chat_template_kwargs,
        )
        prompts = [ids]
        if body.truncate_prompt_tokens is not None:
            prompts = await model.shortened(prompts, body, parameters)
        return await self._generate(
            request, body, "messages", model, prompts, parameters, ChatForm()
        )

    async def _generate(
        self,
        request: Request,
        body: GenerationBody,
        prompt: str,
        model: Generator,
        prompts: Sequence[str] | Sequence[list[int]],
        parameters: Mapping[str, Any],
        form: answering.Form,
    ) -> Response:
        """`prompt`: the field that has the prompts."""
        names = body.names_used(prompt) | {"tenant": TENANT_HEADER}
        generation = Generation(
            self._streams,
            model.name,
            prompts,
            parameters,
            names,
            stream=body.stream,
            sender=sender(request),
        )
        if not body.stream:
            scores = body.prompt_logprobs is not None
            return await answering.whole(request, model.name, generation, form, scores)
        options = body.stream_options or StreamOptions()
        return await answering.streamed(request, model.name, generation, form, options)

    async def embeddings(self, body: EmbeddingRequest, request: Request) -> Response:
        """Embeddings of texts, or of images."""
        model = self._catalog.embedder(body.model, request)
        options = body.options(sender(request))
        work = embeddings(self._client, model, body, options, self._settings.accept_token_ids)
        names = dict.fromkeys(("text_input", "input_ids", "image"), "input") | body.names_used()
        return await _computed(request, work, names)

    async def rerank(self, body: RerankRequest, request: Request) -> Response:
        """Documents by their relevance to a query, the most relevant first."""
        model = self._catalog.ranker(body.model, request)
        work = rerank(self._client, model, body, body.options(sender(request)))
        names = dict.fromkeys(("text_input", "text_pair"), "documents") | body.names_used()
        return await _computed(request, work, names)

    async def score(self, body: ScoreRequest, request: Request) -> Response:
        """The relevance of the texts of each pair."""
        model = self._catalog.ranker(body.model, request)
        work = score(self._client, model, body, body.options(sender(request)))
        # A text that is paired with each of the others is not the one that makes a pair too long.
        pairs = isinstance(body.text_1, list) and len(body.text_1) > 1
        names = {"text_input": "text_1" if pairs else "text_2", "text_pair": "text_2"}
        names |= body.names_used()
        return await _computed(request, work, names)

    async def transcriptions(self, request: Request) -> Response:
        """The transcription of an audio file."""
        return await self._speech(request, "transcribe")

    async def translations(self, request: Request) -> Response:
        """The translation of an audio file into English."""
        return await self._speech(request, "translate")

    async def _speech(self, request: Request, task: str) -> Response:
        assert isinstance(request, BoundedRequest)
        try:
            body = SpeechBody.of(await request.upload())
        except ValidationError as error:
            raise errors.invalid(error) from None
        model = self._catalog.transcriber(body.model, request)
        parameters = await body.parameters(task, model)
        work = transcribed(self._streams, model, body, parameters, sender(request))
        try:
            outputs = await answering.unless_gone(request, work)
        except ClientError as error:
            raise errors.of(error, body.names_used()) from None
        request.state.call.usage = usage(outputs)
        return answer(outputs, body, task)

    async def tokenize(self, body: TokenizeRequest, request: Request) -> Response:
        """The token ids of a prompt, or of messages."""
        return JSONResponse(await tokenize(self._catalog.any(body.model, request), body))

    async def detokenize(self, body: DetokenizeRequest, request: Request) -> Response:
        """The text of token ids."""
        return JSONResponse(await detokenize(self._catalog.any(body.model, request), body))

    async def health(self, request: Request) -> Response:
        """200 where every model accepts requests, else 503. Needs no API key; where keys are set,
        the models are named only to a request that has one."""
        named = self._keys is None or self._keys.admit(request.headers.get("authorization"))
        return await status.health(self._client, self._names, self._models.left_out, named=named)

    async def metrics(self) -> Response:
        """Triton's metrics and those of the models, in Prometheus' text format."""
        return await status.metrics(self._endpoint)

    async def docs(self, request: Request) -> Response:
        """This page."""
        return documentation.page(request.app.openapi())


async def _computed(
    request: Request, work: Coroutine[Any, Any, answering.Computed], names: Mapping[str, str]
) -> Response:
    """`names`: a model's names -> those in the client's request."""
    try:
        body, tokens = await answering.unless_gone(request, work)
    except ClientError as error:
        raise errors.of(error, names) from None
    request.state.call.usage = {"prompt_tokens": tokens}
    return JSONResponse(body)
