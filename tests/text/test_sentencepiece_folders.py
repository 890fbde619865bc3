"""Folders with SentencePiece files and no tokenizer.json are tokenised as transformers does it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from fusewire.errors import CheckpointError, InvalidInput
from fusewire.text.text_processor import TextProcessor
from fusewire.text.tokenizer import Tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.m2m_100 import tokenization_m2m_100

from tests.reference import tiny_tokenizer
from tests.text.sentencepiece_models import T5_IDS, TEXTS, processor, t5_folder, trained

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
PIECES = st.sampled_from(
    [*" abcdeé½日", *TEXTS, "</s>", "<pad>", "<unk>", "<extra_id_0>", ">>fra<<", ">>xx<<", "__de__"]
)
ANY_TEXT = st.lists(PIECES, max_size=8).map("".join)


def ids(tokenizer: Tokenizer, *texts: str) -> list[int]:
    text: Any = texts if len(texts) > 1 else texts[0]
    (encoded,) = tokenizer.encode([text], offsets=False)
    assert len(encoded) == len(encoded.ids) == len(encoded.type_ids)
    return encoded.ids


def loaded(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.load(folder)
    assert tokenizer is not None
    return tokenizer


def pieces_of(model: bytes) -> list[str]:
    theirs = processor(model)
    return [theirs.id_to_piece(index) for index in range(theirs.get_piece_size())]


def vocabulary(names: list[str], *ends: str) -> dict[str, int]:
    """Ids in another order than the file's; every seventh piece has none."""
    kept = [name for index, name in enumerate(names) if index % 7 or name.startswith("<")]
    shuffled = np.random.default_rng(0).permutation(kept).tolist()
    return {name: index for index, name in enumerate([*shuffled, *ends])}


def marian_folder(folder: Path) -> Path:
    source, target = trained(), trained(model_type="bpe")
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)
    names = list(dict.fromkeys([*pieces_of(source), *pieces_of(target)]))
    ids = vocabulary(names, ">>fra<<", ">>deu_Latn<<", "<pad>")
    (folder / "vocab.json").write_text(json.dumps(ids))
    (folder / "tokenizer_config.json").write_text(json.dumps({"source_lang": "eng"}))
    (folder / "config.json").write_text(json.dumps({"model_type": "marian"}))
    return folder


