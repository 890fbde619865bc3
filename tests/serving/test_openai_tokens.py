"""What the endpoint counts and cuts, beside transformers' own tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
import transformers
from fusewire.engine.settings import EngineSettings
from fusewire.errors import InvalidInput
from fusewire.serving.openai.generation_bodies import CompletionRequest
from fusewire.serving.openai.served import CLASSIFY, EMBED, Encoder, Generator
from fusewire.tasks.contract import GENERATE
from fusewire.tasks.sentence_files import SentenceFiles
from fusewire.tasks.tokenizer import Tokenizer

from tests.engine.generating import END, byte_tokenizer
from tests.reference import SENTENCES, tiny_checkpoint

LIMIT = 24
LONG = " ".join(SENTENCES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    tiny_checkpoint(folder, "bert")
    return folder


def encoder(folder: Path, task: str, **prompts: str) -> Encoder:
    files = SentenceFiles(prompts=prompts)
    tokenizer = Tokenizer.load(folder)
    return Encoder("x", task, tokenizer, LIMIT, EngineSettings(), files, 64, 1, "sigmoid")


def test_texts_count_as_they_are_computed(folder: Path) -> None:
    reference = transformers.AutoTokenizer.from_pretrained(folder)

    def wanted(*texts: str, limit: int = LIMIT) -> int:
        cut = reference(list(texts), truncation=True, max_length=limit)
        return sum(map(len, cut["input_ids"]))

    model = encoder(folder, EMBED, query="It is said: ")
    texts = ["a cat", LONG, *SENTENCES[:3], LONG * 40]  # the last is not even tokenised
    assert model.count(texts, EngineSettings()) == wanted(*texts)
    assert model.count(texts, EngineSettings(max_length=9)) == wanted(*texts, limit=9)
    prompted = EngineSettings(prompt_name="query")
    assert model.count(["a cat"], prompted) == wanted("It is said: a cat")


def test_pairs_count_as_they_are_computed(folder: Path) -> None:
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    pairs = [("a cat", "a dog"), (SENTENCES[0], LONG), (LONG, LONG), ("a cat", LONG * 40)]
    cut = [reference(*pair, truncation=True, max_length=LIMIT)["input_ids"] for pair in pairs]
    assert encoder(folder, CLASSIFY).count(pairs, EngineSettings()) == sum(map(len, cut))


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Generator:
    """Its texts have a token before them and one behind."""
    folder = tmp_path_factory.mktemp("bytes")
    byte_tokenizer(folder)
    path = str(folder / "tokenizer.json")
    backend = tokenizers.Tokenizer.from_file(path)
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|endoftext|> $A <|endoftext|>", special_tokens=[("<|endoftext|>", END)]
    )
    backend.save(path)
    return Generator("x", GENERATE, Tokenizer.load(folder), LIMIT)


def shortened(model: Generator, prompt: str | list[int], most: int, **given: object) -> list[int]:
    body = CompletionRequest(model="x", prompt=prompt, truncate_prompt_tokens=most, **given)
    [ids] = model.shortened([prompt], body, body.parameters(None))  # type: ignore[list-item]
    return ids


def test_a_text_too_long_to_tokenise_is_refused_by_its_length(generator: Generator) -> None:
    long = "x" * (2**20 + 1)
    with pytest.raises(
        InvalidInput, match="prompt: got 1048577 characters, wanted at most 1048576"
    ):
        generator.ids("prompt", long, special_tokens=True)
    with pytest.raises(InvalidInput, match="prompt: got 1048577 characters"):
        shortened(generator, long, 3)


@pytest.mark.parametrize("most", [1, 2, 3, 7, 23])
@pytest.mark.parametrize("special", [True, False])
def test_the_last_tokens_are_those_of_transformers(
    generator: Generator, most: int, special: bool
) -> None:
    assert generator.tokenizer is not None
    reference = transformers.PreTrainedTokenizerFast(
        tokenizer_object=generator.tokenizer.backend, truncation_side="left"
    )
    text = "the end of a long prompt is kept"
    got = shortened(generator, text, most, add_special_tokens=special)
    if most == 1 and special:  # transformers keeps both special tokens, and answers two
        assert got == [END]
        return
    wanted = reference(text, add_special_tokens=special, truncation=True, max_length=most)
    generator.tokenizer.backend.no_truncation()
    assert got == wanted["input_ids"]


def test_ids_and_short_texts_keep_what_they_have(generator: Generator) -> None:
    assert shortened(generator, [1, 2, 3, 4], 3) == [2, 3, 4]
    assert shortened(generator, [1, 2], 3) == [1, 2]
    assert shortened(generator, "", 3) == [END, END]


def test_minus_one_leaves_room_for_the_answer(generator: Generator) -> None:
    assert len(shortened(generator, "x" * 99, -1, max_tokens=4)) == LIMIT - 4
    assert len(shortened(generator, "x" * 99, -1, max_tokens="4")) == LIMIT - 4
    for most in (0, LIMIT):
        with pytest.raises(InvalidInput, match=f"truncate_prompt_tokens: got {most}, wanted 1"):
            shortened(generator, "x", most)
