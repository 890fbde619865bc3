"""Publishes an instance's admission block in a file of shared memory, where the server's front
finds it.

The supervisor defines the prefix of its path, and removes files that are left over. A new process
of the same instance replaces the file.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
import platform
from contextlib import suppress
from pathlib import Path

from fusewire.engine.admission_block import (
    BYTES,
    GENERATION_BYTES,
    IDS,
    IMAGES,
    MOST_NAME_BYTES,
    ONLY_PAIRS,
    PAIRS,
    SOURCES,
    TEXTS,
    WINDOWS,
    AdmissionBlock,
    GenerationBlock,
    GenerationLimits,
    Limits,
)
from fusewire.engine.encoder import EncoderEngine
from fusewire.engine.generation import GenerationEngine
from fusewire.tasks.inputs import MOST_CHARACTERS
from fusewire.text.work_queue import LONG_CHARACTERS

_log = logging.getLogger(__name__)

PREFIX = "FUSEWIRE_ADMISSION_BLOCKS"  # the environment variable


class PublishedBlock:
    """The block of an instance of a model, until it is closed. Before there is a block, and without
    one, its file is empty. Then the front knows that the model has a version that it has no block
    for, which may be the latest."""

    def __init__(self, model: str, version: int, instance: str, instances: int) -> None:
        """Must be called before the version is served. `instances`: the number of instances of the
        model."""
        self._file = -1
        self._about = model, version, instances
        prefix = os.environ.get(PREFIX, "")
        # A sequence lock in Python needs stores that become visible in program order.
        if not prefix or platform.machine() != "x86_64" or len(model.encode()) > MOST_NAME_BYTES:
            return
        # The front treats files with a common prefix as those of one model.
        self._path = Path(f"{prefix}{_hash(model)}{_hash(f'{instance} {version}')}")
        self._put(0)

    def of(self, engine: EncoderEngine, max_batch_size: int) -> AdmissionBlock | None:
        """Returns the block for requests to this engine. None: the front refuses nothing."""
        rules, height, width = engine.input_rules, *engine.image_size
        if self._file < 0 or not self._put(BYTES):
            return None
        takes = IMAGES if rules is None else IDS
        if rules is not None and rules.has_tokenizer:
            takes += TEXTS
            takes += PAIRS if rules.pairs != "refused" else 0
            takes += ONLY_PAIRS if rules.pairs == "required" else 0
        takes += WINDOWS if engine.reads_windows else 0
        limits = Limits(max_batch_size, takes, engine.max_length, MOST_CHARACTERS, height, width)
        return AdmissionBlock(self._memory(BYTES), *self._about, limits)

    def of_generation(self, engine: GenerationEngine) -> GenerationBlock | None:
        """As `of`. None also where requests produce several sequences by default."""
        defaults, of_model = engine.parameters(), engine.limits
        several = defaults.searches or defaults.sequences > 1
        if self._file < 0 or several or not self._put(GENERATION_BYTES):
            return None
        limits = GenerationLimits(
            rows=1,
            takes=TEXTS + IDS + (SOURCES if of_model.source is not None else 0),
            max_length=of_model.max_length,
            max_characters=LONG_CHARACTERS,
            vocabulary=of_model.prompt_vocab_size,
            max_request_tokens=of_model.max_request_tokens,
        )
        return GenerationBlock(self._memory(GENERATION_BYTES), *self._about, limits)

    def _memory(self, size: int) -> memoryview:
        return memoryview(mmap.mmap(self._file, size))

    def _put(self, size: int) -> bool:
        """Replaces the file by one of `size` bytes. Returns False where that is not possible, such
        as without free space."""
        unseen, file = self._path.with_name(f"{self._path.name}.new"), -1
        try:
            unseen.unlink(missing_ok=True)
            file = os.open(unseen, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            if size:
                os.posix_fallocate(file, 0, size)  # without space a write would raise SIGBUS
            unseen.rename(self._path)
        except OSError as error:
            _log.warning("%s: no block for early refusals: %s", self._about[0], error.strerror)
            if file >= 0:
                os.close(file)
            with suppress(OSError):  # it may belong to another user
                unseen.unlink(missing_ok=True)
            return False
        self._give_back()
        self._file = file
        return True

    def close(self) -> None:
        """Removes the file, unless another process has replaced it."""
        if self._file < 0:
            return
        try:
            if os.stat(self._path).st_ino == os.fstat(self._file).st_ino:
                self._path.unlink()
        except FileNotFoundError:
            pass
        self._give_back()

    def _give_back(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]
