"""The token ids of the pieces of SentencePiece files, further tokens, and the special tokens around
a text, as in the classes of transformers that read such files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders

from fusewire.errors import CheckpointError
from fusewire.text.language_marks import LanguageMarks, marks_of
from fusewire.text.languages import Languages
from fusewire.text.piece_text import PieceJoining
from fusewire.text.sentencepiece_backend import SPACE
from fusewire.text.sentencepiece_model import SentencePieceModel, read_sentencepiece
from fusewire.text.tokenizer_files import CONFIG, TARGET, named_token
from fusewire.weights import file_in, read_json

MARIAN_TARGET = "marian, target"  # an additional class, for texts of the answers
_VOCABULARY = "vocab.json"
_TARGET_VOCABULARY = "target_vocab.json"
_MOST_EXTRA_IDS = 10_000  # tokens like <extra_id_0>
_USUAL = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
_FAIRSEQ = {"bos_token": "<s>", "cls_token": "<s>", "sep_token": "</s>", **_USUAL}


@dataclass
class Tokens:
    """The model's vocabulary. `pieces` has the id of each piece of the file."""

    pieces: list[int]
    names: dict[int, str]
    special: dict[str, int]
    unknown: int
    single: str  # a template of tokens and $A; `pair` also has $B
    pair: str
    languages: Languages = field(default_factory=Languages)
    prefixes: dict[str, int] | None = None  # Numbering's
    skipped: frozenset[int] | None = None  # Numbering's, where answers have another vocabulary
    takes_spaces: str | None = None  # the token that includes the space before it
    joining: PieceJoining | None = None
    cleans_spaces: bool = False  # where the files do not say
    decoder: decoders.Decoder | None = None  # in place of the backend's


# (the file's model, tokenizer_config.json, the folder) -> tokens
_Layout = Callable[[SentencePieceModel, dict[str, Any], Path], Tokens]


def layout_of(kind: str) -> _Layout:
    """Returns the layout of a tokenizer class; `kind` is the result of `tokenizer_class`."""
    return _LAYOUTS[kind]


def _t5(model: SentencePieceModel, config: dict[str, Any], _: Path) -> Tokens:
    names = [text for text, _, _ in model.pieces]
    extra = config.get("extra_ids", 100)
    if type(extra) is not int or not 0 <= extra <= _MOST_EXTRA_IDS:
        raise fault("extra_ids", extra, f"a whole number in 0..{_MOST_EXTRA_IDS}")
    names += [f"<extra_id_{number}>" for number in range(extra - 1, -1, -1)]
    ids = {name: index for index, name in enumerate(names)}
    roles = _roles(config, ids, _USUAL)
    special = {name: ids[name] for name in (*roles.values(), *names[len(model.pieces) :])}
    _add_listed(config, ids, special)
    end = roles["eos_token"]
    return Tokens(
        list(range(len(model.pieces))),
        {index: name for name, index in ids.items()},
        special,
        ids[roles["unk_token"]],
        f"$A {end}",
        f"$A {end} $B {end}",
    )


def _marian(model: SentencePieceModel, config: dict[str, Any], folder: Path) -> Tokens:
    vocabulary = _vocabulary(folder, _VOCABULARY)
    if not config.get("separate_vocabs"):
        return _of_marian(model, config, vocabulary, vocabulary, model)
    written = _vocabulary(folder, _TARGET_VOCABULARY)
    return _of_marian(model, config, vocabulary, written, read_pieces(folder, TARGET))


def _marian_target(model: SentencePieceModel, config: dict[str, Any], folder: Path) -> Tokens:
    separate = config.get("separate_vocabs")
    vocabulary = _vocabulary(folder, _TARGET_VOCABULARY if separate else _VOCABULARY)
    return _of_marian(model, config, vocabulary, vocabulary, model)


