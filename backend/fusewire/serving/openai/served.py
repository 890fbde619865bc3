"""What the endpoint knows of each model: its task, its tokenizer, its chat template, its limits.

Texts of conversations and counts of tokens are made here, from the files the model was loaded from.
Whatever tokenises or renders is slow: call it in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusewire.engine.settings import EngineSettings
from fusewire.errors import ConfigurationError, InvalidInput
from fusewire.models import blueprint_of, read_config
from fusewire.models.config import Config
from fusewire.serving import model_config, repository
from fusewire.serving.config import ModelSettings
from fusewire.serving.openai.errors import ApiError
from fusewire.tasks import generation_defaults
from fusewire.tasks.chat_template import ChatTemplate
from fusewire.tasks.contract import GENERATE, contract
from fusewire.tasks.least_tokens import WORTH_WHILE
from fusewire.tasks.parameters import override
from fusewire.tasks.rerank import score_function
from fusewire.tasks.sentence_files import SentenceFiles
from fusewire.tasks.tokenizer import Tokenizer, TokenizerFault
from fusewire.tasks.written import written_whole

if TYPE_CHECKING:
    from fusewire.serving.openai.generation_bodies import GenerationBody
    from fusewire.serving.server import Server

EMBED, CLASSIFY = "embed", "classify"
# Tokenising takes a few hundred bytes of memory a character, so longer texts are refused: with more
# characters than these, and more for each token that the model reads.
_MANY_CHARACTERS = 1 << 20
_CHARACTERS_PER_TOKEN = 16


@dataclass(frozen=True)
class Served:
    """One model."""

    name: str
    task: str
    tokenizer: Tokenizer | None
    max_length: int  # tokens of a sequence, with special tokens; generated ones included

    def ids(self, field: str, text: str, special_tokens: bool) -> list[int]:
        """Token ids of a text; InvalidInput names `field`."""
        self.check_size(field, text)
        tokenizer = self.required_tokenizer()
        try:
            (encoded,) = tokenizer.encode([text], offsets=False, special_tokens=special_tokens)
        except TokenizerFault as fault:
            raise _unreadable(field, fault) from None
        return list(encoded.ids)

    def check_size(self, field: str, text: str) -> None:
        """InvalidInput for a text that is too long to be tokenised here."""
        most = max(_MANY_CHARACTERS, _CHARACTERS_PER_TOKEN * self.max_length)
        if len(text) > most:
            got = f"{len(text)} characters"
            raise InvalidInput(field, got, f"at most {most}", "shorten or split the text")

    def text(self, field: str, tokens: Sequence[int]) -> str:
        """Of token ids; InvalidInput names `field`."""
        tokenizer = self.required_tokenizer()
        for token in tokens:
            if not 0 <= token < 1 << 32 or tokenizer.backend.id_to_token(token) is None:
                wanted = "ids of the model's tokenizer"
                raise InvalidInput(field, f"id {token}", wanted, "use this model's tokenizer")
        return tokenizer.decode(list(tokens))

    def required_tokenizer(self) -> Tokenizer:
        """InvalidInput where the model has none."""
        if self.tokenizer is None:
            got, wanted = f"{self.name}, which has no tokenizer.json", "a model with one"
            raise InvalidInput("model", got, wanted, "choose another, or tokenize at the client")
        return self.tokenizer


@dataclass(frozen=True)
class Generator(Served):
    """A model that generates."""

    template: ChatTemplate | None = None
    draws: bool | None = None  # what the folder says of `do_sample`

    def conversation(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        add_special_tokens: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The ids of the prompt that the chat template makes of messages. It writes the special
        tokens; a second one at the front would change the answer."""
        if self.template is None:
            raise ApiError(
                400,
                f"model: got {self.name}, whose folder has no chat template, wanted one that "
                "has it; send the prompt to /v1/completions, or start the server with "
                "--chat-template",
                param="model",
                code="chat_template_missing",
            )
        text = self.template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            template_kwargs=template_kwargs,
        )
        return self.ids("messages", text, add_special_tokens)

    def shortened(
        self,
        prompts: Sequence[str] | Sequence[list[int]],
        body: GenerationBody,
        parameters: Mapping[str, Any],
    ) -> list[list[int]]:
        """The last tokens of each prompt, as many as `truncate_prompt_tokens` says."""
        most = body.truncate_prompt_tokens
        if most == -1:
            asked = parameters.get("max_tokens", parameters.get("max_new_tokens"))
            answer = written_whole(asked)
            most = max(self.max_length - (answer if isinstance(answer, int) else 1), 1)
        if not most or most >= self.max_length:
            wanted = f"1..{self.max_length - 1}, or -1 for as many as leave room for the answer"
            raise InvalidInput("truncate_prompt_tokens", most, wanted, "correct it")
        special_tokens = parameters.get("add_special_tokens", True) is not False
        return [self._last_tokens(prompt, most, special_tokens) for prompt in prompts]

    def _last_tokens(self, prompt: str | list[int], most: int, special_tokens: bool) -> list[int]:
        if not isinstance(prompt, str):
            return prompt[-most:]
        self.check_size("prompt", prompt)
        assert self.tokenizer is not None  # models that generate have one
        try:
            return self.tokenizer.last_tokens(prompt, most, special_tokens=special_tokens)
        except TokenizerFault as fault:
            raise _unreadable("prompt", fault) from None


