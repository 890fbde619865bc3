"""A probe fits every model that can be served, however short its longest sequence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from fusewire.engine.encoder import EncoderEngine, Request
from fusewire.serving import repository
from fusewire.serving.config import ModelSettings
from fusewire.serving.folder_probe import probe
from fusewire.serving.probe import ProbeTensor

from tests.reference import tiny_checkpoint


def answered(folder: Path, settings: ModelSettings) -> list[ProbeTensor]:
    """The probe, which a model with these settings has answered."""
    tensors = probe(folder, settings)
    inputs = {
        tensor.name: np.array([[text.encode() for text in tensor.values]], object)
        if tensor.texts
        else np.array([tensor.values], np.int64)
        for tensor in tensors
    }
    engine = EncoderEngine(folder, settings.task, settings.engine())
    [answer] = engine.answer([Request(inputs, {})])
    assert isinstance(answer, dict), answer
    return tensors


@pytest.mark.parametrize("max_length", [None, 5, 4, 3, 2, 1])
@pytest.mark.parametrize(
    ("architecture", "task"),
    [("bert", "embed"), ("roberta", "hidden"), ("electra", "classify"), ("modernbert", "tag")],
)
def test_the_probe_is_no_longer_than_max_length(
    tmp_path: Path, architecture: str, task: str, max_length: int | None
) -> None:
    tiny_checkpoint(tmp_path, architecture, task)
    tensors = answered(tmp_path, ModelSettings(task=task, max_length=max_length))
    text = None if max_length == 1 else ("Is this model awake?" if max_length is None else "a")
    if max_length == 2:
        text = ""
    assert [tensor.values[0] for tensor in tensors] == [0 if text is None else text]


def test_prompt_and_limit_of_the_folder_count(tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path, "bert", "embed")
    modules = [
        {"path": path, "type": f"sentence_transformers.models.{path[2:] or 'Transformer'}"}
        for path in ("", "1_Pooling")
    ]
    files = {
        "modules.json": modules,
        "1_Pooling/config.json": {},
        "sentence_bert_config.json": {"max_seq_length": 4},
        "config_sentence_transformers.json": {"prompts": {"query": "Paris "}},
    }
    (tmp_path / "1_Pooling").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert answered(tmp_path, ModelSettings(task="embed"))[0].values == ("a",)
    named = ModelSettings(task="embed", prompt_name="query", max_length=3)
    assert answered(tmp_path, named)[0].name in ("text_input", "input_ids")
    long = ModelSettings(task="embed", prompt="Where was the treaty signed? ")
    assert answered(tmp_path, long)[0].name == "input_ids"


@pytest.mark.parametrize(("task", "shortest"), [("answer", 5), ("fill", 3)])
def test_a_task_that_takes_texts_alone_is_probed_where_one_fits(
    tmp_path: Path, task: str, shortest: int
) -> None:
    tiny_checkpoint(tmp_path, "bert", task)
    assert answered(tmp_path, ModelSettings(task=task, max_length=shortest))
    assert probe(tmp_path, ModelSettings(task=task, max_length=shortest - 1)) == []


def test_an_entry_is_warmed_up_with_a_text_that_fits(tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path / "model", "bert", "embed")
    entry = repository.import_folder(
        tmp_path / "model", tmp_path / "repository", settings={"max_length": 4}
    )
    assert (entry / "warmup" / "text_input").read_bytes() == b"\x01\0\0\0a"
