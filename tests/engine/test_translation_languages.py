"""A request chooses the languages of a translation, and gets what transformers gives for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from fusewire.engine.generation import GenerationEngine
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.errors import InvalidInput

from tests.engine.generating import ask, byte_tokenizer
from tests.models.tiny_decoders import tiny_decoder
from tests.models.tiny_seq2seq import tiny_seq2seq
from tests.text.translation_folders import FAIRSEQ, m2m_100_folder, marian_folder

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
TEXT = "Paris is the capital of France."

# By model: its folder, a source's language and a target's.
CASES: dict[str, tuple[Callable[[Path], Path], str, str]] = {
    "m2m_100": (m2m_100_folder, "fr", "ast"),
    "mbart": (FAIRSEQ["mbart"], "ro_RO", "zh_CN"),
}


def translator(folder: Path, make: Callable[[Path], Path], model_type: str) -> tuple[Any, Any]:
    """A tiny model of the tokenizer's vocabulary: transformers' model and tokenizer."""
    make(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    size = max(theirs.get_vocab().values()) + 1
    return tiny_seq2seq(folder, model_type, vocab_size=size), theirs


def engine_of(folder: Path) -> GenerationEngine:
    return GenerationEngine(folder, GenerationSettings(max_batch_tokens=64, max_sequences=4))


def tokens(engine: GenerationEngine, text: str, **parameters: Any) -> list[int]:
    answer, _ = ask(engine, text, max_new_tokens=8, ignore_eos=True, **parameters)
    return answer.finish().tokens()


@pytest.mark.parametrize("name", CASES)
def test_the_languages_of_a_request_are_those_of_transformers(tmp_path, name):
    make, source, target = CASES[name]
    model, theirs = translator(tmp_path, make, name)
    theirs.src_lang = source
    begin = theirs.convert_tokens_to_ids(f"__{target}__" if name == "m2m_100" else target)
    ids = theirs(TEXT, return_tensors="pt")["input_ids"]
    # mBART's answer starts from the language itself, in the place of the start of others.
    start = {"decoder_start_token_id": begin} if name == "mbart" else {"forced_bos_token_id": begin}
    if name == "mbart":
        model.generation_config.decoder_start_token_id = theirs.convert_tokens_to_ids(source)
        model.generation_config.save_pretrained(tmp_path)
    with torch.no_grad():
        wanted = model.generate(ids, do_sample=False, max_new_tokens=8, **start)[0].tolist()[1:]
    with engine_of(tmp_path) as engine:
        assert tokens(engine, TEXT, source_lang=source, target_lang=target) == wanted
        assert tokens(engine, TEXT, source_lang=source) != wanted
        with pytest.raises(InvalidInput, match=r"^target_lang: got 'xx_XX', wanted one of"):
            ask(engine, TEXT, target_lang="xx_XX")
        with pytest.raises(InvalidInput, match=r"^forced_bos_token_id: .+remove one of them"):
            ask(engine, TEXT, target_lang=target, forced_bos_token_id=5)


def test_marian_reads_the_language_in_front_of_the_text(tmp_path):
    translator(tmp_path, marian_folder, "marian")
    with engine_of(tmp_path) as engine:
        marked, chosen, plain = (
            ask(engine, text, max_new_tokens=8, logprobs=0, **options)
            for text, options in (
                (">>fra<< " + TEXT, {}),
                (TEXT, {"target_lang": "fra"}),
                (TEXT, {}),
            )
        )
        said = [[delta.logprob for delta in each.finish().deltas] for each, _ in (marked, chosen)]
        assert said[0] == said[1]
        assert [delta.logprob for delta in plain[0].finish().deltas] != said[0]
        lengths = [ticket.num_input_tokens for _, ticket in (marked, chosen, plain)]
        assert lengths[0] == lengths[1] == lengths[2] + 1


def test_a_model_without_an_encoder_has_no_languages(tmp_path):
    tiny_decoder(tmp_path, "gpt2")
    byte_tokenizer(tmp_path)
    with (
        engine_of(tmp_path) as engine,
        pytest.raises(InvalidInput, match=r"^source_lang: .+without an encoder"),
    ):
        ask(engine, TEXT, source_lang="fr")
