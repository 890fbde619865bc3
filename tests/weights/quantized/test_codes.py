"""Folders that are meant for products of 8 bits (W8A8) keep their codes where a device multiplies
them: which do, and what GPUs make of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from fusewire import kernels
from fusewire.models import load_decoder, load_model
from fusewire.models.assemble import Weights
from fusewire.models.blueprint import Dense
from fusewire.placement import Placement
from fusewire.weights import Checkpoint
from safetensors.torch import load_file

from tests.models.oracle import fusewire_answers, random_sequences
from tests.models.paged_texts import logits_in_pieces
from tests.models.tiny_decoders import random_ids, tiny_decoder, transformers_logits
from tests.places import GPU_HALVES
from tests.reference import tiny_checkpoint
from tests.weights.quantized.writers import (
    FORMATS,
    Format,
    block_fp8,
    float_quantized,
    quantise,
    w8a8,
    write_layer,
)

QKV = tuple(f"layers.0.self_attn.{name}_proj" for name in "qkv")
SEQUENCES = random_ids((9, 1, 33))
KEPT = [
    pytest.param(w8a8(), "int8", id="int8"),
    pytest.param(w8a8("tensor"), "int8", id="int8-tensor"),
    pytest.param(w8a8("channel", "float"), "float8_e4m3", id="fp8"),
    pytest.param(w8a8("tensor", "float"), "float8_e4m3", id="fp8-tensor"),
    pytest.param(block_fp8(None), "float8_e4m3", id="fp8-whole"),
]
ON_GPUS = pytest.mark.parametrize("place", GPU_HALVES, indirect=True)
LEAST_COSINE = 0.99  # of tiny random models, whose channels have few numbers to even errors out


def static(form: Format) -> Format:
    return Format(form.write, form.config | {"activation_scheme": "static"})


@pytest.fixture
def hopper(place: Placement) -> Placement:
    if "int8" not in kernels.weight_formats(place.dtype, place.stream):
        pytest.skip("this GPU has no kernels for 8 bits")
    return place


def written(folder: Path, form: Format, model_type: str = "llama") -> torch.nn.Module:
    reference = tiny_decoder(folder, model_type, num_hidden_layers=1)
    quantise(folder, reference, form, plain=("lm_head", "embed_out"))
    return reference


@pytest.mark.parametrize(("form", "stored"), KEPT)
def test_codes_and_scales_are_those_of_the_file(tmp_path, form, stored):
    weight = np.random.default_rng(0).normal(size=(80, 48)).astype(np.float32)
    layer = write_layer(tmp_path, form, weight)
    checkpoint = Checkpoint.open(tmp_path)
    checkpoint.check({"layer.weight": weight.shape}, [])
    found = checkpoint.codes("layer.weight")
    assert found is not None
    assert found.format == stored
    assert 80 * 48 < checkpoint.quantized_bytes <= 80 * (48 + 4)
    np.testing.assert_array_equal(found.codes, layer.tensors["weight"].view(torch.uint8).numpy())
    scale = next(tensor for name, tensor in layer.tensors.items() if "scale" in name)
    scale = scale.float().numpy().reshape(-1)
    np.testing.assert_array_equal(found.scales, np.broadcast_to(scale, 80))


@pytest.mark.parametrize(
    "form",
    [
        *(FORMATS[name] for name in FORMATS if name != "fp8-whole"),
        w8a8(symmetric=False),
        w8a8(type="float"),
        w8a8("channel", "float", type="int"),
        w8a8("channel", "float", dynamic=False),
        w8a8("block", "float"),
        w8a8("group"),
        static(block_fp8(None)),
        float_quantized(),
    ],
)
def test_others_have_none(tmp_path, form):
    """Of activations that stay as they are, or are quantised in another way than products do it,
    and of weights with several scales a row."""
    write_layer(tmp_path, form, np.ones((80, 48), np.float32))
    checkpoint = Checkpoint.open(tmp_path)
    checkpoint.check({"layer.weight": (80, 48)}, [])
    assert checkpoint.codes("layer.weight") is None


def test_a_cpu_dequantises_fp8(tmp_path):
    written(tmp_path, w8a8("channel", "float"))
    place = Placement("cpu")
    load_decoder(tmp_path, place)
    assert set(place.formats.values()) == {"float32"}


class _Recording(Placement):
    """As of a device that multiplies 8 bits: what it is given to store."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.given: list[tuple[str, np.ndarray, np.ndarray]] = []

    def multiplies(self, name: str, shape: tuple[int, ...], stored: str) -> bool:
        return self._chosen(name, shape, stored) == stored

    def codes_linear(self, stored, codes, scales, bias, name):
        self.given.append((stored, codes, scales))
        return super().codes_linear("int8", codes, scales, bias, name)


