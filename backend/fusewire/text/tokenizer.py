"""A folder's tokenizer: tokenizer.json or SentencePiece files, and the settings in the files beside
them.

Both become a tokenizer of the Rust library `tokenizers`. Padding and truncation in a tokenizer.json
(that of all-MiniLM-L6-v2 truncates at 128 tokens) are leftovers of training and are switched off;
only the side of the truncation is kept, as transformers keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Encoding, normalizers

from fusewire.errors import CheckpointError
from fusewire.text.byte_level import bytes_of
from fusewire.text.byte_pieces import byte_of_token, decoder_steps, joins_bytes
from fusewire.text.byte_tokens import byte_backend
from fusewire.text.language_marks import follow_class
from fusewire.text.languages import Languages
from fusewire.text.least_tokens import LeastTokens
from fusewire.text.loose_spaces import tighten
from fusewire.text.numbering import Numbering
from fusewire.text.piece_text import Joining, PieceJoining
from fusewire.text.sentencepiece_folder import load_sentencepiece
from fusewire.text.sentencepiece_model import BYTE
from fusewire.text.small_blenderbot import small_blenderbot
from fusewire.text.special_roles import role_id
from fusewire.text.token_text import TokenText
from fusewire.text.tokenizer_files import (
    CONFIG,
    VOCABULARY,
    WANTED,
    tokenizer_class,
    tokenizer_config,
    tokenizer_file,
)
from fusewire.text.tokenizer_library import TokenizerFault, tokenizer_faults, with_same_parts
from fusewire.text.tokenizer_settings import (
    add_listed_tokens,
    follow_bert_switches,
    max_length,
    truncation_side,
)
from fusewire.weights import file_in
from fusewire.weights.formats import TOKENIZER as FILE


class Tokenizer:
    """Converts texts to ids and back. Has the special tokens by role, None for a role without a
    token. `languages`: how those of a text and of its translation are selected."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        config: dict[str, Any],
        numbering: Numbering | None = None,
        languages: Languages | None = None,
        bad_bytes: str = "replace",
    ) -> None:
        """`config`: tokenizer_config.json, completed by special_tokens_map.json. `numbering`: the
        model's ids, where they are not the backend's, with its languages. `languages`: those of
        tokenizers without numbering. `bad_bytes`: how bytes that are not a character are decoded,
        as in `bytes.decode`."""
        stored = backend.truncation
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend
        self._config = config
        self._numbering = numbering
        self.bad_bytes = bad_bytes
        if numbering is None:
            follow_bert_switches(backend, config)
            add_listed_tokens(backend, config)
            backend.encode_special_tokens = config.get("split_special_tokens") is True
            added = backend.get_added_tokens_decoder()
            self.special_ids = frozenset(index for index, token in added.items() if token.special)
            self.languages = languages or Languages()
        else:
            self.special_ids = numbering.skipped
            self.languages = numbering.languages
        self.mask_id = role_id("mask_token", config, self._id, self._is_special)
        self.cls_id = role_id("cls_token", config, self._id, self._is_special)
        self.sep_id = role_id("sep_token", config, self._id, self._is_special)
        self.pad_id = role_id("pad_token", config, self._id, self._is_special)
        self.unk_id = role_id("unk_token", config, self._id, self._is_special)
        self.truncation_side = truncation_side(config, stored)
        self.max_length = max_length(config)
        joins = numbering is not None and numbering.joining is not None
        python_class = joins or bad_bytes != "replace"
        cleans = numbering is not None and numbering.cleans_spaces
        self.cleans_spaces = config.get("clean_up_tokenization_spaces", cleans) is True and (
            python_class or not isinstance(backend.model, tokenizers.models.BPE)
        )

    @staticmethod
    def load(folder: Path) -> Tokenizer | None:
        """Returns the folder's tokenizer, or None when it has neither tokenizer.json nor the files
        of a class that is read without it."""
        return Tokenizer._load(folder)

    @staticmethod
    def load_target(folder: Path) -> Tokenizer | None:
        """Returns the tokenizer of texts in the language of the answers. Only for Marian it is
        another one."""
        return Tokenizer._load(folder, target=True)

    @staticmethod
    def _load(folder: Path, *, target: bool = False) -> Tokenizer | None:
        name = tokenizer_file(folder)
        if name is None:
            return None
        config = tokenizer_config(folder)
        if name == CONFIG:  # ByT5's class is in Python, and drops invalid bytes
            return Tokenizer(byte_backend(config), config, bad_bytes="ignore")
        if name == VOCABULARY:
            backend, numbering = small_blenderbot(folder, config)
            return Tokenizer(backend, config, numbering)
        if name != FILE:
            backend, numbering = load_sentencepiece(folder, name, config, target=target)
            return Tokenizer(backend, config, numbering)
        path = file_in(folder, FILE)
        assert path is not None
        try:
            with tokenizer_faults():
                backend = tokenizers.Tokenizer.from_buffer(path.read_bytes())
                languages = follow_class(backend, tokenizer_class(folder, config), config)
        except TokenizerFault as fault:
            raise CheckpointError(
                f"{FILE}: got a file that tokenizers {tokenizers.__version__} cannot read "
                f"({fault}), wanted a fast tokenizer; save it again with transformers: "
                "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
            ) from None
        return Tokenizer(backend, config, languages=languages)

    @staticmethod
    def required(folder: Path) -> Tokenizer:
        """Returns the tokenizer of a folder for generation. Raises CheckpointError where it has
        none."""
        tokenizer = Tokenizer.load(folder)
        if tokenizer is None:
            raise CheckpointError(
                f"{FILE}: missing, but generation answers with text and needs the model's "
                f"tokenizer, wanted {WANTED}; save it into the folder with transformers: "
                "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
            )
        return tokenizer

    @property
    def has_offsets(self) -> bool:
        """Whether `encode` can return the offsets of tokens in a text. Tokenizers from
        SentencePiece files cannot."""
        return self._numbering is None

    def require_offsets(self, task: str) -> None:
        """Raises CheckpointError where the tokenizer has no offsets."""
        if not self.has_offsets:
            raise CheckpointError(
                f"{FILE}: missing, wanted for the task {task}, which maps tokens back to the text; "
                "save it into the folder with transformers: "
                "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
            )

    def twin(self) -> Tokenizer:
        """Returns a copy with its own state, for another thread."""
        with tokenizer_faults():
            if self._numbering is None:
                backend = tokenizers.Tokenizer.from_str(self.backend.to_str())
            else:  # with a normaliser in Python, which cannot be serialised
                backend = with_same_parts(self.backend)
            return Tokenizer(backend, self._config, self._numbering, self.languages, self.bad_bytes)

    @cached_property
    def least_tokens(self) -> LeastTokens:
        return LeastTokens(self.backend)

    @property
    def subword_prefix(self) -> str:
        """The prefix of a piece inside a word (WordPiece's ##), empty where there is none."""
        return getattr(self.backend.model, "continuing_subword_prefix", None) or ""

    def added_tokens(self, pair: bool) -> int:
        """Returns how many special tokens are added to a text or a pair."""
        return self.backend.num_special_tokens_to_add(pair)

    def lowercase(self) -> None:
        """Lower-cases texts before anything else (sentence-transformers' `do_lower_case`)."""
        if self._numbering is not None:
            lowering = self._numbering.normalizer.lowering()
            self.backend.normalizer = normalizers.Normalizer.custom(lowering)
            return
        steps = [normalizers.Lowercase()]
        if self.backend.normalizer is not None:
            steps.append(self.backend.normalizer)
        self.backend.normalizer = normalizers.Sequence(steps)

    def inside_texts(self) -> Tokenizer | None:
        """Returns a copy that adds no space before texts and keeps all of theirs, where the
        normaliser is our own; None otherwise."""
        if self._numbering is None:
            return None
        twin = self.twin()
        twin.backend.normalizer = normalizers.Normalizer.custom(self._numbering.normalizer.inside())
        return twin

    @cached_property
    def token_text(self) -> TokenText:
        """Returns the text of a token after others; U+FFFD for part of a character."""
        decode = self.decode
        if self.bad_bytes != "replace":
            decode = partial(self.backend.decode, skip_special_tokens=False)
        return TokenText(decode, self.spelling, self._spelled_bytes)

    def piece(self, token: int) -> str:
        """Returns a token's string in the vocabulary; "" for an id beyond the vocabulary."""
        return self.spelling(token) or ""

    def ids(self) -> dict[str, int]:
        """Returns the ids of all tokens that texts can have, by their strings."""
        ids = self.backend.get_vocab()
        if self._numbering is not None:
            ids = {name: self._numbering.ids[i] for name, i in ids.items()}
        return ids

    def has(self, token: int) -> bool:
        """Whether the tokenizer has this id."""
        return 0 <= token < 1 << 32 and self.spelling(token) is not None

    def join(self, pieces: list[str]) -> str:
        """Joins pieces to a text."""
        decoder = self.backend.decoder
        return decoder.decode(pieces) if decoder is not None else " ".join(pieces)

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        text = self.decode_as_spelled(ids, skip_special_tokens)
        return tighten(text) if self.cleans_spaces else text

    def decode_as_spelled(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        """`decode` without removing loose spaces."""
        with tokenizer_faults():
            if self._numbering is None and self.bad_bytes == "replace":
                return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)
            skipped = self.special_ids if skip_special_tokens else frozenset()
            spelled = [self.spelling(token) for token in ids if token not in skipped]
            pieces = [piece for piece in spelled if piece is not None]
            if self._numbering is None:
                return b"".join(map(bytes_of, pieces)).decode(errors=self.bad_bytes)
            joining = self.joining
            return joining.text(pieces) if joining is not None else self.join(pieces)

    def encode(
        self,
        texts: list[str | tuple[str, str]],
        *,
        offsets: bool,
        cut: dict[str, Any] | None = None,
        special_tokens: bool = True,
    ) -> list[Encoding]:
        """Encodes texts and pairs. `cut`: keyword arguments of the library's truncation. `offsets`:
        also return the offsets of tokens in the text, which takes time (see `has_offsets`).
        `special_tokens`: add special tokens around a text; a chat template writes them itself.
        Raises TokenizerFault.

        Truncation is state of the Rust object. So with `cut` only one thread may call it at a time,
        as in the engine, and calls from other threads wait while it encodes.
        """
        encode = self.backend.encode_batch if offsets else self.backend.encode_batch_fast
        if (numbering := self._numbering) is not None:
            texts = [numbering.marked(t) if isinstance(t, str) else t for t in texts]
        with tokenizer_faults():
            if cut is None:
                found = encode(texts, add_special_tokens=special_tokens)
            else:
                self.backend.enable_truncation(**cut)
                try:
                    found = encode(texts, add_special_tokens=special_tokens)
                finally:
                    self.backend.no_truncation()
        return found if numbering is None else [numbering.renumbered(each) for each in found]

    def last_tokens(self, text: str, most: int, *, special_tokens: bool) -> list[int]:
        """Returns the ids of a text's end: at most `most`, including the special tokens around it,
        which are kept. Thread-safe. Raises TokenizerFault."""
        if self._numbering is not None:
            text = self._numbering.marked(text)
        with tokenizer_faults():
            (encoded,) = self.backend.encode_batch_fast([text], add_special_tokens=False)
            added = self.added_tokens(pair=False) if special_tokens else 0
            encoded.truncate(max(most - added, 0), direction="left")
            encoded = self.backend.post_process(encoded, None, special_tokens)
        if self._numbering is not None:
            encoded = self._numbering.renumbered(encoded)
        return list(encoded.ids[:most])

    @property
    def joining(self) -> Joining | None:
        """How pieces become text, where the backend's decoder does not define it."""
        return None if self._numbering is None else self._numbering.joining

    def spelling(self, token: int) -> str | None:
        """As `piece`, but None for an id beyond the vocabulary."""
        if self._numbering is not None:
            return self._numbering.names.get(token)
        return self.backend.id_to_token(token)

    @cached_property
    def _spelled_bytes(self) -> Callable[[str], bytes | None]:
        """Returns the bytes that a string of the vocabulary represents, or None where it is
        text."""
        if (joining := self.joining) is not None:
            kinds = joining.kinds if isinstance(joining, PieceJoining) else {}
            return lambda piece: byte_of_token(piece) if kinds.get(piece) == BYTE else None
        steps = decoder_steps(self.backend.decoder)
        if joins_bytes(steps):
            return bytes_of
        has_bytes = any(step["type"] == "ByteFallback" for step in steps)
        return byte_of_token if has_bytes else lambda piece: None

    def _is_special(self, token: int) -> bool:
        return self._numbering is not None or token in self.special_ids

    def _id(self, spelling: str) -> int | None:
        if self._numbering is not None:
            return self._numbering.special.get(spelling)
        return self.backend.token_to_id(spelling)
