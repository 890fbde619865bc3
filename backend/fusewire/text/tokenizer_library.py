"""The Rust library `tokenizers`: its threads, its errors, and copies of its objects."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import tokenizers

from fusewire.errors import CheckpointError


def limit_tokenizer_threads(threads: int) -> None:
    """Limits the thread pool of the tokenizers (one per process, created at its first use) to
    `threads`; 0 leaves one per core. The pool is idle while kernels compute, so the two do not
    oversubscribe the cores.

    TOKENIZERS_PARALLELISM stays as the operator set it: without it, the library disables its pool
    in a forked child, where it would deadlock.
    """
    if threads > 0:
        os.environ.setdefault("RAYON_NUM_THREADS", str(threads))


class TokenizerFault(Exception):
    """The Rust library failed, because of a damaged tokenizer.json or a text that it has no token
    for."""


@contextmanager
def tokenizer_faults() -> Iterator[None]:
    """Converts the library's errors, and its panics, which are not subclasses of Exception, to
    TokenizerFault. A CheckpointError, which our own code raises for the contents of a folder's
    files, passes unchanged."""
    try:
        yield
    except CheckpointError:
        raise
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            # To the library, text that UTF-8 cannot encode is of the wrong type.
            lone = isinstance(error, TypeError) and "TextEncodeInput" in str(error)
            raise TokenizerFault("a lone surrogate" if lone else str(error)[:120]) from None
        raise


def with_same_parts(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Returns a copy that shares the model, which never changes."""
    twin = tokenizers.Tokenizer(backend.model)
    twin.normalizer = backend.normalizer
    twin.pre_tokenizer = backend.pre_tokenizer
    twin.decoder = backend.decoder
    twin.post_processor = backend.post_processor
    added = backend.get_added_tokens_decoder()
    twin.add_tokens([added[index] for index in sorted(added)])
    return twin
