"""Reads a SentencePiece model file (Kudo and Richardson, 2018): its pieces, and how texts are
normalised before they are split. Only the needed fields are read, with protobuf; the
`sentencepiece` package is not used."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from fusewire.errors import CheckpointError

# Published models of 256,000 pieces have 5 MB. The library needs up to 350 bytes of memory per byte
# of pieces, so 1.4 GB at most.
_MOST_BYTES = 8 << 20
_MOST_PIECES = 1 << 19
_MOST_BYTES_OF_PIECES = 4 << 20
_MOST_PIECE_CHARACTERS = 512

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
KINDS = {"unigram": 1, "bpe": 2}

# sentencepiece_model.proto: message -> field -> (number, type) and the default if it is not 0.
_TYPES = descriptor_pb2.FieldDescriptorProto
_MESSAGES: dict[str, dict[str, tuple[Any, ...]]] = {
    "Piece": {
        "piece": (1, _TYPES.TYPE_BYTES),
        "score": (2, _TYPES.TYPE_FLOAT),
        "type": (3, _TYPES.TYPE_INT32, "1"),
    },
    "Trainer": {
        "model_type": (3, _TYPES.TYPE_INT32, "1"),
        "treat_whitespace_as_suffix": (24, _TYPES.TYPE_BOOL),
        "byte_fallback": (35, _TYPES.TYPE_BOOL),
    },
    "Normalizer": {
        "precompiled_charsmap": (2, _TYPES.TYPE_BYTES),
        "add_dummy_prefix": (3, _TYPES.TYPE_BOOL, "true"),
        "remove_extra_whitespaces": (4, _TYPES.TYPE_BOOL, "true"),
        "escape_whitespaces": (5, _TYPES.TYPE_BOOL, "true"),
    },
    "Model": {
        "pieces": (1, ".fusewire.Piece"),
        "trainer_spec": (2, ".fusewire.Trainer"),
        "normalizer_spec": (3, ".fusewire.Normalizer"),
    },
}


@dataclass(frozen=True)
class SentencePieceModel:
    """`pieces`: (text, score, type) by id. `charsmap`: the replacement rules, empty for none."""

    pieces: tuple[tuple[str, float, int], ...]
    kind: str  # a key of KINDS
    byte_fallback: bool
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool

    @property
    def unk_id(self) -> int:
        return next(index for index, (_, _, kind) in enumerate(self.pieces) if kind == UNKNOWN)


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Reads a file in bounded time and memory. Raises CheckpointError for a file that is not a
    SentencePiece model, is damaged, or has options that are not supported."""
    name = path.name
    size = path.stat().st_size
    if size > _MOST_BYTES:
        raise _damaged(name, f"{size} bytes", f"at most {_MOST_BYTES}")
    try:
        model = _message_class().FromString(path.read_bytes())
    except DecodeError:
        raise _damaged(name, "a file that is not one", "a SentencePiece model") from None
    _check_options(name, model)
    return SentencePieceModel(
        _pieces(name, model),
        {number: kind for kind, number in KINDS.items()}[model.trainer_spec.model_type],
        model.trainer_spec.byte_fallback,
        model.normalizer_spec.precompiled_charsmap,
        model.normalizer_spec.add_dummy_prefix,
        model.normalizer_spec.remove_extra_whitespaces,
    )


def _check_options(name: str, model: Any) -> None:
    trainer = model.trainer_spec
    for option, got, wanted in (
        ("model_type", trainer.model_type, tuple(KINDS.values())),
        ("treat_whitespace_as_suffix", trainer.treat_whitespace_as_suffix, (False,)),
        ("escape_whitespaces", model.normalizer_spec.escape_whitespaces, (True,)),
    ):
        if got not in wanted:
            raise CheckpointError(
                f"{name}: {option}: got {got}, wanted {' or '.join(map(str, wanted))}; this "
                "tokenizer is not supported (send input_ids)"
            )


def _pieces(name: str, model: Any) -> tuple[tuple[str, float, int], ...]:
    count = len(model.pieces)
    if not 1 <= count <= _MOST_PIECES:
        raise _damaged(name, f"{count} pieces", f"1..{_MOST_PIECES}")
    pieces = []
    for index, each in enumerate(model.pieces):
        try:
            text = each.piece.decode()
        except UnicodeDecodeError:
            raise _damaged(name, f"the piece {each.piece[:40]!r}", "UTF-8") from None
        if not 1 <= len(text) <= _MOST_PIECE_CHARACTERS or not NORMAL <= each.type <= BYTE:
            got = f"piece {index} of {len(text)} characters and type {each.type}"
            raise _damaged(name, got, f"1..{_MOST_PIECE_CHARACTERS} and a type in 1..{BYTE}")
        if not math.isfinite(each.score):
            raise _damaged(name, f"the score {each.score} of piece {index}", "a finite number")
        pieces.append((text, each.score, each.type))
    if sum(len(text.encode()) for text, _, _ in pieces) > _MOST_BYTES_OF_PIECES:
        raise _damaged(name, "pieces of more bytes", f"at most {_MOST_BYTES_OF_PIECES}")
    if len({text for text, _, _ in pieces}) < count:
        raise _damaged(name, "a piece twice", "each piece once")
    unknown = sum(kind == UNKNOWN for _, _, kind in pieces)
    if unknown != 1:
        raise _damaged(name, f"{unknown} unknown pieces", "one")
    if not any(kind == NORMAL for _, _, kind in pieces):
        raise _damaged(name, "no normal piece", "one or more")
    return tuple(pieces)


@cache
def _message_class() -> Any:
    """Returns the message class, in its own descriptor pool: other code may have registered the
    complete description."""
    file = descriptor_pb2.FileDescriptorProto(name="fusewire.proto", package="fusewire")
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, (number, kind, *default) in fields.items():
            field = described.field.add(name=name, number=number, label=_TYPES.LABEL_OPTIONAL)
            if isinstance(kind, str):
                field.type, field.type_name = _TYPES.TYPE_MESSAGE, kind
            else:
                field.type = kind
            if name == "pieces":
                field.label = _TYPES.LABEL_REPEATED
            if default:
                field.default_value = default[0]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("fusewire.Model"))


def _damaged(name: str, got: str, wanted: str) -> CheckpointError:
    return CheckpointError(f"{name}: got {got}, wanted {wanted}; download the file again")
