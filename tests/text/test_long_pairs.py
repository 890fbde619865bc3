"""Truncating pairs of long texts takes no longer than reading them, and keeps the same tokens."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from fusewire.errors import CheckpointError, InvalidInput
from fusewire.text.long_pairs import shortened
from fusewire.text.tokenizer import Tokenizer

from tests.reference import SENTENCES, save_tokenizer, tiny_tokenizer
from tests.text.translation_folders import FAIRSEQ

TEXT = " ".join(SENTENCES)
FAMILIES = {"bert": "wordpiece", "roberta": "byte_bpe", "xlm-roberta": "unigram"}


@pytest.fixture(scope="module", params=FAMILIES)
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder, request.param, tiny_tokenizer(FAMILIES[request.param]), 64)
    loaded = Tokenizer.load(folder)
    assert loaded is not None
    return loaded


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("most", [8, 9, 24])
@pytest.mark.parametrize("lengths", [(900, 900), (1000, 900), (900, 1000), (20, 1000), (1000, 3)])
def test_the_same_tokens_are_kept(
    tokenizer: Tokenizer, side: str, most: int, lengths: tuple[int, int]
) -> None:
    tokenizer.truncation_side = side
    cut = {"max_length": most, "stride": 0, "strategy": "longest_first", "direction": side}
    pair = (TEXT[: lengths[0]], TEXT[-lengths[1] :])
    left = shortened(tokenizer, pair, most)
    assert sum(map(len, left)) < sum(map(len, pair))
    [wanted], [got] = (tokenizer.encode([one], offsets=False, cut=cut) for one in (pair, left))
    assert (got.ids, got.type_ids) == (wanted.ids, wanted.type_ids)


def test_long_pairs_are_truncated_in_time(tokenizer: Tokenizer) -> None:
    tokenizer.truncation_side = "right"
    began = time.process_time()
    # Without shortening: about half an hour.
    left = shortened(tokenizer, (TEXT * 300, TEXT * 300), 24)
    assert sum(map(len, left)) < 4096
    assert time.process_time() - began < 20


def test_a_word_that_changes_where_it_is_cut_is_left_whole(tmp_path: Path) -> None:
    """A word whose subwords the vocabulary lacks is one unknown token, however long."""
    save_tokenizer(tmp_path, "bert", tiny_tokenizer("wordpiece"), 64)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer is not None
    word = "\u4e00" + "x" * 300
    cut = {"max_length": 8, "stride": 0, "strategy": "longest_first", "direction": "right"}
    pair = (" ".join([word] * 9), TEXT)
    left = shortened(tokenizer, pair, 8)
    [wanted], [got] = (tokenizer.encode([one], offsets=False, cut=cut) for one in (pair, left))
    assert got.ids == wanted.ids


def test_a_long_pair_without_places_of_tokens_is_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(FAIRSEQ["xlm-r"](tmp_path))
    assert tokenizer is not None
    assert shortened(tokenizer, (TEXT[:100], TEXT[:28]), 8) == (TEXT[:100], TEXT[:28])
    with pytest.raises(InvalidInput, match="text_pair: got a pair of 129 characters to truncate"):
        shortened(tokenizer, (TEXT[:100], TEXT[:29]), 8)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: missing, wanted for the task tag"):
        tokenizer.require_offsets("tag")