def m2m_100_folder(folder: Path) -> Path:
    model = trained(model_type="bpe")
    (folder / "sentencepiece.bpe.model").write_bytes(model)
    (folder / "vocab.json").write_text(json.dumps(vocabulary(pieces_of(model), "<pad>")))
    codes = tokenization_m2m_100.FAIRSEQ_LANGUAGE_CODES["m2m100"]
    config = {
        "tokenizer_class": "M2M100Tokenizer",
        "src_lang": "de",
        "additional_special_tokens": [f"__{code}__" for code in codes],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


FOLDERS = {"t5": t5_folder, "marian": marian_folder, "m2m_100": m2m_100_folder}


class Both:
    """The tokenizers of one folder, ours and transformers'."""

    def __init__(self, folder: Path) -> None:
        self.ours = loaded(folder)
        self.theirs = transformers.AutoTokenizer.from_pretrained(folder)


@pytest.fixture(params=FOLDERS, scope="module")
def both(request, tmp_path_factory) -> Both:
    return Both(FOLDERS[request.param](tmp_path_factory.mktemp("folder")))


@given(ANY_TEXT)
@settings(max_examples=300, deadline=None)
def test_any_text(both, text):
    assert ids(both.ours, text) == both.theirs(text)["input_ids"]


@given(ANY_TEXT, ANY_TEXT)
@settings(max_examples=30, deadline=None)
def test_any_pair(both, first, second):
    # transformers takes an empty second for none, and reads a language in front of it, too.
    if second and "<<" not in first + second:
        assert ids(both.ours, first, second) == both.theirs(first, second)["input_ids"]


def test_ids_give_the_text_back(both):
    for text in TEXTS[:16]:
        numbers = both.theirs(text)["input_ids"]
        wanted = both.theirs.decode(numbers, skip_special_tokens=True)
        if both.theirs.unk_token_id not in numbers:
            assert both.ours.decode(numbers, skip_special_tokens=True).strip() == wanted
        spelled = both.theirs.convert_ids_to_tokens(numbers)
        assert [both.ours.piece(number) for number in numbers] == spelled


def test_roles_and_special_tokens(both):
    ours, theirs = both.ours, both.theirs
    assert ours.pad_id == theirs.pad_token_id
    assert ours.unk_id == theirs.unk_token_id
    assert ours.mask_id is None
    assert ours.special_ids == {*theirs.all_special_ids}
    assert ours.added_tokens(pair=False) == len(theirs("")["input_ids"])


@pytest.mark.parametrize("most", [3, 9, 500])
def test_truncation(both, most):
    text = " ".join(TEXTS[:4])
    cut = {"max_length": most, "stride": 0, "strategy": "longest_first", "direction": "right"}
    (encoded,) = both.ours.encode([text], offsets=False, cut=cut)
    assert encoded.ids == both.theirs(text, truncation=True, max_length=most)["input_ids"]
    both.theirs.truncation_side = "left"
    wanted = both.theirs(text, truncation=True, max_length=most)["input_ids"]
    both.theirs.truncation_side = "right"
    assert both.ours.last_tokens(text, most, special_tokens=True) == wanted


def test_a_twin_and_lower_case(both):
    twin = both.ours.twin()
    for text in TEXTS:
        assert ids(twin, text) == ids(both.ours, text)
    twin.lowercase()
    assert ids(twin, "WHERE was It?") == ids(both.ours, "where was it?")
    assert ids(both.ours, "WHERE") != ids(twin, "WHERE")
    assert twin.least_tokens.of("a" * 100_000, 10) == 0  # any number of unknown ones is one token


def test_texts_and_ids_of_the_endpoint(both):
    processor = TextProcessor(both.ours, None, 64)
    numbers = processor.ids("prompt", "Paris is", special_tokens=False)
    known = [number for number in numbers if number != both.theirs.unk_token_id]
    assert processor.text("tokens", known).strip() == both.theirs.decode(known)
    with pytest.raises(InvalidInput, match="id 99999"):
        processor.text("tokens", [99999])


def test_a_language_that_the_model_does_not_know_is_unknown(tmp_path):
    marian = Both(marian_folder(tmp_path))
    for text in (">>fra<< Hello", ">>fra<<Hello", ">>xyz<< Hello", ">><<", ">>a", "Hello >>fra<<"):
        assert ids(marian.ours, text) == marian.theirs(text)["input_ids"], text


def test_the_class_or_else_the_model_type_says_what_the_files_are(tmp_path):
    t5_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    assert Tokenizer.load(tmp_path) is None  # of what model?
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mt5"}))
    assert loaded(tmp_path).has(trained_size() + 99)
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "MT5Tokenizer", "extra_ids": 0})
    )
    assert not loaded(tmp_path).has(trained_size())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "XLNetTokenizer"})
    )
    assert Tokenizer.load(tmp_path) is None


def trained_size() -> int:
    return len(pieces_of(trained(**T5_IDS)))


def test_tokenizer_json_goes_before(tmp_path):
    t5_folder(tmp_path)
    tiny_tokenizer("wordpiece").save(str(tmp_path / "tokenizer.json"))
    assert loaded(tmp_path).mask_id is not None


@pytest.mark.parametrize(
    ("folder", "file", "change", "message"),
    [
        ("t5", "tokenizer_config.json", {"extra_ids": -1}, "extra_ids: got -1, wanted"),
        ("t5", "tokenizer_config.json", {"extra_ids": 10**9}, "extra_ids: got"),
        ("t5", "tokenizer_config.json", {"eos_token": "<end>"}, "eos_token: got '<end>'"),
        ("t5", "tokenizer_config.json", {"added_tokens_decoder": {"1": 2}}, "added_tokens_decoder"),
        ("marian", "vocab.json", {"a": -1}, "vocab.json: wanted ids by token"),
        ("marian", "vocab.json", {"<unk>": ...}, "unk_token: got '<unk>', wanted a token of"),
        ("marian", "vocab.json", None, "vocab.json: missing"),
        ("m2m_100", "tokenizer_config.json", {"src_lang": "xx"}, "src_lang: got 'xx'"),
        (
            "m2m_100",
            "tokenizer_config.json",
            {"additional_special_tokens": 3, "extra_special_tokens": ...},
            "additional_special_tokens: got 3",
        ),
    ],
)
def test_a_damaged_folder_is_refused(tmp_path, folder, file, change, message):
    path = FOLDERS[folder](tmp_path) / file
    if change is None:
        path.unlink()
    else:
        values = json.loads(path.read_text()) | change
        path.write_text(json.dumps({k: v for k, v in values.items() if v is not ...}))
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.load(tmp_path)
