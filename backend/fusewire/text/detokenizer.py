"""Converts generated ids to text incrementally, with the same result as decoding all of them at
once.

The pieces of a sequence concatenate to the decoded text of prompt and answer together, without the
prompt's text, and each token costs a constant amount of work. The method depends on the tokenizer's
decoder:

- ByteLevel (GPT-2, Llama 3, Qwen) joins bytes, so a streaming UTF-8 decoder is exact. It holds back
  the first bytes of an incomplete character, and emits U+FFFD for bytes that cannot become one
  (ByT5: nothing).
- Every other decoder here decodes tokens one by one, except for the first of a text. So the text of
  a token is what it adds after one or two tokens before it.
- ByteFallback (Llama 2, Gemma) decodes neighbouring byte tokens (<0x0A>) as a whole: one invalid
  byte makes all of them U+FFFD. They are held back until another token ends the run.
- Pieces of Marian and M2M-100 are joined one by one (fusewire.text.piece_text). White space is held
  back until the next token, because a text does not end in white space.

(The library's own DecodeStream never emits an incomplete character at the end of a text, and
decodes a run of invalid bytes again with each token that follows.)
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from typing import Any, Protocol

from fusewire.errors import CheckpointError
from fusewire.text.byte_level import bytes_of
from fusewire.text.byte_pieces import BYTE_TOKEN, decoder_steps, joins_bytes
from fusewire.text.loose_spaces import TighteningStream
from fusewire.text.piece_text import Joining
from fusewire.text.tokenizer import Tokenizer
from fusewire.weights.formats import TOKENIZER as FILE

# Number of last tokens of a prompt that are searched for text, the context of the answer.
_PROMPT_TOKENS = 16


class Detokenizer:
    """Converts the ids of a tokenizer to text. Raises CheckpointError where its decoder cannot be
    streamed exactly."""

    def __init__(self, tokenizer: Tokenizer, also_special: Collection[int] = ()) -> None:
        """`also_special`: ids to skip like special tokens, although they are not special in the
        tokenizer (Whisper's timestamps)."""
        self._tokenizer = tokenizer
        self._special = tokenizer.special_ids.union(also_special)
        steps = [] if tokenizer.joining else decoder_steps(tokenizer.backend.decoder)
        self._joins_bytes = joins_bytes(steps)
        self._has_byte_tokens = any(step["type"] == "ByteFallback" for step in steps)
        self._bytes = cache(bytes_of)  # computed once per token of the vocabulary
        self._spelling = cache(tokenizer.spelling)
        if not self._joins_bytes:
            _check(steps)

    def start(self, prompt: Sequence[int] = (), *, skip_special_tokens: bool = True) -> TextStream:
        """Returns the text stream of one sequence after the ids of `prompt`, which determine
        whether it begins with a space."""
        skipped = self._special if skip_special_tokens else frozenset()

        def piece(token: int) -> str | None:
            """Returns the token's string in the vocabulary, or None for a token that decoding
            skips."""
            return None if token in skipped else self._spelling(token)

        if (joining := self._tokenizer.joining) is not None:
            pieces = _Pieces(joining, (spelled for token in prompt if (spelled := piece(token))))
            return TextStream(piece, pieces, self._tokenizer.cleans_spaces)
        if self._joins_bytes:
            source = _Bytes(self._bytes, self._tokenizer.bad_bytes)
            return TextStream(piece, source, self._tokenizer.cleans_spaces)
        anchor: list[int] = []
        for token in reversed(prompt):
            spelled = piece(token)
            # A run of byte tokens ends with the prompt: the answer begins a new run.
            if spelled is None or (not anchor and self._is_byte(spelled)):
                continue
            anchor.insert(0, token)
            if len(anchor) == _PROMPT_TOKENS:
                break
        window = _Window(self._decode, self._is_byte, anchor)
        return TextStream(piece, window, self._tokenizer.cleans_spaces)

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode_as_spelled(ids)

    def _is_byte(self, piece: str) -> bool:
        return self._has_byte_tokens and BYTE_TOKEN.fullmatch(piece) is not None


class TextStream:
    """The growing text of one sequence."""

    def __init__(
        self, piece: Callable[[int], str | None], source: _Source, cleans_spaces: bool
    ) -> None:
        self._piece = piece
        self._source = source
        self._tightening = TighteningStream() if cleans_spaces else None

    def step(self, token: int) -> str:
        """Returns the text that one more token makes final; often empty."""
        piece = self._piece(token)
        text = "" if piece is None else self._source.step(token, piece)
        return self._tightening.feed(text) if self._tightening else text

    def steps(self, tokens: Sequence[int]) -> str:
        """Calls `step` for several tokens."""
        pieces = [(token, piece) for token in tokens if (piece := self._piece(token)) is not None]
        text = self._source.steps(pieces)
        return self._tightening.feed(text) if self._tightening else text

    def flush(self) -> str:
        """Returns the text that was held back, at the end of the sequence."""
        text = self._source.flush()
        return self._tightening.feed(text) + self._tightening.flush() if self._tightening else text


class Silence(TextStream):
    """The text of a sequence whose text is not needed: always empty."""

    def __init__(self) -> None:
        pass

    def step(self, token: int) -> str:
        return ""

    def steps(self, tokens: Sequence[int]) -> str:
        return ""

    def flush(self) -> str:
        return ""


class _Source(Protocol):
    def step(self, token: int, piece: str) -> str: ...
    def steps(self, pieces: Sequence[tuple[int, str]]) -> str: ...
    def flush(self) -> str: ...


class _Bytes:
    """A byte-level decoder. `spelled` returns a token's bytes; `errors` is that of
    `bytes.decode`."""

    def __init__(self, spelled: Callable[[str], bytes], errors: str) -> None:
        self._spelled = spelled
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors)

    def step(self, token: int, piece: str) -> str:
        return self._decoder.decode(self._spelled(piece))

    def steps(self, pieces: Sequence[tuple[int, str]]) -> str:
        return self._decoder.decode(b"".join([self._spelled(piece) for _, piece in pieces]))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class _Pieces:
    """Joins pieces as a class of transformers does."""

    def __init__(self, joining: Joining, prompt: Iterable[str]) -> None:
        self._stream = joining.stream()
        for piece in prompt:
            self._stream.step(piece)
        self._stream.flush()  # ends a run of bytes

    def step(self, token: int, piece: str) -> str:
        return self._stream.step(piece)

    def steps(self, pieces: Sequence[tuple[int, str]]) -> str:
        return "".join([self._stream.step(piece) for _, piece in pieces])

    def flush(self) -> str:
        return self._stream.flush()


