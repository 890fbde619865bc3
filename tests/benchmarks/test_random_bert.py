"""A checkpoint of random weights is one that the server and transformers take."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import random_bert
from benchmarks.served_requests import Texts


def test_each_word_is_one_token() -> None:
    words = [random_bert.word(number) for number in (0, 1, 26, 30000)]
    assert words == ["aaaaa", "aaaab", "aaaba", "absjw"]
    tokenizer = random_bert.tokenizer()
    encoded = tokenizer.encode("aaaab AAABA")
    assert encoded.tokens == ["[CLS]", "aaaab", "aaaba", "[SEP]"]
    assert tokenizer.get_vocab_size() == random_bert.VOCABULARY


def test_a_folder_is_served_and_its_texts_have_the_tokens_asked_for(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from fusewire.serving import repository

    random_bert.write(tmp_path / "model", "MiniLM-L6")
    entry = repository.import_folder(
        tmp_path / "model", tmp_path / "served", name="m", settings={"task": "embed"}, link=True
    )
    assert (entry / "config.pbtxt").is_file()
    texts, ids = Texts(tmp_path / "model").some(3, 50, 50)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")(texts)["input_ids"]
    assert [len(each) for each in ids] == [50] * 3
    assert theirs == [each.tolist() for each in ids]
