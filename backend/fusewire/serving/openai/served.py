"""What the door knows of each model: its task, its tokenizer, its chat template.

Texts of conversations and counts of tokens are made here, from the files the model was loaded from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusewire.errors import InvalidInput
from fusewire.serving import model_config, repository
from fusewire.serving.openai.errors import ApiError
from fusewire.tasks import generation_defaults
from fusewire.tasks.chat_template import ChatTemplate
from fusewire.tasks.contract import GENERATE
from fusewire.tasks.sentence_files import SentenceFiles
from fusewire.tasks.tokenizer import Tokenizer, TokenizerFault

if TYPE_CHECKING:
    from fusewire.serving.server import Server

EMBED = "embed"


@dataclass(frozen=True)
class Served:
    """One model."""

    name: str
    task: str
    tokenizer: Tokenizer | None
    template: ChatTemplate | None = None
    draws: bool | None = None  # what the folder says of `do_sample`
    prefix: str = ""  # that an embedder puts before each text

    def conversation(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The ids of the prompt that the folder's template makes of messages. Slow: in a thread."""
        if self.template is None:
            raise ApiError(
                400,
                f"model: got {self.name}, whose folder has no chat template, wanted one with; "
                "send the prompt to /v1/completions",
                param="model",
                code="chat_template_missing",
            )
        text = self.template.render(messages)
        assert self.tokenizer is not None  # models that generate have one
        try:
            # The template has written the special tokens; a second one at the front would change
            # the answer.
            (encoded,) = self.tokenizer.encode([text], offsets=False, special_tokens=False)
        except TokenizerFault as fault:
            got = f"a text that the tokenizer cannot read ({fault})"
            raise InvalidInput("messages", got, "text", "send valid Unicode") from None
        return list(encoded.ids)

    def count(self, texts: list[str]) -> int:
        """Tokens of texts to embed. Slow: in a thread."""
        if self.tokenizer is None:
            return 0
        try:
            encoded = self.tokenizer.encode([self.prefix + text for text in texts], offsets=False)
        except TokenizerFault:
            return 0  # the model says what is wrong with them
        return sum(len(each) for each in encoded)


def served_by(server: Server) -> dict[str, Served]:
    """The server's models that generate or embed, by name; CheckpointError where a chat template is
    none, or is not safe."""
    found = {}
    for name in server.models:
        entry = server.entry(name)
        config = model_config.read(entry / repository.CONFIG)
        if config.backend == model_config.BACKEND:
            task = model_config.check(config, name).task
            if task in (GENERATE, EMBED):
                found[name] = _read(name, task, repository.versions(entry)[-1])
    return found


def _read(name: str, task: str, folder: Path) -> Served:
    tokenizer = Tokenizer.load(folder)
    if task == GENERATE:
        config, _ = generation_defaults.generation_config(folder)
        return Served(name, task, tokenizer, ChatTemplate.load(folder), config.get("do_sample"))
    files = SentenceFiles.read(folder)
    if files.lowercase and tokenizer is not None:
        tokenizer.lowercase()
    return Served(name, task, tokenizer, prefix=files.prompt(None))
