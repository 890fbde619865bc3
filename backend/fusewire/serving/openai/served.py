"""The endpoint's record of each model: its task, its tokenizer, its chat template, its limits.

The model's text workers render prompts of conversations and count tokens, with the files that the
model was loaded from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fusewire.errors import InvalidInput
from fusewire.generation.spelling import DEFAULT_LENGTH
from fusewire.serving.openai.bodies import entry
from fusewire.serving.openai.errors import ApiError
from fusewire.settings import EngineSettings
from fusewire.tasks.parameters import override
from fusewire.tasks.sentence_files import SentenceFiles
from fusewire.text.tokenizer_files import WANTED
from fusewire.text.written import written_whole
from fusewire.text_workers.workers import TextWorkers

if TYPE_CHECKING:
    from fusewire.serving.openai.generation_bodies import GenerationBody

EMBED, CLASSIFY = "embed", "classify"
# Maximum per call of a worker, so that other requests run in between.
_COUNTED_CHARACTERS = 1 << 16


@dataclass(frozen=True)
class Served:
    """One model. Methods that tokenise raise InvalidInput with `field`, and Unavailable."""

    name: str
    task: str
    workers: TextWorkers
    max_length: int  # tokens of a sequence, including special and generated tokens

    async def ids(self, field: str, text: str, special_tokens: bool) -> list[int]:
        """Returns the token ids of a text."""
        ids: list[int] = await self.compute("ids", field, text=text, special_tokens=special_tokens)
        return ids

    async def text(self, field: str, tokens: Sequence[int]) -> str:
        """Returns the text of token ids."""
        text: str = await self.compute("text", field, tokens=tokens)
        return text

    async def compute(self, method: str, field: str, **arguments: Any) -> Any:
        """Returns the result of TextProcessor's method. Raises InvalidInput where the model has no
        tokenizer."""
        if not self.workers.description()["has_tokenizer"]:
            got, wanted = f"{self.name}, which has no tokenizer", f"a model with one ({WANTED})"
            raise InvalidInput("model", got, wanted, "choose another, or tokenize at the client")
        return await asyncio.wrap_future(self.workers.submit(method, field, **arguments))

    async def counted(
        self,
        field: str,
        texts: Sequence[str] | Sequence[tuple[str, str]],
        limit: int,
        prompt: str = "",
    ) -> int:
        """Returns the number of tokens of texts or pairs, each counted up to `limit`; 0 for a model
        without a tokenizer."""
        if not self.workers.description()["has_tokenizer"]:
            return 0
        counts = [
            await self.compute("count", field, texts=part, prompt=prompt, limit=limit)
            for part in _parts(texts)
        ]
        return sum(counts)


@dataclass(frozen=True)
class Generator(Served):
    """A generative model."""

    draws: bool | None = None  # the folder's `do_sample`
    reads_sources: bool = False  # encoder-decoder model: texts do not continue the prompt

    async def conversation(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        add_special_tokens: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Returns the ids of the prompt that the chat template renders from messages. The template
        writes the special tokens itself; a second one at the front would change the answer."""
        if not self.workers.description()["has_template"]:
            raise ApiError(
                400,
                f"model: got {self.name}, whose folder has no chat template, wanted one that "
                "has it; send the prompt to /v1/completions, or start the server with "
                "--chat-template",
                param="model",
                code="chat_template_missing",
            )
        ids: list[int] = await self.compute(
            "conversation",
            "messages",
            messages=messages,
            add_generation_prompt=add_generation_prompt,
            add_special_tokens=add_special_tokens,
            template_kwargs=template_kwargs,
        )
        return ids

    async def shortened(
        self,
        prompts: Sequence[str] | Sequence[list[int]],
        body: GenerationBody,
        parameters: Mapping[str, Any],
    ) -> list[list[int]]:
        """Returns the last `truncate_prompt_tokens` tokens of each prompt."""
        most = body.truncate_prompt_tokens
        if most == -1:
            names = ("max_tokens", "max_new_tokens", DEFAULT_LENGTH)
            asked = next((parameters[name] for name in names if name in parameters), None)
            answer = written_whole(asked)
            most = max(self.max_length - (answer if isinstance(answer, int) else 1), 1)
        if not most or most >= self.max_length:
            wanted = f"1..{self.max_length - 1}, or -1 for as many as leave room for the answer"
            raise InvalidInput("truncate_prompt_tokens", most, wanted, "correct it")
        special_tokens = parameters.get("add_special_tokens", True) is not False
        places = [entry("prompt", index, prompts) for index in range(len(prompts))]
        return [
            await self._last_tokens(prompts[index], place, most, special_tokens)
            for index, place in enumerate(places)
        ]

    async def _last_tokens(
        self, prompt: str | list[int], field: str, most: int, special_tokens: bool
    ) -> list[int]:
        if not isinstance(prompt, str):
            return prompt[-most:]
        ids: list[int] = await self.compute(
            "last_tokens", field, text=prompt, most=most, special_tokens=special_tokens
        )
        return ids


@dataclass(frozen=True)
class Transcriber(Served):
    """A speech model."""

    multilingual: bool = True  # False: it has neither languages nor tasks


@dataclass(frozen=True)
class Encoder(Served):
    """A model that embeds or classifies."""

    settings: EngineSettings
    files: SentenceFiles  # for an embedder
    width: int  # elements of an embedding
    labels: int  # number of labels of a classifier
    score_function: str  # for a classifier with one label
    query_prompt: str = ""  # for the same: prefix of the first text of each pair

    def request_settings(self, parameters: Mapping[str, Any]) -> EngineSettings:
        """Returns the settings of a request with these parameters. Raises InvalidInput."""
        return override(self.settings, parameters, self.task, self.max_length)

    def normalizes(self, settings: EngineSettings) -> bool:
        """Whether embeddings have length 1."""
        return self.files.normalize if settings.normalize is None else settings.normalize

    async def count(
        self, field: str, texts: Sequence[str] | Sequence[tuple[str, str]], settings: EngineSettings
    ) -> int:
        """Returns the number of tokens that the model has computed for texts or pairs."""
        prompt = settings.prompt
        if prompt is None:
            prompt = self.files.prompt(settings.prompt_name)
        return await self.counted(field, texts, settings.max_length or self.max_length, prompt)


@dataclass(frozen=True)
class ImageEncoder(Served):
    """A model that embeds images, and possibly texts."""

    settings: EngineSettings

    def request_settings(self, parameters: Mapping[str, Any]) -> EngineSettings:
        """Returns the settings of a request with these parameters. Raises InvalidInput."""
        return override(self.settings, parameters, self.task, self.max_length, images=True)

    def normalizes(self, settings: EngineSettings) -> bool:
        """Whether embeddings have length 1."""
        return settings.normalize is True


def _parts(
    texts: Sequence[str] | Sequence[tuple[str, str]],
) -> Iterator[list[str | tuple[str, str]]]:
    """Yields consecutive texts with at most _COUNTED_CHARACTERS in total, or one longer text."""
    part: list[str | tuple[str, str]] = []
    size = 0
    for one in texts:
        characters = len(one) if isinstance(one, str) else sum(map(len, one))
        if part and size + characters > _COUNTED_CHARACTERS:
            yield part
            part, size = [], 0
        part.append(one)
        size += characters
    if part:
        yield part
