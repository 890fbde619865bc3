"""The files beside a folder's weights, read as serving reads them, to refuse them beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusewire.tasks.chat_template import ChatTemplate
from fusewire.tasks.classify import default_function
from fusewire.tasks.contract import GENERATE
from fusewire.tasks.detokenizer import Detokenizer
from fusewire.tasks.generation_defaults import generation_defaults
from fusewire.tasks.sentence_files import SentenceFiles
from fusewire.tasks.tokenizer import Tokenizer


def check_files(folder: Path, config: Mapping[str, Any], task: str) -> Tokenizer | None:
    """The folder's tokenizer, if it has one. CheckpointError where an engine for the task, or the
    chat endpoint, would refuse the tokenizer, the chat template, the generation defaults or the
    sentence-transformers modules. `config`: config.json."""
    if task == GENERATE:
        tokenizer = Tokenizer.required(folder)
        Detokenizer(tokenizer)
        generation_defaults(folder)
        ChatTemplate.load(folder)
        return tokenizer
    if task == "embed":
        SentenceFiles.read(folder)
    elif task == "classify":
        default_function(config.get("problem_type"), labels=1)
    return Tokenizer.load(folder)