@dataclass(frozen=True)
class Encoder(Served):
    """A model that embeds or classifies."""

    settings: EngineSettings
    files: SentenceFiles  # of an embedder
    width: int  # of an embedding
    labels: int  # of a classifier
    score_function: str  # of a classifier with one label

    def request_settings(self, parameters: Mapping[str, Any]) -> EngineSettings:
        """Of a request with these parameters; InvalidInput."""
        return override(self.settings, parameters, self.task, self.max_length)

    def normalizes(self, settings: EngineSettings) -> bool:
        """Whether embeddings have length 1."""
        return self.files.normalize if settings.normalize is None else settings.normalize

    def count(
        self, texts: Sequence[str] | Sequence[tuple[str, str]], settings: EngineSettings
    ) -> int:
        """Tokens computed for texts or pairs that the model has answered."""
        if self.tokenizer is None:
            return 0
        limit = settings.max_length or self.max_length
        prompt = settings.prompt
        if prompt is None:
            prompt = self.files.prompt(settings.prompt_name)
        whole: list[str | tuple[str, str]] = []
        for one in texts:
            if not self._fills(limit, one):
                whole.append(prompt + one if isinstance(one, str) else one)
        encoded = self.tokenizer.encode(whole, offsets=False)
        filled = limit * (len(texts) - len(whole))
        return filled + sum(min(len(each), limit) for each in encoded)

    def _fills(self, limit: int, one: str | tuple[str, str]) -> bool:
        """Whether a text or pair is so long that this shows before it is tokenised."""
        assert self.tokenizer is not None
        texts = (one,) if isinstance(one, str) else one
        if sum(map(len, texts)) <= WORTH_WHILE:
            return False
        least = self.tokenizer.added_tokens(pair=len(texts) > 1)
        return least + sum(self.tokenizer.least_tokens.of(text, limit) for text in texts) >= limit


def served_by(server: Server) -> dict[str, Served]:
    """The server's models that generate, embed or classify, by name; CheckpointError where a chat
    template is none, or is not safe."""
    found: dict[str, Served] = {}
    for name in server.models:
        entry = server.entry(name)
        config = model_config.read(entry / repository.CONFIG)
        if config.backend != model_config.BACKEND:
            continue
        settings = model_config.check(config, name)
        folder = repository.versions(entry)[-1]
        if settings.task == GENERATE:
            _check_outputs(config, name)
            file = server.settings.chat_template
            found[name] = _generator(name, folder, settings.max_length, file)
        elif settings.task in (EMBED, CLASSIFY):
            assert isinstance(settings, ModelSettings)
            found[name] = _encoder(name, settings.task, folder, settings.engine())
    return found


def _unreadable(field: str, fault: TokenizerFault) -> InvalidInput:
    got = f"a text that the tokenizer cannot read ({fault})"
    return InvalidInput(field, got, "text", "send valid Unicode")


def _generator(name: str, folder: Path, max_length: int | None, file: Path | None) -> Generator:
    longest = max_length or blueprint_of(read_config(folder), GENERATE).max_length
    draws = generation_defaults.generation_config(folder)[0].get("do_sample")
    template = ChatTemplate.load(folder, file)
    return Generator(name, GENERATE, Tokenizer.load(folder), longest, template, draws)


def _encoder(name: str, task: str, folder: Path, settings: EngineSettings) -> Encoder:
    tokenizer, config = Tokenizer.load(folder), read_config(folder)
    blueprint = blueprint_of(config, task)
    files = SentenceFiles.read(folder) if task == EMBED else SentenceFiles()
    if files.lowercase and tokenizer is not None:
        tokenizer.lowercase()
    named = files.max_length or (tokenizer.max_length if tokenizer is not None else None)
    longest = settings.max_length or min(named or blueprint.max_length, blueprint.max_length)
    labels = len(Config(config).labels())
    function = score_function(config, labels) if task == CLASSIFY and labels == 1 else ""
    width = blueprint.hidden_size
    return Encoder(name, task, tokenizer, longest, settings, files, width, labels, function)


def _check_outputs(config: Any, name: str) -> None:
    """An entry written by an earlier version has fewer outputs than are asked for here."""
    there = {output.name for output in config.output}
    missing = [output.name for output in contract(GENERATE)[1] if output.name not in there]
    if missing:
        raise ConfigurationError(
            f"{name}/{repository.CONFIG}: got no output {missing[0]}, wanted the outputs of this "
            "version of fusewire; import the model again with --replace"
        )