class _Window:
    """A decoder of single tokens. `_anchor` are the last tokens whose text has been emitted: the
    fewest that have a text, `_shown`. After them the special rule for the first token of a text has
    no effect."""

    def __init__(
        self, decode: Callable[[list[int]], str], is_byte: Callable[[str], bool], anchor: list[int]
    ) -> None:
        self._decode = decode
        self._is_byte = is_byte
        self._run: list[int] = []  # byte tokens not yet decoded
        self._stand_behind(anchor)

    def step(self, token: int, piece: str) -> str:
        if self._is_byte(piece):
            self._run.append(token)
            return ""
        return self._show([*self._run, token])

    def steps(self, pieces: Sequence[tuple[int, str]]) -> str:
        return "".join([self.step(token, piece) for token, piece in pieces])

    def flush(self) -> str:
        return self._show(self._run) if self._run else ""

    def _show(self, new: list[int]) -> str:
        ids = self._anchor + new
        text = self._decode(ids)[len(self._shown) :]
        self._run = []
        if text or not self._shown:  # a token without text changes nothing
            self._stand_behind(ids)
        return text

    def _stand_behind(self, ids: list[int]) -> None:
        self._anchor, self._shown = ids, self._decode(ids)
        for size in range(1, len(ids)):
            if shown := self._decode(ids[-size:]):
                self._anchor, self._shown = ids[-size:], shown
                return


def _check(steps: list[dict[str, Any]]) -> None:
    """Raises CheckpointError for steps in which a token changes text before the previous token."""
    fused = False
    for step in steps:
        kind = step["type"]
        one_by_one = kind in ("WordPiece", "Metaspace", "BPEDecoder", "ByteFallback", "Replace")
        if kind == "Strip":
            exact = not fused or step["stop"] == 0
        elif kind == "Replace" and fused:
            exact = len(step["pattern"].get("String", "")) == 1
        else:
            exact = kind == "Fuse" or (one_by_one and not fused)
        if not exact:
            raise CheckpointError(
                f"{FILE}: decoder: got {kind}{' after Fuse' if fused else ''}, wanted one whose "
                "text grows token by token (ByteLevel, Metaspace, WordPiece, BPEDecoder, "
                "ByteFallback); use another tokenizer"
            )
        fused = fused or kind == "Fuse"