def _of_marian(
    model: SentencePieceModel,
    config: dict[str, Any],
    vocabulary: dict[str, int],
    written: dict[str, int],
    joined: SentencePieceModel,
) -> Tokens:
    """`written`: the vocabulary of the answers, whose pieces are joined like those of `joined`."""
    roles = _roles(config, vocabulary, _USUAL)
    _roles(config, written, _USUAL)
    special = {name: vocabulary[name] for name in roles.values()}
    _add_listed(config, vocabulary, special)
    prefixes = {
        name: index
        for name, index in vocabulary.items()
        if name.startswith(">>") and name.endswith("<<")
    }
    end, unknown = roles["eos_token"], roles["unk_token"]
    return Tokens(
        _ids(model, vocabulary, unknown),
        {index: name for name, index in written.items()},
        special,
        vocabulary[unknown],
        f"$A {end}",
        f"$A $B {end}",
        Languages({name[2:-2]: index for name, index in prefixes.items()}, in_source=True),
        prefixes,
        frozenset(written[name] for name in special if name in written),
        joining=PieceJoining.of(joined, special, behind_special=" ", plain_spaces=True),
    )


def _m2m_100(model: SentencePieceModel, config: dict[str, Any], folder: Path) -> Tokens:
    vocabulary = _vocabulary(folder, _VOCABULARY)
    marks = marks_of("m2m100", config)
    assert marks is not None
    ids = {**vocabulary}
    for token in map(marks.token, marks.codes):
        ids.setdefault(token, len(ids))
    unknown = named_token(config, "unk_token", "<unk>")
    tokens = _with_languages(config, ids, marks, _ids(model, ids, unknown), None)
    return replace(tokens, joining=PieceJoining.of(model, tokens.special))


def _fairseq(kind: str, model: SentencePieceModel, config: dict[str, Any], folder: Path) -> Tokens:
    """The layout with <pad> before the third piece, and languages and <mask> after the pieces."""
    first = [text for text, _, _ in model.pieces[:3]]
    if first != ["<unk>", "<s>", "</s>"]:
        raise CheckpointError(
            f"sentencepiece.bpe.model: got the pieces {repr(first)[:80]} first, wanted <unk>, <s> "
            f"and </s>, as tokenizers of the class {kind} have them; correct tokenizer_class in "
            f"{CONFIG}"
        )
    numbers = [3, 0, 2, *range(4, len(model.pieces) + 1)]
    ids = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    for (text, _, _), number in zip(model.pieces[3:], numbers[3:], strict=True):
        ids.setdefault(text, number)
    marks = marks_of(kind, config)
    after = len(model.pieces) + 1
    for token in [*(map(marks.token, marks.codes) if marks else ()), "<mask>"]:
        ids[token], after = after, after + 1
    # Some versions of transformers put <mask> before the languages, and saved such files.
    ids |= {token.content: index for index, token in listed(config).items()}
    if len({*ids.values()}) < len(ids):
        raise fault("added_tokens_decoder", config["added_tokens_decoder"], "each id once")
    if kind == "plbart" and config.get("language_codes") == "multi":
        del ids["<mask>"]  # not in this vocabulary, but matched as a token in texts
    tokens = _with_languages(config, ids, marks, numbers, "<mask>" if "<mask>" in ids else None)
    if "<mask>" not in ids:
        tokens = replace(tokens, takes_spaces="<mask>", special=tokens.special | {"<mask>": 3})
    if kind == "plbart":  # its Python class strips white space at both ends
        return replace(tokens, joining=PieceJoining.plain(tokens.special), cleans_spaces=True)
    return replace(tokens, decoder=decoders.Metaspace(SPACE, "always"))


def _with_languages(
    config: dict[str, Any],
    ids: dict[str, int],
    marks: LanguageMarks | None,
    pieces: list[int],
    mask: str | None,
) -> Tokens:
    roles = _roles(config, ids, _FAIRSEQ | ({"mask_token": mask} if mask else {}))
    special = {name: ids[name] for name in roles.values()}
    start, end = roles["bos_token"], roles["eos_token"]
    single, pair = f"{start} $A {end}", f"{start} $A {end} {end} $B {end}"
    languages = Languages()
    if marks is not None:
        special |= {token: ids[token] for token in map(marks.token, marks.codes)}
    _add_listed(config, ids, special)
    if marks is not None:
        languages = marks.languages(special, config)
        single, pair = marks.template(languages.default_source, end)
    return Tokens(
        pieces,
        {index: name for name, index in ids.items()},
        special,
        ids[roles["unk_token"]],
        single,
        pair,
        languages,
        takes_spaces=roles.get("mask_token"),
    )


