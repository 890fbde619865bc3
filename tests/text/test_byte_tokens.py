"""ByT5's folders, which have no vocabulary file, are tokenised as by transformers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import transformers
from fusewire.errors import CheckpointError
from fusewire.text.detokenizer import Detokenizer
from fusewire.text.tokenizer import Tokenizer

from tests.models.tiny_seq2seq import tiny_seq2seq
from tests.text.answering_folders import assert_answers_are_transformers
from tests.text.sentencepiece_models import TEXTS

ODD = ["", " ", "  a  b ", " <pad> x </s> y", "a<extra_id_0> b", "<unk>", "😀\u200b\x00\ufffd", "é"]


def written(folder: Path, **config: Any) -> Tokenizer:
    values = {"tokenizer_class": "ByT5Tokenizer"} | config
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    tokenizer = Tokenizer.load(folder)
    assert tokenizer is not None
    return tokenizer


def ids(tokenizer: Tokenizer, text: str | tuple[str, str]) -> list[int]:
    (encoded,) = tokenizer.encode([text], offsets=False)
    return list(encoded.ids)


@pytest.fixture(params=["saved", "published", "bare"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Tokenizer, Any]:
    """Returns our and transformers' tokenizers of a folder: one that transformers 5 saved, a
    published one, and one that has only the class name."""
    theirs = transformers.ByT5Tokenizer()
    if request.param == "saved":
        theirs.save_pretrained(tmp_path)
        ours = Tokenizer.load(tmp_path)
        assert ours is not None
        return ours, transformers.AutoTokenizer.from_pretrained(tmp_path)
    if request.param == "published":
        names = [f"<extra_id_{number}>" for number in range(125)]
        end = {"content": "</s>", "lstrip": False, "rstrip": False, "single_word": False}
        config = {"eos_token": end, "extra_ids": 125, "additional_special_tokens": names}
        return written(tmp_path, **config), theirs
    return written(tmp_path), theirs


def test_texts_become_the_ids_of_transformers(both):
    ours, theirs = both
    for text in [*TEXTS, *ODD]:
        assert ids(ours, text) == theirs(text)["input_ids"], text
    assert ids(ours, ("a", "bé")) == theirs("a", "bé")["input_ids"]
    assert ids(ours.twin(), "é<extra_id_124>") == theirs("é<extra_id_124>")["input_ids"]


@pytest.mark.parametrize("skipped", [False, True])
def test_ids_become_the_text_of_transformers_at_once_and_one_by_one(both, skipped):
    """Bytes that do not form a character are dropped."""
    ours, theirs = both
    chosen = random.Random(0)
    for _ in range(200):
        some = [chosen.randrange(384 if chosen.random() < 0.5 else 131) for _ in range(12)]
        some += [byte + 3 for byte in chosen.choice("aé日😀").encode()]
        wanted = theirs.decode(some, skip_special_tokens=skipped)
        assert ours.decode(some, skip_special_tokens=skipped) == wanted
        stream = Detokenizer(ours).start(skip_special_tokens=skipped)
        assert "".join([*map(stream.step, some), stream.flush()]) == wanted


def test_a_part_of_a_character_has_the_text_of_one_that_is_none(both):
    ours, _ = both
    assert ours.token_text(3 + ord("a")) == "a"
    assert ours.token_text(3 + "é".encode()[0]) == "\ufffd"


def test_a_folder_answers_texts_with_texts(tmp_path):
    theirs = transformers.ByT5Tokenizer()
    theirs.save_pretrained(tmp_path)
    model = tiny_seq2seq(tmp_path, "t5", vocab_size=384)
    assert_answers_are_transformers(tmp_path, theirs, model)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"pad_token": "</s>"}, "pad_token"),
        ({"eos_token": "a"}, "eos_token"),
        ({"extra_ids": -1}, "extra_ids"),
        ({"extra_ids": 10**9}, "extra_ids"),
        ({"extra_special_tokens": [3]}, "extra_special_tokens"),
        ({"additional_special_tokens": 5}, "additional_special_tokens"),
        ({"extra_special_tokens": {"image": "<image>"}}, "extra_special_tokens"),
        ({"added_tokens_decoder": {"900": {"content": "<far>"}}}, "added_tokens_decoder"),
    ],
)
def test_what_it_cannot_be_is_refused(tmp_path, config, named):
    with pytest.raises(CheckpointError, match=named):
        written(tmp_path, **config)
