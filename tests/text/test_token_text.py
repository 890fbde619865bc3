"""The texts of single tokens join to the text of all, over tokenizers of many kinds."""

from __future__ import annotations

import pytest

from tests.text.test_detokenizer import MAKERS, ids_of, made

# Models that echo a prompt, whose texts do not depend on earlier tokens.
JOINING = [name for name in MAKERS if name.startswith("byte")] + ["unigram", "word piece", "t5"]


@pytest.mark.parametrize("name", JOINING)
def test_texts_of_tokens_join_to_the_whole_text(name: str) -> None:
    tokenizer, _ = made(name)
    ids = ids_of(tokenizer, "two  spaces and the end")
    pieces = [tokenizer.token_text(token) for token in ids]
    text, joined = tokenizer.decode(ids), "".join(pieces)
    unseen = tokenizer.token_text.unseen(ids, tokenizer.special_ids, text)
    assert joined[unseen:] == text
    assert joined[:unseen].strip() in ("", *map(tokenizer.piece, tokenizer.special_ids))


def test_special_tokens_in_front_count_where_the_text_has_them_not() -> None:
    tokenizer, _ = made("byte fallback, three spaces taken")
    (first,) = [token for token in tokenizer.special_ids if tokenizer.piece(token) == "<s>"]
    ids = [first, *ids_of(tokenizer, "the end")]
    unseen = tokenizer.token_text.unseen(ids, tokenizer.special_ids, "the end")
    assert "".join(map(tokenizer.token_text, ids))[unseen:] == "the end"
    assert tokenizer.token_text.unseen(ids, tokenizer.special_ids, "<s> the end") == 0


PARTS = [name for name in MAKERS if name.startswith("byte")]


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_a_character_have_their_bytes_and_whole_ones_have_none(name: str) -> None:
    tokenizer, _ = made(name)
    rune = [tokenizer.token_text.part(token) for token in ids_of(tokenizer, "\u16a0")]
    assert b"".join(part for part in rune if part is not None) == "\u16a0".encode()
    whole = ids_of(tokenizer, "two  spaces and the end")
    assert {tokenizer.token_text.part(token) for token in whole} == {None}


def test_a_token_that_looks_like_a_byte_is_text_where_none_stands_for_bytes() -> None:
    tokenizer, _ = made("word piece")
    tokenizer.backend.add_tokens(["<0xE2>"])
    token = tokenizer.backend.token_to_id("<0xE2>")
    assert token is not None
    assert tokenizer.token_text.part(token) is None
