"""What the endpoint counts and cuts, beside transformers' own tokenizer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from fusewire.errors import InvalidInput
from fusewire.serving.openai.generation_bodies import CompletionRequest
from fusewire.serving.openai.served import CLASSIFY, EMBED, Encoder, Generator
from fusewire.settings import EngineSettings
from fusewire.tasks.contract import GENERATE
from fusewire.tasks.sentence_files import SentenceFiles
from fusewire.text_workers.workers import TextWorkers

from tests.engine.generating import END, byte_tokenizer
from tests.reference import SENTENCES, tiny_checkpoint

LIMIT = 24
LONG = " ".join(SENTENCES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    tiny_checkpoint(folder, "bert")
    return folder


@contextmanager
def encoder(folder: Path, task: str, **prompts: str) -> Iterator[Encoder]:
    files = SentenceFiles(prompts=prompts)
    workers = TextWorkers(folder, max_length=LIMIT)
    workers.description()
    yield Encoder("x", task, workers, LIMIT, EngineSettings(), files, 64, 1, "sigmoid")
    workers.close()


def test_texts_count_as_they_are_computed(folder: Path) -> None:
    reference = transformers.AutoTokenizer.from_pretrained(folder)

    def wanted(*texts: str, limit: int = LIMIT) -> int:
        cut = reference(list(texts), truncation=True, max_length=limit)
        return sum(map(len, cut["input_ids"]))

    with encoder(folder, EMBED, query="It is said: ") as model:

        def count(texts: list[str], **settings: Any) -> int:
            return asyncio.run(model.count("input", texts, EngineSettings(**settings)))

        texts = ["a cat", LONG, *SENTENCES[:3], LONG * 40]  # the last is not even tokenised
        assert count(texts) == wanted(*texts)
        assert count(texts, max_length=9) == wanted(*texts, limit=9)
        assert count(["a cat"], prompt_name="query") == wanted("It is said: a cat")
        many = [*SENTENCES, LONG * 90] * 9  # more than one call of a worker counts
        assert count(many) == wanted(*many)


def test_pairs_count_as_they_are_computed(folder: Path) -> None:
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    pairs = [("a cat", "a dog"), (SENTENCES[0], LONG), (LONG, LONG), ("a cat", LONG * 40)]
    cut = [reference(*pair, truncation=True, max_length=LIMIT)["input_ids"] for pair in pairs]
    with encoder(folder, CLASSIFY) as model:
        counted = asyncio.run(model.count("body", pairs, EngineSettings()))
    assert counted == sum(map(len, cut))


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> tokenizers.Tokenizer:
    """Its texts have a token before them and one behind."""
    folder = tmp_path_factory.mktemp("bytes")
    byte_tokenizer(folder)
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|endoftext|> $A <|endoftext|>", special_tokens=[("<|endoftext|>", END)]
    )
    return backend


@pytest.fixture(scope="module")
def generator(
    backend: tokenizers.Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Generator]:
    folder = tmp_path_factory.mktemp("generator")
    backend.save(str(folder / "tokenizer.json"))
    workers = TextWorkers(folder, max_length=LIMIT)
    workers.description()
    yield Generator("x", GENERATE, workers, LIMIT)
    workers.close()


def shortened(model: Generator, prompt: str | list[int], most: int, **given: object) -> list[int]:
    body = CompletionRequest(model="x", prompt=prompt, truncate_prompt_tokens=most, **given)
    work = model.shortened([prompt], body, body.parameters(None))  # type: ignore[list-item]
    [ids] = asyncio.run(work)
    return ids


def test_a_text_too_long_to_tokenise_is_refused_by_its_length(generator: Generator) -> None:
    long = "x" * (2**20 + 1)
    with pytest.raises(
        InvalidInput, match="prompt: got 1048577 characters, wanted at most 1048576"
    ):
        asyncio.run(generator.ids("prompt", long, special_tokens=True))
    with pytest.raises(InvalidInput, match="prompt: got 1048577 characters"):
        shortened(generator, long, 3)


@pytest.mark.parametrize("most", [1, 2, 3, 7, 23])
@pytest.mark.parametrize("special", [True, False])
def test_the_last_tokens_are_those_of_transformers(
    generator: Generator, backend: tokenizers.Tokenizer, most: int, special: bool
) -> None:
    reference = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, truncation_side="left"
    )
    text = "the end of a long prompt is kept"
    got = shortened(generator, text, most, add_special_tokens=special)
    if most == 1 and special:  # transformers keeps both special tokens, and answers two
        assert got == [END]
        return
    wanted = reference(text, add_special_tokens=special, truncation=True, max_length=most)
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
