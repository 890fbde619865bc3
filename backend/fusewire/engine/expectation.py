"""What a request will cost, before its texts are tokenised: learned from those that were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fusewire.engine.request import Request

# English has about four bytes a token: the first guess, as if these had been seen.
_PRIOR_BYTES, _PRIOR_TOKENS = 4096.0, 1024.0
# Share that is kept of the bytes and rows of the requests before the last.
_DECAY = 0.98


class Expected(NamedTuple):
    """What is expected of one request. `bytes` of its texts and `rows` of its images, where their
    tokens teach something; else 0."""

    bytes: int
    rows: int
    tokens: float
    squares: float


class Expectation:
    """Learns tokens per byte of text, or per image. Written by threads that tokenise, one at a
    time, read by any."""

    def __init__(
        self, max_length: int, *, windows: bool = False, image_tokens: float = 0.0
    ) -> None:
        """`windows`: texts longer than `max_length` tokens are read in windows; else they are cut,
        or refused. `image_tokens`: tokens of an image, before one was seen."""
        self._max_length = max_length
        self._windows = windows
        self._bytes, self._text_tokens = _PRIOR_BYTES, _PRIOR_TOKENS
        self._rows, self._row_tokens = (1.0 if image_tokens else 1e-9), image_tokens

    @property
    def tokens_of_byte(self) -> float:
        return self._text_tokens / self._bytes

    @property
    def tokens_of_image(self) -> float:
        return self._row_tokens / self._rows

    def of(self, request: Request) -> Expected:
        """What is expected of a request. A text and its pair are one sequence."""
        lengths: list[int] | None = None
        rows = 0
        for name, array in request.inputs.items():
            if array.dtype == object and name != "image":
                own = [len(text) for text in array.flat if isinstance(text, bytes)]
                both = lengths is not None and len(lengths) == len(own)
                lengths = (
                    [a + b for a, b in zip(lengths, own, strict=True)]
                    if both and lengths is not None
                    else (lengths or []) + own
                )
            elif name == "input_ids" and array.ndim == 2:
                tokens = array.size
                return Expected(0, 0, tokens, float(tokens) * array.shape[1])
            elif name in ("image", "pixel_values"):
                rows += len(array)
        if lengths is None:
            tokens_of_row = self.tokens_of_image
            squares = rows * tokens_of_row * tokens_of_row
            return Expected(0, rows, rows * tokens_of_row, squares)
        rate, most = self.tokens_of_byte, self._max_length
        whole = [length * rate for length in lengths]
        longest = max(whole, default=0.0)
        if longest > most and not self._windows:
            whole = [min(tokens, most) for tokens in whole]
        squares = sum(tokens * min(tokens, most) for tokens in whole)
        size = sum(lengths)
        return Expected(size if longest <= most else 0, 0, sum(whole), squares)

    def learn(self, asked: Sequence[Expected], tokens: Sequence[int]) -> None:
        """Learns from requests of which this was expected and that had these numbers of
        `tokens`."""
        for expected, found in zip(asked, tokens, strict=True):
            if expected.bytes:
                self._bytes = _DECAY * self._bytes + expected.bytes
                self._text_tokens = _DECAY * self._text_tokens + found
            elif expected.rows:
                self._rows = _DECAY * self._rows + expected.rows
                self._row_tokens = _DECAY * self._row_tokens + found
