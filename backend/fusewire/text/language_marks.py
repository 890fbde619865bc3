"""How each tokenizer class marks the language of a source: by a token before or after the text.
tokenizer.json contains one fixed language, sometimes on the wrong side (NLLB's published files are
older than its class), so the class takes precedence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import tokenizers
from tokenizers.processors import TemplateProcessing

from fusewire.errors import CheckpointError
from fusewire.text import language_codes
from fusewire.text.languages import Languages
from fusewire.text.tokenizer_files import CONFIG, named_token

_SCRIPT_OR_REGION = "[a-z]{2,3}_[A-Z][A-Za-z]{1,3}"  # eng_Latn, en_XX
_LANGUAGE = "[a-z]{2,3}"
_NONE = "(?!)"


@dataclass(frozen=True)
class LanguageMarks:
    """`codes`: those of the published models, by token id. `default`: language of a source where
    the files name none; None: such a source is not marked. `source_at`: the side of the text on
    which the source's token is; the end token follows the text in both cases. `spelled`: format of
    a code's token. `others`: regular expression of further codes."""

    codes: tuple[str, ...]
    default: str | None
    source_at: Literal["front", "back"]
    spelled: str = "{}"
    others: str = _SCRIPT_OR_REGION

    def token(self, code: str) -> str:
        return self.spelled.format(code)

    def code(self, token: str) -> str | None:
        """Returns the language code of a token, or None for another token."""
        return _code(token, self.spelled, "|".join([*map(re.escape, self.codes), self.others]))

    def languages(self, ids: Mapping[str, int], config: dict[str, Any]) -> Languages:
        """Returns the languages of a model. `ids`: token -> id; tokens with the format of a
        language count as one. Raises CheckpointError where `src_lang` is not one of them."""
        known = {code: ids[token] for token in ids if (code := self.code(token))}
        named = config.get("src_lang")
        if isinstance(named, str):
            named = self.code(named) or named  # PLBart's folders may have the token
        if named is not None and (not isinstance(named, str) or named not in known):
            some = ", ".join(sorted(known)[:5])
            wanted, remedy = f"a language of the model, as {some}", "correct the file"
            if not some:
                wanted = "none, as the tokenizer has no language tokens"
                remedy = "remove it, or correct tokenizer_class"
            raise CheckpointError(
                f"{CONFIG}: src_lang: got {repr(named)[:80]}, wanted {wanted}; {remedy}"
            )
        source = self.default if named is None else named
        return Languages(known, self.source_at, default_source=source if source in known else None)

    def template(self, language: str | None, end: str) -> tuple[str, str]:
        """Returns the templates of a text $A and of a pair with $B."""
        if language is None:
            return f"$A {end}", f"$A $B {end}"
        token = self.token(language)
        front, back = (f"{token} ", "") if self.source_at == "front" else ("", f" {token}")
        return f"{front}$A {end}{back}", f"{front}$A $B {end}{back}"


def marks_of(kind: str, config: dict[str, Any]) -> LanguageMarks | None:
    """Returns the marks of a tokenizer class (`kind` is the result of `tokenizer_class`), or None
    for a class without any. Raises CheckpointError for unknown language_codes."""
    marks = _MARKS.get(kind)
    if marks is None:
        return None
    legacy, codes = config.get("legacy_behaviour"), config.get("language_codes")
    if kind == "nllb" and legacy:
        return replace(marks, source_at="back")
    if kind == "plbart" and codes not in (None, "base"):
        if codes != "multi":
            raise _unknown_codes(codes, "base or multi")
        return replace(marks, codes=language_codes.PLBART_MULTI, default="en_XX")
    if kind == "m2m100" and codes not in (None, "m2m100"):
        if codes != "wmt21":
            raise _unknown_codes(codes, "m2m100 or wmt21")
        return replace(marks, codes=language_codes.WMT21)
    return marks


def _unknown_codes(got: object, wanted: str) -> CheckpointError:
    return CheckpointError(
        f"{CONFIG}: language_codes: got {repr(got)[:80]}, wanted {wanted}; correct the file"
    )


def follow_class(backend: tokenizers.Tokenizer, kind: str, config: dict[str, Any]) -> Languages:
    """Returns the languages of a tokenizer.json, and replaces its template by that of its class.
    For other classes (PreTrainedTokenizerFast) the file's own template determines the side of the
    language."""
    special = {
        token.content: index
        for index, token in backend.get_added_tokens_decoder().items()
        if token.special
    }
    marks = marks_of(kind, config)
    if marks is None:
        return _frozen(backend, special)
    usual = {token: backend.token_to_id(token) for token in map(marks.token, marks.codes)}
    ids = {token: index for token, index in usual.items() if index is not None} | special
    languages = marks.languages(ids, config)
    end = named_token(config, "eos_token", "</s>")
    if languages.default_source is None or backend.token_to_id(end) is None:
        return _frozen(backend, special)
    single, pair = marks.template(languages.default_source, end)
    around = (marks.token(languages.default_source), end)
    backend.post_processor = TemplateProcessing(
        single=single,
        pair=pair,
        special_tokens=[(token, backend.token_to_id(token)) for token in around],
    )
    return languages


def _frozen(backend: tokenizers.Tokenizer, special: Mapping[str, int]) -> Languages:
    """Returns the languages of a template that is not changed, or none where it has no language
    token."""
    for spelled, codes in (("{}", _SCRIPT_OR_REGION), ("__{}__", _LANGUAGE)):
        known = {
            code: special[token] for token in special if (code := _code(token, spelled, codes))
        }
        names = {index: code for code, index in known.items()}
        around = backend.encode("").ids if known else []
        if around and around[0] in names:
            return Languages(known, "front", default_source=names[around[0]])
        if around and around[-1] in names:
            return Languages(known, "back", default_source=names[around[-1]])
    return Languages()


def _code(token: str, spelled: str, codes: str) -> str | None:
    """Returns the language code of a token if it is one of `codes`, otherwise None."""
    found = re.fullmatch(spelled.format(f"({codes})"), token)
    return found and found[1]


_MARKS = {
    "mbart": LanguageMarks(language_codes.MBART, "en_XX", "back"),
    "mbart50": LanguageMarks(language_codes.MBART50, "en_XX", "front"),
    "nllb": LanguageMarks(language_codes.NLLB, "eng_Latn", "front"),
    "m2m100": LanguageMarks(language_codes.M2M_100, "en", "front", "__{}__", _LANGUAGE),
    "plbart": LanguageMarks(language_codes.PLBART, None, "back", "__{}__", _NONE),
}
