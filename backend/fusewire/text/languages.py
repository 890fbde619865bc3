"""The languages of a translation model, and how a request selects them.

The source's language is a token before the text (NLLB, M2M-100, mBART-50) or after it (mBART,
NLLB's `legacy_behaviour`). The target's language is the first token of the answer or, in
multilingual Marian models, a token before the source (`>>fra<< Hello`).
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
    """`ids`: code -> token, empty where the model has no choice of languages. `source_at`: the side
    of a text on which the source's token is. `in_source`: whether the target's token precedes the
    source. `default_source`: the language with which the tokenizer marks a text by default; None
    where it marks none, or the model has no choice."""

    ids: Mapping[str, int] = field(default_factory=dict)
    source_at: Literal["front", "back"] | None = None
    in_source: bool = False
    default_source: str | None = None

    @property
    def codes(self) -> list[str]:
        """The codes that requests use: `eng_Latn`, `en_XX`, `en`, `fra`."""
        return sorted(self.ids)

    def source_ids(
        self,
        ids: Sequence[int],
        source_lang: str | None = None,
        target_lang: str | None = None,
    ) -> list[int]:
        """Returns the ids of a source text in `source_lang` for translation into `target_lang`.

        `ids`: those of the text with its special tokens, as Tokenizer.encode returns them, whose
        language tokens are replaced. None leaves a language as it is. Raises InvalidInput for a
        language that the model does not have, for a source language where sources are not marked,
        and for ids without a language token on the expected side.
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
        """Returns the parameters of generation with which an answer in `target_lang` begins: a
        `forced_bos_token_id` or, where the model's `decoder_start_token_id` is itself a language
        (mBART, section 2.2), another `decoder_start_token_id`. Empty where the source determines
        the language. Raises InvalidInput as `source_ids`."""
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
