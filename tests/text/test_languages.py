"""Languages chosen by a request, against transformers' tokenizers set to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import transformers
from fusewire.errors import CheckpointError, InvalidInput
from fusewire.text.languages import Languages
from fusewire.text.tokenizer import Tokenizer
from tokenizers.processors import TemplateProcessing

from tests.reference import tiny_tokenizer
from tests.text.sentencepiece_models import t5_folder
from tests.text.translation_folders import (
    FAIRSEQ,
    m2m_100_folder,
    marian_folder,
    plbart_folder,
)

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
TEXT = "Paris is the capital of France."


def fast_folder(kind: str, folder: Path, **config: Any) -> Path:
    """Writes the same tokenizer with tokenizer.json only, as transformers saves it."""
    theirs = transformers.AutoTokenizer.from_pretrained(FAIRSEQ[kind](folder / kind, **config))
    theirs.save_pretrained(folder)
    return folder


def loaded(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.load(folder)
    assert tokenizer is not None
    return tokenizer


# By name: the folder, two of its languages, and the position of the source's token.
CASES: dict[str, tuple[Callable[..., Path], tuple[str, str], str]] = {
    "nllb": (FAIRSEQ["nllb"], ("fra_Latn", "zho_Hans"), "front"),
    "nllb, legacy": (partial(FAIRSEQ["nllb"], legacy_behaviour=True), ("fra_Latn",) * 2, "back"),
    "mbart": (FAIRSEQ["mbart"], ("ro_RO", "zh_CN"), "back"),
    "mbart50": (FAIRSEQ["mbart50"], ("ro_RO", "sl_SI"), "front"),
    "m2m_100": (m2m_100_folder, ("fr", "ast"), "front"),
    "nllb, fast": (partial(fast_folder, "nllb"), ("fra_Latn", "zho_Hans"), "front"),
    "nllb, fast, legacy": (
        partial(fast_folder, "nllb", legacy_behaviour=True),
        ("fra_Latn", "zho_Hans"),
        "back",
    ),
    "mbart, fast": (partial(fast_folder, "mbart"), ("ro_RO", "zh_CN"), "back"),
    "mbart50, fast": (partial(fast_folder, "mbart50"), ("ro_RO", "sl_SI"), "front"),
    "mbart50, fast, French": (
        partial(fast_folder, "mbart50", src_lang="fr_XX"),
        ("ro_RO", "sl_SI"),
        "front",
    ),
}


@pytest.fixture(params=CASES, scope="module")
def case(request, tmp_path_factory) -> tuple[Tokenizer, Any, tuple[str, str], str]:
    make, languages, at = CASES[request.param]
    folder = make(tmp_path_factory.mktemp("folder"))
    return loaded(folder), transformers.AutoTokenizer.from_pretrained(folder), languages, at


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode([text], offsets=False)[0].ids)


def test_a_source_is_marked_with_its_language(case):
    ours, theirs, languages, at = case
    plain = ids(ours, TEXT)
    # In the folder's language, or the default of the class.
    assert plain == theirs(TEXT)["input_ids"]
    assert ours.languages.source_at == at
    assert ours.languages.default_source == theirs.src_lang
    before = theirs.src_lang
    for language in (*languages, before):
        theirs.src_lang = language
        assert ours.languages.source_ids(plain, language) == theirs(TEXT)["input_ids"]
    assert ours.languages.source_ids(plain) == plain
    assert ours.twin().languages == ours.languages


def test_a_target_is_the_first_token_of_the_answer(case):
    ours, theirs, languages, _ = case
    for language in languages:
        inputs = theirs._build_translation_inputs(
            [TEXT], return_tensors=None, src_lang=theirs.src_lang, tgt_lang=language
        )
        wanted = {"forced_bos_token_id": inputs["forced_bos_token_id"]}
        assert ours.languages.target_start(language) == wanted
        assert ours.languages.target_start(language, 2) == wanted
        assert ours.languages.source_ids([5, 6], target_lang=language) == [5, 6]


def test_an_answer_that_starts_with_a_language_starts_with_another(case):
    ours, theirs, languages, _ = case
    first, second = (theirs.convert_tokens_to_ids(token) for token in tokens(theirs, *languages))
    assert ours.languages.target_start(languages[1], first) == {"decoder_start_token_id": second}


def tokens(theirs: Any, *languages: str) -> list[str]:
    python = isinstance(theirs, transformers.M2M100Tokenizer)
    return [f"__{language}__" if python else language for language in languages]


def test_all_languages_are_known(case):
    ours, theirs, _, _ = case
    count = {"N": 202, "M": 25, "M50": 52, "M2": 100}
    kind = type(theirs).__name__
    wanted = count[
        "N" if "Nllb" in kind else "M50" if "50" in kind else "M2" if "2M" in kind else "M"
    ]
    assert len(ours.languages.codes) == wanted
    for code, index in ours.languages.ids.items():
        assert [theirs.convert_ids_to_tokens(index)] == tokens(theirs, code)


@pytest.mark.parametrize("language", ["", "fr", "__fr__", ">>fra<<", "eng_latn", "x" * 100_000])
def test_a_language_that_is_unknown_is_refused(tmp_path, language):
    languages = loaded(FAIRSEQ["nllb"](tmp_path)).languages
    wanted = "wanted one of the model's 202 languages, as [a-z]{3}_[A-Z]"
    for call in (
        partial(languages.source_ids, [1], language),
        partial(languages.source_ids, [1], None, language),
        partial(languages.target_start, language),
    ):
        with pytest.raises(InvalidInput, match=wanted) as refused:
            call()
        assert len(str(refused.value)) < 300
    with pytest.raises(InvalidInput, match=r"^source_lang: got 'fra', .+fra_Latn"):
        languages.source_ids([1], "fra")


def test_ids_without_a_language_are_refused(tmp_path):
    languages = loaded(FAIRSEQ["mbart"](tmp_path)).languages
    for numbers in ([], [5, 2]):
        with pytest.raises(InvalidInput, match="source_lang: got 'ro_RO' for tokens that have no"):
            languages.source_ids(numbers, "ro_RO")


def test_marian_reads_the_target_in_front_of_the_source(tmp_path):
    ours = loaded(marian_folder(tmp_path))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert ours.languages.codes == ["deu_Latn", "fra"]
    # The second has a language, which the request's precedes.
    for text in (TEXT, ">>deu_Latn<< " + TEXT):
        marked = ours.languages.source_ids(ids(ours, text), target_lang="fra")
        assert marked == theirs(">>fra<< " + TEXT)["input_ids"]
        assert len(marked) - len(ids(ours, TEXT)) == 1
    assert ours.languages.target_start("fra") == {}
    with pytest.raises(InvalidInput, match="as deu_Latn, fra; send"):
        ours.languages.target_start("xx")
    with pytest.raises(InvalidInput, match=r"source_lang: got 'fra', wanted none: .+leave out"):
        ours.languages.source_ids([1], "fra")


@pytest.mark.parametrize(
    ("config", "default", "known"),
    [
        ({}, None, 3),
        ({"src_lang": "python"}, "python", 3),
        ({"src_lang": "__en_XX__"}, "en_XX", 3),  # as saved by transformers
        ({"language_codes": "multi"}, "en_XX", 7),
        ({"language_codes": "multi", "src_lang": "java"}, "java", 7),
    ],
)
def test_plbart_marks_a_source_that_has_a_language(tmp_path, config, default, known):
    """Models of one language pair have no default language."""
    ours = loaded(plbart_folder(tmp_path, **config))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    plain = ids(ours, TEXT)
    assert plain == theirs(TEXT)["input_ids"]
    assert ours.languages.default_source == default
    assert len(ours.languages.codes) == known
    for language in ours.languages.codes:
        theirs.src_lang = language
        wanted = theirs(TEXT)["input_ids"]
        assert ours.languages.source_ids(plain, language) == wanted
        assert ours.languages.source_ids(wanted, language) == wanted
        token = theirs.convert_tokens_to_ids(f"__{language}__")
        assert ours.languages.target_start(language) == {"forced_bos_token_id": token}
    with pytest.raises(InvalidInput, match="source_lang: got 'cobol'"):
        ours.languages.source_ids(plain, "cobol")


@pytest.mark.parametrize("config", [{"language_codes": "all"}, {"src_lang": "cobol"}])
def test_languages_that_plbart_has_not_are_refused(tmp_path, config):
    with pytest.raises(CheckpointError, match=f"{next(iter(config))}: got"):
        loaded(plbart_folder(tmp_path, **config))


@pytest.mark.parametrize(
    ("tokens", "wanted"),
    [
        ("mbart", "a language of the model, as ar_AR, .+; correct the file"),
        (
            "t5",
            "none, as the tokenizer has no language tokens; remove it, or correct tokenizer_class",
        ),
    ],
)
def test_a_language_of_the_folder_that_no_token_is_is_the_fault_named(tmp_path, tokens, wanted):
    """tokenizer.json itself can be read."""
    written = FAIRSEQ["mbart"] if tokens == "mbart" else t5_folder
    theirs = transformers.AutoTokenizer.from_pretrained(written(tmp_path / tokens))
    theirs.save_pretrained(tmp_path)
    config = {"tokenizer_class": "MBartTokenizer", "src_lang": "cobol"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    fault = f"^tokenizer_config.json: src_lang: got 'cobol', wanted {wanted}$"
    with pytest.raises(CheckpointError, match=fault):
        loaded(tmp_path)


def test_a_model_without_languages_refuses_them(tmp_path):
    languages = loaded(t5_folder(tmp_path)).languages
    assert languages == Languages()
    assert languages.source_ids([1, 2]) == [1, 2]
    for call in (partial(languages.source_ids, [1]), languages.target_start):
        with pytest.raises(InvalidInput, match=r"got 'fra', wanted none: .+; leave out"):
            call("fra")


def test_published_files_of_nllb_have_the_language_at_the_wrong_end(tmp_path):
    """Their tokenizer.json is older than the class, and has it after the text."""
    fast_folder("nllb", tmp_path)
    path = tmp_path / "tokenizer.json"
    older, newer = tmp_path / "older", tmp_path / "tokenizer_config.json"
    fast_folder("nllb", older, legacy_behaviour=True)
    path.write_bytes((older / "tokenizer.json").read_bytes())
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = loaded(tmp_path)
    assert ids(ours, TEXT) == theirs(TEXT)["input_ids"]
    assert ids(ours, TEXT)[0] == ours.languages.ids["eng_Latn"]
    # For another class the file's position is used.
    newer.write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    ours = loaded(tmp_path)
    assert ids(ours, TEXT)[-1] == ours.languages.ids["eng_Latn"]
    assert ours.languages.source_at == "back"
    assert (
        ours.languages.source_ids(ids(ours, TEXT), "fra_Latn")[-1] == ours.languages.ids["fra_Latn"]
    )


def test_languages_that_a_folder_adds(tmp_path):
    FAIRSEQ["nllb"](tmp_path)
    path = tmp_path / "tokenizer_config.json"
    values = json.loads(path.read_text())
    after = max(map(int, values["added_tokens_decoder"])) + 1
    values["added_tokens_decoder"][str(after)] = {"content": "tyv_Cyrl", "special": True}
    path.write_text(json.dumps(values | {"src_lang": "tyv_Cyrl"}))
    ours = loaded(tmp_path)
    assert ours.languages.ids["tyv_Cyrl"] == after
    assert ids(ours, TEXT)[0] == after


def test_a_folder_may_list_other_ids_of_languages(tmp_path):
    """transformers 4 made such ids from NLLB's pieces only: <mask> precedes the languages."""
    FAIRSEQ["nllb"](tmp_path)
    path = tmp_path / "tokenizer_config.json"
    values = json.loads(path.read_text())
    added = values["added_tokens_decoder"]
    names = [added[str(index)] for index in sorted(map(int, added))]
    places = sorted(map(int, added))
    moved = [*names[:4], names[-1], *names[4:-1]]
    values["added_tokens_decoder"] = dict(zip(map(str, places), moved, strict=True))
    path.write_text(json.dumps(values))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = loaded(tmp_path)
    assert ours.mask_id == theirs.mask_token_id == places[4]
    assert ids(ours, TEXT) == theirs(TEXT)["input_ids"]
    assert ours.languages.ids["ace_Arab"] == places[5]


