"""Folders with SentencePiece files and no tokenizer.json are tokenised as by transformers."""

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

from tests.reference import tiny_tokenizer
from tests.text.sentencepiece_models import T5_IDS, TEXTS, processor, t5_folder, trained
from tests.text.translation_folders import (
    FAIRSEQ,
    FOLDERS,
    SlowFairseq,
    marian_folder,
    pieces_of,
)

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
SPECIAL = ["</s>", "<pad>", "<unk>", "<mask>", " <mask> ", "<extra_id_0>", ">>fra<<", ">>xx<<"]
SPECIAL += ["__de__", "de_DE", "fra_Latn"]
ODD = " abcdeé½日\u2581\t\n\u00a0\u3000\u200bïA\uff21\uff1ce\u0301\u0323가\u1100\u1161\u11a8\u00b4"
ANY_TEXT = st.lists(st.sampled_from([*ODD, *TEXTS, *SPECIAL]), max_size=8).map("".join)
PLAIN = [*" abcdeé½日", *TEXTS, "</s>", "<pad>", "<unk>", "<extra_id_0>", ">>fra<<", "__de__"]
PLAIN_TEXT = st.lists(st.sampled_from(PLAIN), max_size=8).map("".join)

KEYS = ["src_lang", "eos_token", "mask_token", "added_tokens_decoder", "additional_special_tokens"]
KEYS += ["legacy_behaviour", "extra_special_tokens", "bos_token"]
NAMES = st.sampled_from(["</s>", "<s>", "", " ", "$A", "fr_XX", "\u2581the", "a:1", "<mask>"])
ENTRIES = st.fixed_dictionaries(
    {"content": NAMES | st.integers()}, optional={"special": st.booleans()}
)
VALUES = st.one_of(
    NAMES,
    st.none() | st.booleans() | st.integers() | st.floats(),
    st.lists(NAMES | ENTRIES, max_size=3),
    st.dictionaries(st.integers(-1, 400).map(str) | NAMES, ENTRIES | NAMES, max_size=3),
)


def ids(tokenizer: Tokenizer, *texts: str) -> list[int]:
    text: Any = texts if len(texts) > 1 else texts[0]
    (encoded,) = tokenizer.encode([text], offsets=False)
    assert len(encoded) == len(encoded.ids) == len(encoded.type_ids)
    return encoded.ids


