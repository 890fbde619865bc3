"""Tokenising equals transformers' tokenizers: pairs, truncation, special tokens, unusual texts."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
import transformers
from fusewire.errors import CheckpointError, InvalidInput
from fusewire.settings import EngineSettings
from fusewire.tasks.rows import Query, TextRow
from fusewire.tasks.text_encoder import TextEncoder
from fusewire.text.tokenizer import Tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.generating import END, byte_tokenizer
from tests.reference import ARCHITECTURES, SENTENCES
from tests.tasks.deployed import text_request

LONG = " ".join(SENTENCES[:5])


def encode(deployed, row: TextRow, limit: int, **chosen) -> list[int]:
    texts = TextEncoder(
        Tokenizer.load(deployed.folder),
        limit,
        windows=False,
        offsets=False,
        vocab_size=10**6,
        type_vocab_size=2,
    )
    query = Query(EngineSettings(**chosen), [row])
    errors = texts.encode([query])
    if errors:
        raise errors[0]
    return query.tokens[0][0].sequence.input_ids.tolist()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("limit", [5, 6, 17, 40])
def test_truncation_is_that_of_transformers(deploy, architecture, limit):
    deployed = deploy(architecture, "hidden")
    tokenizer = deployed.tokenizer
    for text, pair in [(LONG, None), (LONG, LONG), ("a", LONG), (LONG, "b"), ("a", "b")]:
        wanted = tokenizer(text, pair, truncation=True, max_length=limit)["input_ids"]
        assert encode(deployed, TextRow(text, pair), limit, truncate=True) == wanted


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_one_token_beside_the_special_tokens_is_room_enough_for_a_text(deploy, architecture):
    deployed = deploy(architecture, "hidden")
    tokenizer = deployed.tokenizer
    limit = tokenizer.num_special_tokens_to_add(pair=False) + 1
    wanted = tokenizer(LONG, truncation=True, max_length=limit)["input_ids"]
    assert encode(deployed, TextRow(LONG), limit, truncate=True) == wanted


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("tokenizer_config.json", {"truncation_side": "left"}),
        (
            "tokenizer.json",
            {
                "truncation": {
                    "direction": "Left",
                    "max_length": 7,
                    "strategy": "LongestFirst",
                    "stride": 0,
                }
            },
        ),
    ],
)
def test_truncation_from_the_left_where_the_folder_says_so(deploy, tmp_path, file, values):
    source = deploy("bert", "hidden")
    shutil.copytree(source.folder, tmp_path / "left")
    path = tmp_path / "left" / file
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    deployed = type(source)(tmp_path / "left", "hidden", source.reference, source.engine)
    tokenizer = deployed.tokenizer
    wanted = tokenizer(LONG, truncation=True, max_length=9)["input_ids"]
    assert wanted != source.tokenizer(LONG, truncation=True, max_length=9)["input_ids"]
    assert encode(deployed, TextRow(LONG), 9, truncate=True) == wanted


@settings(max_examples=150)
@given(st.text(max_size=30), st.none() | st.text(max_size=10))
def test_any_text_encodes_as_in_transformers(deploy, text, pair):
    for architecture in ("bert", "roberta", "xlm-roberta"):
        deployed = deploy(architecture, "hidden")
        tokenizer = deployed.tokenizer
        # As lists: otherwise an empty second text would count as none.
        [wanted] = tokenizer([text], None if pair is None else [pair])["input_ids"]
        assert encode(deployed, TextRow(text, pair), 10**6) == wanted


def test_truncation_and_padding_inside_tokenizer_json_are_switched_off(deploy):
    backend = Tokenizer.load(deploy("bert", "hidden").folder).backend
    backend.enable_truncation(max_length=4)
    backend.enable_padding(length=30)
    encoding = Tokenizer(backend, {}).backend.encode(LONG)
    assert len(encoding) > 30
    assert 0 not in encoding.attention_mask


@pytest.mark.parametrize("split", [True, False])
def test_special_tokens_that_a_text_spells_are_split_where_the_folder_says(deploy, tmp_path, split):
    folder = tmp_path / "split"
    shutil.copytree(deploy("bert", "hidden").folder, folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {"split_special_tokens": split}
    path.write_text(json.dumps(config))
    wanted = transformers.AutoTokenizer.from_pretrained(folder)("a [SEP] b").input_ids
    for tokenizer in (Tokenizer.load(folder), Tokenizer.load(folder).twin()):
        [encoding] = tokenizer.encode(["a [SEP] b"], offsets=False)
        assert encoding.ids == wanted
        assert encoding.ids.count(tokenizer.sep_id) == (1 if split else 2)


@pytest.mark.parametrize("named", ["BertTokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize(
    "switches",
    [
        {"do_lower_case": False},
        {"do_lower_case": True},
        {"do_lower_case": True, "strip_accents": False},
        {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": False},
    ],
)
def test_a_bert_folder_may_overrule_its_normaliser(deploy, tmp_path, named, switches):
    folder = tmp_path / "switched"
    shutil.copytree(deploy("bert", "hidden").folder, folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {"tokenizer_class": named} | switches
    path.write_text(json.dumps(config))
    wanted = transformers.AutoTokenizer.from_pretrained(folder)
    got = Tokenizer.load(folder)
    for text in (*SENTENCES, "Straße 日本 Été"):
        [encoding] = got.encode([text], offsets=False)
        assert encoding.ids == wanted(text)["input_ids"]


def test_truncating_one_request_leaves_the_next_alone(deploy):
    deployed = deploy("bert", "hidden")
    short, long_, cut, error = deployed.engine.answer(
        [
            text_request(SENTENCES[0]),
            text_request(LONG, truncate=True, max_length=20),
            text_request(LONG, truncate="true"),
            text_request(LONG, truncate="false"),
        ]
    )
    assert long_["last_hidden_state"].shape[1] == 20
    assert cut["last_hidden_state"].shape[1] == 64
    assert isinstance(error, InvalidInput)
    [alone] = deployed.engine.answer([text_request(SENTENCES[0])])
    np.testing.assert_array_equal(short["last_hidden_state"], alone["last_hidden_state"])


def test_a_deployment_that_truncates_can_be_told_not_to(deploy):
    deployed = deploy("bert", "hidden").with_settings(truncate=True, max_length=16)
    assert deployed.ask(text_request(LONG))["last_hidden_state"].shape[1] == 16
    with pytest.raises(InvalidInput, match="wanted at most 16"):
        deployed.ask(text_request(LONG, truncate=False))


def test_a_text_that_one_tokenizer_cannot_take_is_its_own_error(deploy, tmp_path):
    from fusewire.engine.encoder import EncoderEngine
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers

    folder = tmp_path / "words"
    shutil.copytree(deploy("bert", "hidden").folder, folder)
    # The vocabulary has no [UNK].
    words = Backend(models.WordLevel({"known": 5}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(folder / "tokenizer.json"))
    good, bad, empty = EncoderEngine(folder, "hidden").answer(
        [text_request("known known"), text_request("unknown"), text_request("")]
    )
    assert good["last_hidden_state"].shape[1] == 2
    assert isinstance(bad, InvalidInput)
    assert "a text that the tokenizer refuses" in str(bad)
    assert isinstance(empty, InvalidInput)
    assert "a text without tokens" in str(empty)


def test_a_tokenizer_that_knows_more_than_its_model_harms_no_neighbour(deploy):
    deployed = deploy("bert", "hidden", vocab_size=60)  # its tokenizer has some 300 tokens
    good, bad = deployed.engine.answer([text_request("a b"), text_request("a b the treaty")])
    assert isinstance(good, dict)
    assert isinstance(bad, InvalidInput)
    assert re.search(r"the token '\S+' with id \d+, wanted 0\.\.59, the model's voc", str(bad))


def test_a_panic_inside_the_tokenizer_is_the_texts_own_error(deploy):
    PanicException = type("PanicException", (BaseException,), {})

    class Panicking:
        def encode_batch_fast(self, texts, add_special_tokens):
            if "bad" in texts:
                raise PanicException("no entry found for key")
            return [backend.encode(text) for text in texts]

    tokenizer = Tokenizer.load(deploy("bert", "hidden").folder)
    backend, tokenizer.backend = tokenizer.backend, Panicking()
    texts = TextEncoder(
        tokenizer, 64, windows=False, offsets=False, vocab_size=10**6, type_vocab_size=2
    )
    queries = [Query(EngineSettings(), [TextRow(text)]) for text in ("good", "bad", "fine")]
    errors = texts.encode(queries)
    assert list(errors) == [1]
    assert "refuses (no entry found for key)" in str(errors[1])
    assert len(queries[0].tokens) == len(queries[2].tokens) == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{}", "tokenizer.json: got a file that tokenizers"),
        ("tokenizer.json", "not json", "wanted a fast tokenizer"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json: got a JSON list"),
        ("tokenizer_config.json", '{"model_max_length": "512"}', "model_max_length: got '512'"),
        ("tokenizer_config.json", '{"truncation_side": "up"}', "truncation_side: got 'up'"),
        ("tokenizer_config.json", '{"do_lower_case": "yes"}', "do_lower_case: got 'yes'"),
    ],
)
def test_broken_tokenizer_files_are_named(deploy, tmp_path, name, content, message):
    folder = tmp_path / "broken"
    shutil.copytree(deploy("bert", "hidden").folder, folder)
    (folder / name).write_text(content)
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.load(folder)


def listing(folder, index: int) -> None:
    """Writes a tokenizer, and a configuration that lists a token with this id that the tokenizer
    lacks."""
    byte_tokenizer(folder)
    added = {"content": "<|im_start|>", "special": True, "normalized": False}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {str(index): added},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def test_tokens_that_the_configuration_alone_lists_are_tokens(tmp_path):
    listing(tmp_path, END + 1)
    text, tokenizer = "a<|im_start|>user", Tokenizer.load(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for ours in (tokenizer, tokenizer.twin()):
        (encoding,) = ours.encode([text], offsets=False)
        assert END + 1 in encoding.ids
        assert encoding.ids == theirs(text)["input_ids"]
        assert ours.decode(encoding.ids, skip_special_tokens=True) == "auser"


def test_a_listed_token_of_another_id_is_refused(tmp_path):
    listing(tmp_path, END + 5)
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: added_tokens_decoder: got"):
        Tokenizer.load(tmp_path)


def test_special_tokens_that_no_file_names_are_found_by_their_usual_spelling(deploy):
    for architecture in ("bert", "roberta", "mpnet"):
        deployed = deploy(architecture, "hidden")
        found = Tokenizer(Tokenizer.load(deployed.folder).backend, {})
        tokenizer = deployed.tokenizer
        assert found.mask_id == tokenizer.mask_token_id
        assert found.cls_id == tokenizer.cls_token_id
        assert found.sep_id == tokenizer.sep_token_id
        assert found.pad_id == tokenizer.pad_token_id
        assert found.max_length is None


def test_decoding_cleans_spaces_only_where_the_folder_says_so(deploy):
    backend = Tokenizer.load(deploy("xlm-roberta", "hidden").folder).backend
    ids = backend.encode("ice melts , at zero .", add_special_tokens=False).ids
    assert Tokenizer(backend, {}).decode(ids) == "ice melts , at zero ."
    cleaning = Tokenizer(backend, {"clean_up_tokenization_spaces": True})
    assert cleaning.decode(ids) == "ice melts, at zero."


def test_a_twin_encodes_alike(deploy):
    tokenizer = Tokenizer.load(deploy("bert", "embed").folder)
    tokenizer.lowercase()
    text = " ".join(SENTENCES).upper()
    (ours,), (twins) = (
        each.encode([text], offsets=False) for each in (tokenizer, tokenizer.twin())
    )
    assert ours.ids == twins[0].ids


@pytest.mark.parametrize(
    ("architecture", "task", "field"),
    [
        ("bert", "embed", "text_input"),
        ("roberta", "tag", "text_input"),
        ("bert", "answer", "text_pair"),
    ],
)
def test_a_text_that_is_far_too_long_is_refused_untokenised(
    deploy, monkeypatch, architecture, task, field
):
    deployed = deploy(architecture, task)
    long = "the cat " * 250_000
    request = text_request("who?", pairs=[long]) if field == "text_pair" else text_request(long)

    def never(*texts, **how):
        assert not any(texts)

    monkeypatch.setattr(
        deployed.engine._reader.tokenizer, "encode", lambda texts, **how: [*map(never, texts)]
    )
    [error] = deployed.engine.answer([request])
    assert isinstance(error, InvalidInput)
    assert str(error).startswith(f"{field}: got 2000")
    assert " characters, at least " in str(error)
    assert " tokens, wanted at most " in str(error)
    assert "shorten the " in str(error)