def test_without_a_list_the_languages_stand_behind_the_pieces(tmp_path):
    FAIRSEQ["nllb"](tmp_path)
    listed = loaded(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "NllbTokenizer"}')
    assert loaded(tmp_path).languages == listed.languages
    assert loaded(tmp_path).mask_id == listed.mask_id


@pytest.mark.parametrize("kind", ["nllb", "mbart50", "m2m_100"])
def test_a_language_of_the_folder_that_the_model_does_not_know(tmp_path, kind):
    make = m2m_100_folder if kind == "m2m_100" else FAIRSEQ[kind]
    for wrong in ("xx", 3):
        with pytest.raises(CheckpointError, match=r"src_lang: got .+, wanted a language of"):
            Tokenizer.load(make(tmp_path, src_lang=wrong))


def test_special_tokens_of_other_models_are_no_languages(tmp_path):
    backend = tiny_tokenizer("wordpiece")
    backend.add_special_tokens(["en_XX", "__en__"])
    backend.save(str(tmp_path / "tokenizer.json"))
    assert loaded(tmp_path).languages == Languages()
    index = backend.token_to_id("__en__")
    backend.post_processor = TemplateProcessing(
        single="__en__ $A", special_tokens=[("__en__", index)]
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    assert loaded(tmp_path).languages == Languages({"en": index}, "front", default_source="en")
