"""sentence-t5 and GTR, from folders that have spiece.model and no tokenizer.json."""

from __future__ import annotations

import logging
from pathlib import Path

import fusewire
import numpy as np
import pytest
import torch
from fusewire.serving.repository import import_folder

from tests.models.tiny_seq2seq import tiny_seq2seq
from tests.reference import SENTENCES
from tests.text.sentencepiece_models import T5_IDS, processor, t5_folder, trained
from tests.tolerance import BATCHED_VERSUS_ALONE, MODEL_FP32

sentence_transformers = pytest.importorskip("sentence_transformers")
modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
dense = pytest.importorskip("sentence_transformers.base.modules.dense")


def encoder(folder: Path, ending: str = "EncoderModel") -> Path:
    size = processor(trained(**T5_IDS)).get_piece_size() + 100
    tiny_seq2seq(folder, "t5", ending, vocab_size=size)
    return t5_folder(folder)


def saved(folder: Path) -> object:
    torch.manual_seed(7)
    layer = dense.Dense(48, 40, activation_function=torch.nn.Identity(), bias=False)
    steps = [modules.Pooling(48, pooling_mode="mean"), layer, modules.Normalize()]
    whole = [modules.Transformer(str(encoder(folder / "encoder"))), *steps]
    model = sentence_transformers.SentenceTransformer(modules=whole, device="cpu")
    model.save(str(folder / "model"))
    (folder / "model" / "tokenizer.json").unlink()
    t5_folder(folder / "model")
    return model


def test_embeddings_are_those_of_sentence_transformers(tmp_path: Path) -> None:
    reference = saved(tmp_path)
    wanted = reference.encode(SENTENCES)  # type: ignore[attr-defined]
    ours = fusewire.Embedder(tmp_path / "model")
    together = ours.encode(SENTENCES)
    assert together.shape == (len(SENTENCES), 40)
    assert np.abs(together - wanted).max() <= MODEL_FP32
    for text, row in zip(SENTENCES[:4], together, strict=False):
        assert np.abs(ours.encode(text) - row).max() <= BATCHED_VERSUS_ALONE


@pytest.mark.parametrize("link", [False, True])
def test_a_whole_model_is_imported_with_its_tokenizer(tmp_path: Path, caplog, link: bool) -> None:
    folder = encoder(tmp_path / "model", "ForConditionalGeneration")
    with caplog.at_level(logging.WARNING):
        entry = import_folder(
            folder, tmp_path / "repository", name="m", settings={"task": "embed"}, link=link
        )
    assert not caplog.records
    assert (entry / "1" / "spiece.model").read_bytes() == (folder / "spiece.model").read_bytes()
    assert b"Is this model awake?" in b"".join(p.read_bytes() for p in (entry / "warmup").iterdir())