def loaded(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.load(folder)
    assert tokenizer is not None
    return tokenizer


class Both:
    """The tokenizers of one folder, ours and transformers'."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.ours = loaded(folder)
        self.theirs = transformers.AutoTokenizer.from_pretrained(folder)
        (file,) = {*folder.glob("*.model"), *folder.glob("source.spm")}
        self.model = processor(file.read_bytes())
        self.slow = SlowFairseq(self.theirs, self.model) if kind in FAIRSEQ else None

    def wanted(self, text: str) -> list[int]:
        return self.slow.ids(text) if self.slow else list(self.theirs(text)["input_ids"])

    def names(self, of_ids: list[int]) -> list[str]:
        # Its own are those of the target vocabulary.
        if getattr(self.theirs, "separate_vocabs", False):
            pieces = {index: piece for piece, index in self.theirs.encoder.items()}
            return [pieces[index] for index in of_ids]
        return self.theirs.convert_ids_to_tokens(of_ids)

    def check(self, text: str) -> None:
        got, wanted = ids(self.ours, text), self.wanted(text)
        if got != wanted:  # segmentations that are equally good in fp32 may differ
            names = [self.names(each) for each in (got, wanted)]
            assert "".join(names[0]) == "".join(names[1])
            pieces = [map(self.model.piece_to_id, each) for each in names]
            scores = [sum(map(self.model.get_score, each)) for each in pieces]
            rounding = 2.0**-23 * abs(scores[1]) * len(wanted)
            assert abs(scores[0] - scores[1]) <= rounding, (text, got, wanted)


@pytest.fixture(params=FOLDERS, scope="module")
def both(request, tmp_path_factory) -> Both:
    return Both(request.param, FOLDERS[request.param](tmp_path_factory.mktemp("folder")))


@given(st.data())
@settings(max_examples=300)
def test_any_text(both, data):
    both.check(data.draw(PLAIN_TEXT if both.kind == "t5" else ANY_TEXT))


def test_a_text_that_has_two_best_ways(both):
    both.check("ebeee")


def test_most_texts_have_the_same_ids(both):
    """Otherwise the test above could not fail."""
    same = [ids(both.ours, text) == both.wanted(text) for text in TEXTS]
    assert np.mean(same) > 0.9


@given(PLAIN_TEXT, PLAIN_TEXT)
@settings(max_examples=30)
def test_any_pair(both, first, second):
    # transformers treats an empty second text as none, and also reads a language at its beginning.
    if second and "<<" not in first + second:
        if both.slow:  # the fast class may split their texts in another way
            first, second = TEXTS[len(first) % 10], TEXTS[len(second) % 10]
        assert ids(both.ours, first, second) == both.theirs(first, second)["input_ids"]


def test_ids_give_the_text_back(both):
    for text in TEXTS[:16]:
        numbers = both.wanted(text)
        wanted = both.theirs.decode(numbers, skip_special_tokens=True)
        if both.theirs.unk_token_id not in numbers and both.kind != "marian, separate":
            assert both.ours.decode(numbers, skip_special_tokens=True).strip() == wanted
            spelled = both.theirs.convert_ids_to_tokens(numbers)
            assert [both.ours.piece(number) for number in numbers] == spelled


@given(st.data())
@settings(max_examples=200)
def test_any_ids_give_their_text(both, data):
    if both.kind == "t5":
        return
    known = [index for index in range(len(both.theirs)) if both.ours.has(index)]
    few = st.integers(0, 4).map(known.__getitem__)  # special tokens
    numbers = data.draw(st.lists(st.sampled_from(known) | few, max_size=12))
    for skipped in (False, True):
        wanted = both.theirs.decode(numbers, skip_special_tokens=skipped)
        assert both.ours.decode(numbers, skip_special_tokens=skipped) == wanted


def test_each_piece_alone_has_the_text_that_transformers_gives_it(tmp_path):
    """All spaces of the first piece are removed, also those inside."""
    FOLDERS["mbart"](tmp_path)
    model = trained(split_by_whitespace=False)
    (tmp_path / "sentencepiece.bpe.model").write_bytes(model)
    ours, theirs = loaded(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert any("\u2581" in piece[1:] for piece in pieces_of(model))
    for index in range(len(theirs)):
        assert ours.decode([index]) == theirs.decode([index])


def test_roles_and_special_tokens(both):
    ours, theirs = both.ours, both.theirs
    assert ours.pad_id == theirs.pad_token_id
    assert ours.unk_id == theirs.unk_token_id
    assert ours.mask_id == (theirs.convert_tokens_to_ids("<mask>") if theirs.mask_token else None)
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
    # Any number of unknown characters is one token.
    assert twin.least_tokens.of("a" * 100_000, 10) == 0


def test_texts_and_ids_of_the_endpoint(both):
    processor = TextProcessor(both.ours, None, 64)
    numbers = processor.ids("prompt", "Paris is", special_tokens=False)
    known = [number for number in numbers if number != both.theirs.unk_token_id]
    assert processor.text("tokens", known).strip() == both.theirs.decode(known)
    with pytest.raises(InvalidInput, match="id 99999"):
        processor.text("tokens", [99999])


def test_a_language_that_the_model_does_not_know_is_unknown(tmp_path):
    marian = Both("marian", marian_folder(tmp_path))
    for text in (">>fra<< Hello", ">>fra<<Hello", ">>xyz<< Hello", ">><<", ">>a", "Hello >>fra<<"):
        assert ids(marian.ours, text) == marian.theirs(text)["input_ids"], text


@pytest.mark.parametrize("kind", ["marian", "marian, separate"])
def test_texts_of_the_other_language_are_cut_into_its_pieces(tmp_path, kind):
    theirs = transformers.AutoTokenizer.from_pretrained(FOLDERS[kind](tmp_path))
    target = Tokenizer.load_target(tmp_path)
    assert target is not None
    for text in (*TEXTS, ">>fra<< Hello"):
        assert ids(target, text) == theirs(text_target=text)["input_ids"]
    (tmp_path / "target.spm").unlink()
    with pytest.raises(CheckpointError, match=r"target\.spm: missing"):
        Tokenizer.load_target(tmp_path)


def test_texts_of_one_vocabulary_are_cut_in_one_way(tmp_path):
    target = Tokenizer.load_target(FOLDERS["nllb"](tmp_path))
    assert target is not None
    assert ids(target, TEXTS[0]) == ids(loaded(tmp_path), TEXTS[0])


def test_ids_of_another_vocabulary_have_its_special_tokens(tmp_path):
    """<pad> is last on each side; transformers takes the source's for that of the target."""
    FOLDERS["marian, separate"](tmp_path)
    pads = []
    for name in ("vocab", "target_vocab"):
        path = tmp_path / f"{name}.json"
        names = [each for each in json.loads(path.read_text()) if each != "<pad>"]
        path.write_text(json.dumps({each: i for i, each in enumerate([*names, "<pad>"])}))
        pads.append(len(names))
    assert pads[0] < pads[1]
    ours = loaded(tmp_path)
    assert ours.pad_id == pads[0]
    assert ours.decode([pads[0]], True) == ours.piece(pads[0]).replace("\u2581", " ").strip() != ""
    assert ours.decode([pads[1]], True) == ""


def test_the_class_or_else_the_model_type_says_what_the_files_are(tmp_path):
    t5_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    assert Tokenizer.load(tmp_path) is None  # no model type
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


CONFIG = "tokenizer_config.json"


def listed(content: str, index: int) -> dict[str, Any]:
    return {"added_tokens_decoder": {str(index): {"content": content}}}


@pytest.mark.parametrize(
    ("folder", "file", "change", "message"),
    [
        ("t5", CONFIG, {"extra_ids": -1}, "extra_ids: got -1, wanted"),
        ("t5", CONFIG, {"extra_ids": 10**9}, "extra_ids: got"),
        ("t5", CONFIG, {"eos_token": "<end>"}, "eos_token: got '<end>'"),
        ("t5", CONFIG, {"added_tokens_decoder": {"1": 2}}, "added_tokens_decoder"),
        ("marian", "vocab.json", {"a": -1}, "vocab.json: wanted ids by token"),
        ("marian", "vocab.json", {"<unk>": ...}, "unk_token: got '<unk>', wanted a token of"),
        ("marian", "vocab.json", None, "vocab.json: missing"),
        (
            "marian",
            CONFIG,
            {"separate_vocabs": True},
            "target_vocab.json: missing",
        ),
        ("marian, separate", "target_vocab.json", {"</s>": ...}, "eos_token: got '</s>', wanted a"),
        ("marian, separate", "target_vocab.json", {"a": "b"}, "target_vocab.json: wanted ids by"),
        ("marian, separate", "target.spm", None, "target.spm: missing"),
        ("nllb", CONFIG, {"eos_token": "<end>"}, "eos_token: got '<end>'"),
        ("nllb", CONFIG, {"tokenizer_class": "M2M100Tokenizer"}, "vocab.json: mi"),
        (
            "mbart",
            CONFIG,
            {"added_tokens_decoder": {"7": 3}},
            "added_tokens_decoder: got",
        ),
        ("mbart", CONFIG, listed("x", 0), "added_tokens_decoder: got .+ once"),
        ("mbart", CONFIG, listed("", 9999), "special tokens without a character"),
        (
            "mbart",
            CONFIG,
            listed("x", -1),
            "added_tokens_decoder: got \"-1 for 'x'",
        ),
        ("mbart", CONFIG, listed("x", 1 << 40), "added_tokens_decoder: got"),
        ("t5", CONFIG, listed("</s>", 9), "got \"9 for '</s>'\", wanted 1, as in"),
        (
            "t5",
            CONFIG,
            {"additional_special_tokens": ["<x>"]},
            "got '<x>', wanted",
        ),
        ("m2m_100", CONFIG, {"language_codes": ["x"]}, "wanted m2m100 or wmt21"),
        ("m2m_100", CONFIG, {"src_lang": "xx"}, "src_lang: got 'xx'"),
        (
            "m2m_100",
            CONFIG,
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


@pytest.mark.parametrize("names", [[f"<{n}>" for n in range(1 << 15)], ["x" * (1 << 20)]])
def test_many_added_tokens_are_refused(tmp_path, names):
    added = {str(10_000 + index): {"content": name} for index, name in enumerate(names)}
    FOLDERS["mbart"](tmp_path, added_tokens_decoder=added)
    with pytest.raises(CheckpointError, match=r"got \d+ added tokens of \d+ characters, with"):
        Tokenizer.load(tmp_path)
    path = marian_folder(tmp_path / "marian") / "vocab.json"
    codes = {f">>{name}<<": index for index, name in enumerate(names)}
    path.write_text(json.dumps(json.loads(path.read_text()) | codes))
    with pytest.raises(CheckpointError, match=r"got \d+ added tokens of \d+ characters, with"):
        Tokenizer.load(path.parent)


@pytest.mark.parametrize("kind", FAIRSEQ)
def test_pieces_of_another_class_are_refused(tmp_path, kind):
    FOLDERS[kind](tmp_path)
    (tmp_path / "sentencepiece.bpe.model").write_bytes(trained(**T5_IDS))
    with pytest.raises(CheckpointError, match=r"got the pieces .+ wanted <unk>, <s> and </s>"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_damaged_file_of_pieces_is_refused(tmp_path, kind):
    FOLDERS[kind](tmp_path)
    for path in {*tmp_path.glob("*.model"), *tmp_path.glob("target.spm")}:
        for data in (b"", b"version https://git-lfs", path.read_bytes()[:-9], b"\0" * (9 << 20)):
            whole = path.read_bytes()
            path.write_bytes(data)
            for load in (Tokenizer.load, Tokenizer.load_target):
                if path.name != "target.spm" or load is Tokenizer.load_target:
                    with pytest.raises(CheckpointError, match=path.name):
                        load(tmp_path)
            path.write_bytes(whole)


def read_or_refused(folder, values):
    FOLDERS["mbart50"](folder, **values)
    try:
        tokenizer = Tokenizer.load(folder)
    except CheckpointError:
        return
    assert tokenizer is not None
    ids(tokenizer, TEXTS[0])


CONFIGURATIONS = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4)


@given(CONFIGURATIONS)
@settings(max_examples=60)
def test_any_configuration_is_read_or_refused(tmp_path_factory, values):
    read_or_refused(tmp_path_factory.mktemp("folder"), values)


@pytest.mark.sweep
@given(CONFIGURATIONS)
@settings(max_examples=200)
def test_any_of_many_configurations_is_read_or_refused(tmp_path_factory, values):
    read_or_refused(tmp_path_factory.mktemp("folder"), values)
