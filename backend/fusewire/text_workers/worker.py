"""The program of a worker: loads a folder's tokenizer and chat template, then answers calls."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusewire.errors import FusewireError
from fusewire.text.text_processor import TextProcessor
from fusewire.text.tokenizer_files import tokenizer_file
from fusewire.worker_processes.program import Loaded, limit_memory, serve

METHODS = ("conversation", "count", "echo", "ids", "last_tokens", "pieces", "text")

# Memory that a call may take in addition to the loaded worker's: for a template, and per character
# of a text that it tokenises (measured: 160 to 230 bytes).
CALL_BYTES = 1 << 30
CALL_BYTES_PER_CHARACTER = 512
# Memory for loading: for a template, and per byte of a tokenizer's file.
LOAD_BYTES = 1 << 30
LOAD_BYTES_PER_BYTE = 32


def main(owner: int) -> None:
    """`owner`: the process id of the parent."""
    serve(owner, _load)


def _load(configuration: Mapping[str, Any]) -> Loaded:
    folder = Path(configuration["folder"])
    name = tokenizer_file(folder)
    size = (folder / name).stat().st_size if name else 0
    limit_memory(LOAD_BYTES + LOAD_BYTES_PER_BYTE * size)
    file = configuration["chat_template"]
    processor = TextProcessor.load(
        folder,
        None if file is None else Path(file),
        lowercase=configuration["lowercase"],
        max_length=configuration["max_length"],
    )
    gc.collect()
    gc.freeze()

    def call(message: Mapping[str, Any]) -> tuple[Any, None]:
        method = message["method"]
        if method not in METHODS:
            raise FusewireError(f"method: got {method!r}, wanted one of {', '.join(METHODS)}")
        return getattr(processor, method)(message["field"], **message["arguments"]), None

    call_bytes = max(CALL_BYTES, CALL_BYTES_PER_CHARACTER * processor.most_characters)
    return Loaded(processor.description(), call, call_bytes)
