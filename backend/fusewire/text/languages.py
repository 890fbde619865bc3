"""Which languages a translation model knows, and how a request chooses among them.

The source's language is a token around the text, in front (NLLB, M2M-100, mBART-50) or behind
(mBART, NLLB's `legacy_behaviour`). The target's is the first token of the answer, or, in
multilingual Marian models, a token in front of the source (`>>fra<< Hello`).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fusewire.errors import InvalidInput

SOURCE, TARGET = "source_lang", "target_lang"
_SHOWN = 5  # codes in a message
_MOST_CHARACTERS = 40  # of a code, in a message


@dataclass(frozen=True)
class Languages:
    """`ids`: code -> token, empty where the model knows no choice of languages. `source_at`: where
    around a text the source's token stands. `in_source`: the target's token stands in front of the
    source. `default_source`: what the tokenizer marks a text with where nobody chooses; None where
    it marks none, or the model knows no choice."""

    ids: Mapping[str, int] = field(default_factory=dict)
    source_at: Literal["front", "back"] | None = None
    in_source: bool = False
    default_source: str | None = None

    @property
    def codes(self) -> list[str]:
        """As a request names them: `eng_Latn`, `en_XX`, `en`, `fra`."""
        return sorted(self.ids)

    def source_ids(
        self,
        ids: Sequence[int],
        source_lang: str | None = None,
        target_lang: str | None = None,
    ) -> list[int]:
        """The ids of a source text in `source_lang`, to be translated into `target_lang`.

        `ids`: of the text with the special tokens around it, as Tokenizer.encode gives them, whose
        language these replace. None leaves it. InvalidInput for a language that the model does not
        know, for a source language where none is marked, and for ids without a language's token in
        its place.
        """
        changed = list(ids)
        if source_lang is not None:
            token = self._id(SOURCE, source_lang, marked=self.source_at is not None)
            at = 0 if self.source_at == "front" else -1
            if changed and changed[at] in self.ids.values():
                changed[at] = token
            elif self.default_source is None:
                changed.append(token)
            else:
                raise InvalidInput(
                    SOURCE,
                    f"{_shown(source_lang)} for tokens that have no language at their "
                    f"{self.source_at}",
                    "tokens with one there",
                    "send a text with add_special_tokens, or the ids that the tokenizer gives so",
                )
        if target_lang is not None:
            token = self._id(TARGET, target_lang, marked=True)
            if self.in_source:
                named = bool(changed) and changed[0] in self.ids.values()
                changed[: int(named)] = [token]
        return changed

    def target_start(
        self, target_lang: str, decoder_start_token_id: int | None = None
    ) -> dict[str, int]:
        """How an answer in `target_lang` begins, as parameters of generation: a
        `forced_bos_token_id`, or, where `decoder_start_token_id` of the model is a language itself
        (mBART, section 2.2), another such start. Empty where the source says it. InvalidInput as
        of `source_ids`."""
        token = self._id(TARGET, target_lang, marked=True)
        if self.in_source:
            return {}
        if decoder_start_token_id in self.ids.values():
            return {"decoder_start_token_id": token}
        return {"forced_bos_token_id": token}

    def _id(self, name: str, code: str, *, marked: bool) -> int:
        if not self.ids or not marked:
            what = "translates between given languages" if not self.ids else "reads them unmarked"
            raise InvalidInput(name, _shown(code), f"none: the model {what}", f"leave out {name}")
        if code not in self.ids:
            near = difflib.get_close_matches(code[:_MOST_CHARACTERS], self.codes, _SHOWN, 0.3)
            known = ", ".join(near or self.codes[:_SHOWN])
            wanted = f"one of the model's {len(self.ids)} languages, as {known}"
            raise InvalidInput(name, _shown(code), wanted, "send the code of one of them")
        return self.ids[code]


def _shown(code: str) -> str:
    return repr(code[:_MOST_CHARACTERS])
