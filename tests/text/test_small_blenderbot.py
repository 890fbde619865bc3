"""The small Blenderbot's folders, which have no tokenizer.json, are tokenised as by
transformers."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from fusewire.errors import CheckpointError
from fusewire.serving.served_files import descriptions
from fusewire.text.detokenizer import Detokenizer
from fusewire.text.tokenizer import Tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.tiny_seq2seq import tiny_seq2seq
from tests.text.answering_folders import assert_answers_are_transformers
from tests.text.sentencepiece_models import TEXTS

SPECIAL = ["__null__", "__start__", "__end__", "__unk__", "__newln__"]
ODD = [*" '.,!?()\n\t@\x1c\u00a0ΣİX", "@@", "''\n", "don't ", "it's\n", "(Hi)!?\n\n", "__NewLn__"]
ANY_TEXT = st.lists(st.sampled_from([*ODD, *TEXTS, *SPECIAL]), max_size=8).map("".join)


@cache
def trained() -> tuple[dict[str, int], list[str]]:
    """Returns a vocabulary without every seventh piece, including pieces that others are merged
    from, and the lines of merges.txt."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(end_of_word_suffix="</w>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600, end_of_word_suffix="</w>", show_progress=False
    )
    backend.train_from_iterator([text.lower() for text in TEXTS], trainer)
    pieces = sorted(backend.get_vocab())
    ends = "</w>"
    names = [p.removesuffix(ends) if p.endswith(ends) else f"{p}@@" for p in pieces]
    kept = [name for index, name in enumerate(names) if index % 7]
    merges = json.loads(backend.to_str())["model"]["merges"]
    ids = {name: index for index, name in enumerate(dict.fromkeys([*SPECIAL, *kept]))}
    return ids, ["#version: 0.2", *(" ".join(pair) for pair in merges), "too many parts", ""]


def written(folder: Path, **config: Any) -> Path:
    vocabulary, merges = trained()
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("\n".join(merges))
    values = {"tokenizer_class": "BlenderbotSmallTokenizer"} | config
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    return folder


def loaded(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.load(folder)
    assert tokenizer is not None
    return tokenizer


def ids(tokenizer: Tokenizer, text: str | tuple[str, str]) -> list[int]:
    return list(tokenizer.encode([text], offsets=False)[0].ids)


@pytest.fixture(scope="module", params=["published", "saved"])
def both(request, tmp_path_factory) -> tuple[Tokenizer, Any]:
    folder = written(tmp_path_factory.mktemp("folder"))
    theirs = transformers.BlenderbotSmallTokenizer.from_pretrained(folder)
    if request.param == "saved":
        theirs.add_tokens(["<new>"])
        theirs.save_pretrained(folder)
        theirs = transformers.BlenderbotSmallTokenizer.from_pretrained(folder)
    return loaded(folder), theirs


@given(ANY_TEXT)
@settings(max_examples=300)
def test_any_text(both, text):
    ours, theirs = both
    assert ids(ours, text) == theirs(text)["input_ids"]


def test_texts_are_cut_into_more_than_unknown_tokens(both):
    """Otherwise the test above could not fail."""
    ours, theirs = both
    cut = [token for text in TEXTS for token in ids(ours, text)]
    assert 0 < cut.count(theirs.unk_token_id) < len(cut) / 2
    assert ids(ours.twin(), TEXTS[0]) == ids(ours, TEXTS[0])
    assert ids(ours, ("Hi", "you")) == theirs("Hi", "you")["input_ids"]
    assert ours.added_tokens(pair=False) == 0
    assert ours.special_ids == {*theirs.all_special_ids}


def test_an_added_token_is_one(both):
    ours, theirs = both
    if "<new>" in theirs.get_vocab():
        assert ids(ours, "a <new> b")[1] == len(trained()[0])
    assert ids(ours, "a <new> b") == theirs("a <new> b")["input_ids"]


@given(st.data(), st.booleans())
@settings(max_examples=200)
def test_any_ids_give_their_text_at_once_and_one_by_one(both, data, skipped):
    ours, theirs = both
    numbers = data.draw(st.lists(st.integers(0, len(theirs) - 1), max_size=12))
    wanted = theirs.decode(numbers, skip_special_tokens=skipped)
    assert ours.decode(numbers, skip_special_tokens=skipped) == wanted
    stream = Detokenizer(ours).start(skip_special_tokens=skipped)
    assert "".join([*map(stream.step, numbers), stream.flush()]) == wanted


def test_a_folder_answers_texts_with_texts(tmp_path):
    theirs = transformers.BlenderbotSmallTokenizer.from_pretrained(written(tmp_path))
    model = tiny_seq2seq(tmp_path, "blenderbot-small", vocab_size=len(theirs))
    assert {"vocab.json", "merges.txt"} <= {*descriptions(tmp_path)}
    assert_answers_are_transformers(tmp_path, theirs, model)


@pytest.mark.parametrize(
    ("file", "text", "named"),
    [
        ("vocab.json", "{}", "vocab.json"),
        ("vocab.json", '{"a": "b"}', "vocab.json"),
        ("vocab.json", '{"a": 1}', "tokenizer_config.json: bos_token"),
        ("merges.txt", None, "merges.txt: missing"),
        ("merges.txt", b"\xff", "merges.txt"),
    ],
)
def test_damaged_files_are_refused(tmp_path, file, text, named):
    path = written(tmp_path) / file
    path.unlink()
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(CheckpointError, match=named):
        Tokenizer.load(tmp_path)
