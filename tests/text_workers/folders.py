"""Folders with a byte-level tokenizer, and malicious templates and tokenizers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from fusewire.worker_processes.process import WorkerProcess
from tokenizers import Regex, pre_tokenizers

from tests.engine.generating import byte_tokenizer

SLOW_WORDS = ("x" * 20 + " ") * 3000
# A template that does harm when the last message requests it, otherwise returns its content.
HARM = "{{% if messages[-1].content == 'harm' %}}{}{{% endif %}}{{{{ messages[-1].content }}}}"


def give_harm_a_second(
    patch: pytest.MonkeyPatch, *words: str, begins: Callable[[], object] = lambda: None
) -> None:
    """Gives a worker's calls that contain one of the words ("harm") a deadline of one second after
    `begins` returns. All others have the product's deadline, however busy the machine is."""
    call = WorkerProcess.call
    marks = [word.encode() for word in words or ("harm",)]

    def hasty(process: WorkerProcess, message: bytes, timeout_s: float) -> Any:
        if any(mark in message for mark in marks):
            begins()
            timeout_s = 1.0
        return call(process, message, timeout_s)

    patch.setattr(WorkerProcess, "call", hasty)


def text_folder(folder: Path, template: str | None = "{{ messages[-1].content }}") -> Path:
    folder.mkdir(exist_ok=True)
    byte_tokenizer(folder)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def backtracking(folder: Path) -> None:
    """Replaces the folder's tokenizer by one that takes exponential time for words of many x: a
    tenth of a second for each of SLOW_WORDS; for longer ones it gives up."""
    path = str(folder / "tokenizer.json")
    backend = tokenizers.Tokenizer.from_file(path)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("(x+x+)+y"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.save(path)


def grown(start: str, step: str, use: str = "") -> str:
    """Returns a template that applies `step` to x sixty times."""
    loop = f"{{% for i in range(60) %}}{{% set n.x = {step} %}}{{% endfor %}}"
    return f"{{% set n = namespace(x={start}) %}}{loop}{use}"


STRIP = "{{ ('a' * 3000000).strip('b' * 3000000 ~ 'a') }}"
SUM = "{{ ([[]] * 200000) | sum(start=[1] * 200000) }}"
DOUBLED = grown("'ab'", "n.x ~ n.x")
MULTIPLIED = "{{ 'a' * 10 ** 10 }}"
