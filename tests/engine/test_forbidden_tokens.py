"""What a request forbids is not in its answer, and what it forbids too much of is its own fault."""

from __future__ import annotations

import pytest
from fusewire.engine.generation import GenerationEngine
from fusewire.errors import InvalidInput
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.engine.generating import ask, byte_tokenizer, tiny_folder
from tests.models.tiny_decoders import tiny_decoder


def test_a_request_that_forbids_every_token_fails_alone(tmp_path):
    tiny_decoder(tmp_path, "gpt2", vocab_size=40)
    byte_tokenizer(tmp_path)
    with GenerationEngine(tmp_path) as engine:
        other, _ = ask(engine, [1, 2], max_new_tokens=80, ignore_eos=True)
        forbids, _ = ask(engine, [3], no_repeat_ngram_size=1, ignore_eos=True)
        with pytest.raises(
            InvalidInput,
            match="sampling_parameters: got constraints that forbid",
        ):
            forbids.finish()
        assert sorted([3, *forbids.tokens()]) == list(range(40))
        assert len(other.finish().tokens()) == 80


@pytest.mark.parametrize("scheme", ["always", "first"])
def test_a_bad_word_is_not_in_the_answer_however_texts_begin(tmp_path, scheme):
    tiny_folder(tmp_path)
    pieces = ["▁", *(chr(0x4E00 + n) for n in range(255)), "<|endoftext|>"]
    backend = Tokenizer(models.BPE(vocab={p: n for n, p in enumerate(pieces)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
    backend.add_special_tokens(["<|endoftext|>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    with GenerationEngine(tmp_path) as engine:
        words: list[str] = []
        for _ in range(5):
            text = ask(engine, [5, 6, 7], max_new_tokens=10, bad_words=words)[0].finish().text()
            assert not any(word in text for word in words)
            words.append(text.strip()[0])
        with pytest.raises(InvalidInput, match="bad_words: got 'é', wanted words that the model's"):
            ask(engine, [5], bad_words=["é"])