_LAYOUTS: dict[str, _Layout] = {
    "t5": _t5,
    "mt5": _t5,
    "umt5": _t5,
    "marian": _marian,
    MARIAN_TARGET: _marian_target,
    "m2m100": _m2m_100,
    **{
        kind: partial(_fairseq, kind)
        for kind in ("nllb", "mbart", "mbart50", "plbart", "xlmroberta")
    },
}


def read_pieces(folder: Path, name: str) -> SentencePieceModel:
    path = file_in(folder, name)
    if path is None:
        raise CheckpointError(f"{name}: missing, wanted the pieces of a language; download it too")
    return read_sentencepiece(path)


def _vocabulary(folder: Path, file: str) -> dict[str, int]:
    values = read_json(folder, file)
    if values is None:
        raise CheckpointError(f"{file}: missing, wanted the ids of tokens; download it too")
    ids = values.values()
    if not all(type(each) is int and 0 <= each < 1 << 24 for each in ids) or not values:
        raise CheckpointError(f"{file}: wanted ids by token; download the file again")
    return values


def _ids(model: SentencePieceModel, vocabulary: Mapping[str, int], unknown: str) -> list[int]:
    if unknown not in vocabulary:
        raise fault("unk_token", unknown, "a token of the vocabulary")
    return [vocabulary.get(text, vocabulary[unknown]) for text, _, _ in model.pieces]


def _roles(
    config: dict[str, Any], ids: Mapping[str, int], usual: Mapping[str, str]
) -> dict[str, str]:
    """Returns the tokens that the files name, otherwise the usual ones. Raises CheckpointError
    unless all are in the vocabulary."""
    roles = {role: named_token(config, role, name) for role, name in usual.items()}
    for role, name in roles.items():
        if name not in ids:
            raise fault(role, name, "a token of the vocabulary")
    return roles


def listed(config: dict[str, Any]) -> dict[int, AddedToken]:
    """Returns the added tokens of tokenizer_config.json by id, with their rules of matching."""
    values = config.get("added_tokens_decoder") or {}
    try:
        return {
            int(index): AddedToken(
                each["content"],
                single_word=each.get("single_word", False),
                lstrip=each.get("lstrip", False),
                rstrip=each.get("rstrip", False),
                normalized=False,
                special=each.get("special", True),
            )
            for index, each in values.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        raise fault("added_tokens_decoder", values, "tokens by id") from None


def _add_listed(config: dict[str, Any], ids: dict[str, int], special: dict[str, int]) -> None:
    """Adds the tokens that a folder has beyond those of its class, such as further languages."""
    for index, token in listed(config).items():
        if ids.setdefault(token.content, index) != index or not 0 <= index < 1 << 24:
            got = f"{index} for {token.content!r}"
            raise fault("added_tokens_decoder", got, f"{ids[token.content]}, as in the vocabulary")
        if token.special:
            special[token.content] = index
    for key in ("additional_special_tokens", "extra_special_tokens"):
        names = config.get(key) or []
        if isinstance(names, dict):
            names = [*names.values()]
        for name in names if isinstance(names, list) else [names]:
            name = name.get("content") if isinstance(name, dict) else name
            if not isinstance(name, str) or name not in ids:
                raise fault(key, name, "tokens of the vocabulary or of added_tokens_decoder")
            special[name] = ids[name]


def fault(key: str, got: object, wanted: str) -> CheckpointError:
    return CheckpointError(
        f"{CONFIG}: {key}: got {repr(got)[:80]}, wanted {wanted}; correct the file"
    )
