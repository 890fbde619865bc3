"""Where the server's front finds an instance's admission block: a file of shared memory.

The supervisor says how its path begins, and removes what is left there. A new process of the same
instance takes the file's place.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
import platform
from pathlib import Path

from fusewire.engine.admission_block import (
    BYTES,
    IDS,
    MOST_NAME_BYTES,
    ONLY_PAIRS,
    PAIRS,
    TEXTS,
    WINDOWS,
    AdmissionBlock,
    Limits,
)
from fusewire.engine.encoder import EncoderEngine
from fusewire.tasks.inputs import MOST_CHARACTERS

_log = logging.getLogger(__name__)

PREFIX = "FUSEWIRE_ADMISSION_BLOCKS"  # the environment variable


class PublishedBlock:
    """The block of an instance of a model, until closed; `block` is None where there is no front,
    or no room."""

    def __init__(self, model: str, version: int, instance: str, instances: int) -> None:
        """`instances`: of the model."""
        self._file = -1
        self._about = model, version, instances
        prefix = os.environ.get(PREFIX, "")
        # A sequence lock in Python needs stores that are seen in their order.
        if not prefix or platform.machine() != "x86_64" or len(model.encode()) > MOST_NAME_BYTES:
            return
        name = hashlib.sha256(f"{instance} {version}".encode()).hexdigest()[:24]
        self._path = Path(f"{prefix}{name}")
        unseen = Path(f"{prefix}{name}.new")
        try:
            unseen.unlink(missing_ok=True)
            self._file = os.open(unseen, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            os.posix_fallocate(self._file, 0, BYTES)  # or a write would end the process
            unseen.rename(self._path)
        except OSError as error:
            _log.warning("%s: no block for early refusals: %s", model, error.strerror)
            unseen.unlink(missing_ok=True)
            self._give_back()

    def of(self, engine: EncoderEngine, max_batch_size: int) -> AdmissionBlock | None:
        """The block, for requests to this engine; None: nothing is refused in front."""
        rules = engine.input_rules
        if self._file < 0 or rules is None:
            return None
        takes = IDS
        if rules.has_tokenizer:
            takes += TEXTS
            takes += PAIRS if rules.pairs != "refused" else 0
            takes += ONLY_PAIRS if rules.pairs == "required" else 0
        takes += WINDOWS if engine.reads_windows else 0
        limits = Limits(max_batch_size, takes, engine.max_length, MOST_CHARACTERS)
        return AdmissionBlock(memoryview(mmap.mmap(self._file, BYTES)), *self._about, limits)

    def close(self) -> None:
        """Removes the file, unless another process has taken its place."""
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