@pytest.mark.parametrize(("form", "stored"), KEPT)
def test_matrices_that_become_one_are_joined_by_rows(tmp_path, form, stored):
    written(tmp_path, form)
    tensors, place = load_file(tmp_path / "model.safetensors"), _Recording()
    parts = [tensors[f"model.{name}.weight"].view(torch.uint8).numpy() for name in QKV]
    inputs, outputs = parts[0].shape[1], sum(map(len, parts))
    dense = Dense(QKV, inputs, outputs, bias=False)
    Weights(Checkpoint.open(tmp_path, "model"), place).layer_linear(dense)
    ((given, codes, scales),) = place.given
    assert given == stored
    np.testing.assert_array_equal(codes, np.concatenate(parts))
    assert scales.shape == (outputs,)


@pytest.mark.parametrize(("form", "stored"), KEPT)
@ON_GPUS
def test_a_gpu_keeps_them_and_answers_nearly_as_of_what_they_stand_for(
    tmp_path, form, stored, hopper
):
    """The numbers of the file, rounded no more: only activations are."""
    reference = written(tmp_path, form)
    kept, dequantised = (
        Placement(hopper.device, hopper.dtype, quantize_skip=skip)
        for skip in ((), ("layers.0.mlp.down_proj",))
    )
    got = np.concatenate(logits_in_pieces(load_decoder(tmp_path, kept), SEQUENCES, None))
    expected = np.concatenate(transformers_logits(reference, SEQUENCES))
    assert set(kept.formats.values()) == {stored}
    assert stored in kept.described
    near = torch.cosine_similarity(torch.from_numpy(got), torch.from_numpy(expected), dim=-1)
    assert near.mean() >= LEAST_COSINE
    load_decoder(tmp_path, dequantised)
    dequantised.check_skipped()
    assert dequantised.formats["layers.0.mlp.down_proj"] == hopper.dtype


@pytest.mark.parametrize(("form", "stored"), KEPT)
@ON_GPUS
def test_a_product_on_a_gpu_is_that_of_the_files_codes(tmp_path, form, stored, hopper):
    """With rows that are exact in 8 bits it is that of the dequantised weight."""
    written(tmp_path, form)
    checkpoint = Checkpoint.open(tmp_path, "model")
    inputs = checkpoint.take(f"{QKV[0]}.weight").shape[1]
    whole = np.concatenate([checkpoint.take(f"{name}.weight") for name in QKV])
    dense = Dense(QKV, inputs, len(whole), bias=False)
    linear = Weights(checkpoint, hopper).layer_linear(dense)
    assert linear.format == stored
    x = np.random.default_rng(0).integers(-7, 8, (9, inputs)).astype(np.float32)
    x[:, 0] = 127 if stored == "int8" else 7  # the scale is a power of two
    out = hopper.empty(9, len(whole))
    kernels.linear(out, hopper.floats(x), linear, "none", hopper.stream)
    exact = x.astype(np.float64) @ whole.T.astype(np.float64)
    bits = {"float16": 11, "bfloat16": 8}[hopper.dtype]
    allowed = np.abs(exact) * 2.0**-bits + np.abs(x) @ np.abs(whole.T) * 3e-4
    assert (np.abs(hopper.numpy(out) - exact) <= allowed).all()


@ON_GPUS
def test_an_encoder_in_int8_answers_alike_in_any_batch(tmp_path, hopper):
    reference = tiny_checkpoint(tmp_path, "bert", "classify", num_hidden_layers=1)
    quantise(tmp_path, reference, w8a8(), plain=("pooler.dense", "classifier"))
    place = Placement(hopper.device, hopper.dtype)
    model = load_model(tmp_path, "classify", place)
    assert set(place.formats.values()) == {"int8"}
    sequences = random_sequences(model, (5, 1, 17, 33))
    together = fusewire_answers(model, sequences, "classify")
    alone = [fusewire_answers(model, [each], "classify")[0] for each in sequences]
    for one, other in zip(together, alone, strict=True):
        for name in one:
            np.testing.assert_allclose(one[name], other[name], rtol=2e-2, atol=2e-3)
