"""The translator of the demo: what it learns from is right, so are its gradients, and transformers
reads its folder as fusewire does."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from fusewire.text.tokenizer import Tokenizer

from tests import tolerance
from tests.client.example_scripts import example


@pytest.fixture(scope="module")
def translator() -> Any:
    return example("tiny_translator")


@pytest.mark.parametrize(
    ("source", "english", "german"),
    [
        ("0", "zero", "null"),
        ("1", "one", "eins"),
        ("21", "twenty-one", "einundzwanzig"),
        ("347", "three hundred forty-seven", "dreihundertsiebenundvierzig"),
        ("1001", "one thousand one", "eintausendeins"),
        ("100012", "one hundred thousand twelve", "einhunderttausendzwölf"),
        ("2031-05-09", "9 May 2031", "9. Mai 2031"),
    ],
)
def test_numbers_and_dates_are_spelled(source: str, english: str, german: str) -> None:
    translated = example("numbers_and_dates").translated
    assert [translated(source, language) for language in ("eng", "deu")] == [english, german]


@pytest.fixture(scope="module")
def untrained(translator: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    folder: Path = tmp_path_factory.mktemp("translator")
    pieces = translator.train_pieces(random.Random(1))
    size = len(translator.vocabulary_of(pieces))
    weights = translator.initial(np.random.default_rng(0), size)
    translator.save(folder, weights, pieces)
    return folder, weights, pieces


@torch.enable_grad()  # benchmarks, which have tests as well, turn it off for their process
def test_gradients_are_those_of_torch(translator: Any, untrained: tuple[Path, Any, Any]) -> None:
    folder, weights, _ = untrained
    rng = np.random.default_rng(1)
    pad = translator.PAD
    sources, targets = (rng.integers(3, len(weights[translator.EMBEDDING]), (5, n)) for n in (7, 9))
    for row in range(5):
        sources[row, 3 + row :] = pad
        targets[row, 9 - row :] = pad
    loss, grads = translator.gradients(weights, (sources, targets))
    model = transformers.MarianMTModel.from_pretrained(folder).double().eval()
    labels = torch.tensor(np.where(targets == pad, -100, targets))
    ids = torch.tensor(sources)
    found = model(input_ids=ids, attention_mask=(ids != pad).long(), labels=labels)
    found.loss.backward()
    assert loss == pytest.approx(found.loss.item(), rel=tolerance.NUMPY_GRADIENT)
    parameters = dict(model.named_parameters())
    assert grads.keys() == weights.keys()
    for name, grad in grads.items():
        wanted = parameters[name].grad.numpy()
        if name == translator.EMBEDDING:  # torch leaves out the padding's own row
            grad, wanted = np.delete(grad, pad, 0), np.delete(wanted, pad, 0)
        error = np.linalg.norm(grad - wanted) / np.linalg.norm(wanted)
        assert error < tolerance.NUMPY_GRADIENT, name


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_its_ids_are_what_both_libraries_read(
    translator: Any, untrained: tuple[Path, Any, Any]
) -> None:
    folder, _, pieces = untrained
    vocabulary, read = translator.vocabulary_of(pieces), translator.reader(pieces)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = Tokenizer.load(folder)
    assert ours is not None
    numbers = example("numbers_and_dates")
    rng = random.Random(3)
    for language in numbers.LANGUAGES:
        for _ in range(50):
            source = numbers.a_source(rng)
            wanted = [vocabulary[f">>{language}<<"], *read(source), translator.END]
            assert theirs(f">>{language}<< {source}").input_ids == wanted
            ids = ours.encode([source], offsets=False)[0].ids
            assert ours.languages.source_ids(ids, target_lang=language) == wanted
            said = numbers.translated(source, language)
            assert theirs.decode(read(said)) == said
