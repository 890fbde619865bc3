"""Dense modules compute what sentence-transformers computes, or are rejected by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fusewire
import numpy as np
import pytest
import torch
from fusewire.errors import CheckpointError
from fusewire.serving.repository import import_folder
from fusewire.tasks.sentence_files import SentenceFiles
from safetensors.numpy import load_file, save_file

from tests.reference import SENTENCES, tiny_checkpoint
from tests.tolerance import GPU_BATCHED_VERSUS_ALONE, MODEL_FP32

sentence_transformers = pytest.importorskip("sentence_transformers")
modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
dense = pytest.importorskip("sentence_transformers.base.modules.dense")

Steps = Callable[[], list[Any]]


def saved(folder: Path, pooling: str, steps: list[Any]) -> Any:
    """Saves a sentence-transformers model of width 64 with these modules after its pooling."""
    torch.manual_seed(7)
    tiny_checkpoint(folder / "encoder", "bert", max_length=48)
    encoder = modules.Transformer(str(folder / "encoder"))
    chain = [encoder, modules.Pooling(64, pooling_mode=pooling), *steps]
    model = sentence_transformers.SentenceTransformer(modules=chain, device="cpu")
    model.save(str(folder / "model"))
    return model


def layer(inputs: int, outputs: int, activation: Any, **more: Any) -> Any:
    return dense.Dense(inputs, outputs, activation_function=activation, **more)


MODELS: dict[str, tuple[str, int, Steps]] = {
    "LaBSE": ("cls", 64, lambda: [layer(64, 64, torch.nn.Tanh()), modules.Normalize()]),
    "distiluse": ("mean", 24, lambda: [layer(64, 24, torch.nn.Tanh())]),
    "sentence-t5": (
        "mean",
        40,
        lambda: [layer(64, 40, torch.nn.Identity(), bias=False), modules.Normalize()],
    ),
    "two modules": (
        "mean",
        33,
        lambda: [layer(64, 96, torch.nn.ReLU()), modules.Dropout(), layer(96, 33, torch.nn.GELU())],
    ),
}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", MODELS)
def test_embeddings_are_those_of_sentence_transformers(
    tmp_path: Path, name: str, device: str
) -> None:
    pooling, size, steps = MODELS[name]
    reference = saved(tmp_path, pooling, steps())
    ours = fusewire.Embedder(tmp_path / "model", device=device, dtype="float32")
    wanted = reference.encode(SENTENCES)
    assert wanted.shape == (len(SENTENCES), size)
    assert np.abs(wanted).max() > 100 * MODEL_FP32
    assert ours.get_embedding_dimension() == size
    assert np.abs(ours.encode(SENTENCES) - wanted).max() <= MODEL_FP32
    apart = 0.0 if device == "cpu" else GPU_BATCHED_VERSUS_ALONE
    for text, row in zip(SENTENCES[:3], ours.encode(SENTENCES), strict=False):
        assert np.abs(ours.encode(text) - row).max() <= apart
    lengths = np.linalg.norm(ours.encode(SENTENCES, normalize_embeddings=True), axis=1)
    np.testing.assert_allclose(lengths, 1, rtol=1e-6)


def test_an_entry_has_the_weights_of_dense_modules(tmp_path: Path) -> None:
    reference = saved(tmp_path, "cls", MODELS["LaBSE"][2]())
    entry = import_folder(tmp_path / "model", tmp_path / "repository", name="labse")
    assert (entry / "1" / "2_Dense" / "model.safetensors").is_file()
    found = fusewire.Embedder(entry / "1", device="cpu").encode(SENTENCES)
    assert np.abs(found - reference.encode(SENTENCES)).max() <= MODEL_FP32
    hidden = import_folder(
        tmp_path / "model", tmp_path / "repository", name="hidden", settings={"task": "hidden"}
    )
    assert not (hidden / "1" / "2_Dense" / "model.safetensors").exists()


def configured(**values: object) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        path = folder / "2_Dense" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return damage


def reordered(folder: Path) -> None:
    path = folder / "modules.json"
    steps = json.loads(path.read_text())
    path.write_text(json.dumps([*steps[:2], steps[3], steps[2]]))


def widened(folder: Path) -> None:
    configured(in_features=65)(folder)
    path = folder / "2_Dense" / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"linear.weight": np.zeros((64, 65), np.float32)}, path)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a residual": (configured(use_residual=True), "2_Dense/config.json: use_residual: got 'True'"),
    "an activation": (
        configured(activation_function="torch.nn.modules.activation.Mish"),
        r"activation_function: got 'torch.nn.modules.activation.Mish', wanted torch.nn.*Identity",
    ),
    "code": (configured(activation_function="os.system"), "activation_function: got 'os.system'"),
    "vectors of tokens": (
        configured(module_input_name="token_embeddings"),
        "module_input_name: got 'token_embeddings', wanted sentence_embedding",
    ),
    "no size": (configured(out_features=True), "out_features: got True, wanted a whole number"),
    "another size": (configured(out_features=32), "2_Dense/model.safetensors: tensors of another"),
    "of another model": (widened, "2_Dense/model.safetensors: in_features: got 65, wanted 64"),
    "no configuration": (
        lambda folder: (folder / "2_Dense" / "config.json").unlink(),
        "2_Dense/config.json: missing",
    ),
    "a pickle alone": (
        lambda folder: (folder / "2_Dense" / "model.safetensors").rename(
            folder / "2_Dense" / "pytorch_model.bin"
        ),
        "2_Dense/model.safetensors: missing, wanted the weights of the Dense module",
    ),
    "scaling before it": (reordered, "got the modules Pooling, Normalize, Dense, wanted the order"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_not_supported_is_refused_before_anything_is_written(
    tmp_path: Path, name: str
) -> None:
    damage, words = DAMAGES[name]
    saved(tmp_path, "cls", MODELS["LaBSE"][2]())
    folder = tmp_path / "model"
    assert SentenceFiles.read(folder).embedding_size(64) == 64
    damage(folder)
    with pytest.raises(CheckpointError, match=words):
        import_folder(folder, tmp_path / "repository", name="m")
    assert not (tmp_path / "repository" / "m").exists()
    with pytest.raises(CheckpointError, match=words):
        fusewire.Embedder(folder, device="cpu")
