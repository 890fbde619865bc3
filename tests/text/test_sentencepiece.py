"""Texts are split into the pieces of the sentencepiece package."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fusewire.text.sentencepiece_backend import SentencePieceNormalizer, sentencepiece_backend
from fusewire.text.sentencepiece_model import read_sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.sentencepiece_models import TEXTS, processor, trained

MODELS: dict[str, dict[str, Any]] = {
    "unigram": {},
    "unigram with bytes": {"byte_fallback": True},
    "bpe": {"model_type": "bpe"},
    "bpe with bytes": {"model_type": "bpe", "byte_fallback": True},
    "case folded": {"normalization_rule_name": "nmt_nfkc_cf"},
    "nfkc": {"normalization_rule_name": "nfkc", "model_type": "bpe"},
    "as it is": {
        "normalization_rule_name": "identity",
        "add_dummy_prefix": False,
        "remove_extra_whitespaces": False,
    },
    "spaces kept": {"remove_extra_whitespaces": False, "model_type": "bpe"},
    "pieces over spaces": {"split_by_whitespace": False},
    "user-defined": {"user_defined_symbols": "<sep>,quick,2016,½"},
    "control": {"control_symbols": "<2de>,quick"},
}
# Characters that the rules fold, delete or join, next to others.
ODD = " \u2581\t\n\u00a0\u3000\u200b\ufeff\x1faesthéïA\uff21\uff1c/\uff53\uff1e</s>"
ODD += "e\u0301\u0323\u0308가각\u1100\u1161\u11a8\ufdfa\u00b4½ﬁ日本"
LETTERS = st.one_of(
    st.sampled_from(ODD), st.sampled_from("".join(TEXTS)), st.characters(codec="utf-8")
)


class Both:
    """The library's tokenizer and sentencepiece's, of one file."""

    def __init__(self, path: Path, **options: Any) -> None:
        path.write_bytes(trained(**options))
        model = read_sentencepiece(path)
        normalizer = SentencePieceNormalizer(model, path.name)
        self.ours = sentencepiece_backend(model, normalizer, path.name)
        self.theirs = processor(trained(**options))


@pytest.fixture(params=MODELS, scope="module")
def model(request, tmp_path_factory) -> Both:
    return Both(tmp_path_factory.mktemp("model") / "spiece.model", **MODELS[request.param])


def check(model: Both, text: str) -> None:
    ours, theirs = model.ours, model.theirs
    got, wanted = ours.encode(text).ids, theirs.encode(text)
    # sentencepiece adds scores in fp32, so equally good segmentations may differ.
    if got != wanted:
        scores = [sum(map(theirs.get_score, ids)) for ids in (got, wanted)]
        rounding = 2.0**-23 * abs(scores[1]) * len(wanted)
        assert "".join(map(theirs.id_to_piece, got)) == "".join(map(theirs.id_to_piece, wanted))
        assert abs(scores[0] - scores[1]) <= rounding, (text, got, wanted)


@given(st.text(LETTERS, max_size=40))
@settings(max_examples=300)
def test_any_text(model, text):
    check(model, text)


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_texts_of_many_languages(model, form):
    for text in (*TEXTS, " ".join(TEXTS), "", " ", "\u2581", "a" * 2000):
        check(model, unicodedata.normalize(form, text))
        check(model, f"  {text.upper()}\n\t{text[::-1]} ")


def test_ids_give_the_text_back(model):
    ours, theirs = model.ours, model.theirs
    for text in TEXTS:
        ids = [index for index in theirs.encode(text) if not theirs.is_unknown(index)]
        pieces = [theirs.id_to_piece(index) for index in ids]
        assert ours.decoder.decode(pieces) == theirs.decode(ids)


def test_ways_that_are_equally_good_are_rare(model):
    """Otherwise the tests above could not fail."""
    ours, theirs = model.ours, model.theirs
    same = [ours.encode(text).ids == theirs.encode(text) for text in TEXTS]
    assert np.mean(same) > 0.9


def test_what_a_text_spells_is_no_special_token(tmp_path: Path):
    model = Both(tmp_path / "spiece.model")
    for spelled in ("</s>", "<unk>", "\uff1c/\uff53\uff1e"):
        assert model.ours.encode(spelled).ids == model.theirs.encode(spelled)
        assert len(model.ours.encode(spelled).ids) > 1
