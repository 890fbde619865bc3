"""Folders that are meant for products of int8 (W8A8) are computed in their own integers."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from fusewire import kernels
from fusewire.calibration import calibrate
from fusewire.models import check_folder, load_decoder, load_model
from fusewire.models.assemble import Weights
from fusewire.models.stored_weights import Dense
from fusewire.placement import Placement
from fusewire.weights import Checkpoint
from safetensors.torch import load_file

from tests.held import held
from tests.models.oracle import fusewire_answers, random_sequences
from tests.models.paged_texts import logits_in_pieces
from tests.models.tiny_decoders import random_ids, tiny_decoder, transformers_logits
from tests.ops import int8
from tests.reference import tiny_checkpoint
from tests.tolerance import MODEL_FP32
from tests.weights.quantized.writers import Format, Layer, int_quantized, quantise, w8a8

QKV = tuple(f"layers.0.self_attn.{name}_proj" for name in "qkv")
SEQUENCES = random_ids((9, 1, 33))


def written(folder: Path, form: Format, model_type: str = "llama", **config) -> torch.nn.Module:
    reference = tiny_decoder(folder, model_type, num_hidden_layers=1, **config)
    quantise(folder, reference, form, plain=("lm_head", "embed_out"))
    return reference


def stored(folder: Path, name: str) -> int8.Rounded:
    """As the file has it."""
    tensors = load_file(folder / "model.safetensors")
    numbers = tensors[f"{name}.weight"].numpy().astype(np.int64)
    scales = tensors[f"{name}.weight_scale"].float().numpy().reshape(-1)
    return int8.Rounded(numbers, np.broadcast_to(scales, len(numbers)).astype(np.float32))


def computes_in_int8(reference: torch.nn.Module, folder: Path) -> None:
    """Products of the reference's quantised layers become those of the file's integers."""

    def product(weight: int8.Rounded, bias: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
        rows = x.detach().reshape(-1, x.shape[-1]).numpy()
        biases = None if bias is None else bias.detach().numpy()
        out = int8.product(int8.rounded_rows(rows), weight, biases)
        return torch.from_numpy(out).reshape(*x.shape[:-1], -1)

    tensors = load_file(folder / "model.safetensors")
    for name, module in reference.named_modules():
        if f"{name}.weight_scale" in tensors:
            weight = stored(folder, name)
            module.forward = lambda x, w=weight, b=module.bias: product(w, b, x)


@pytest.mark.parametrize("strategy", ["channel", "tensor"])
def test_a_product_is_that_of_the_files_integers_and_scales(tmp_path, strategy):
    """Of three matrices that become one; bit by bit."""
    written(tmp_path, w8a8(strategy))
    place = Placement("cpu")
    parts = [stored(tmp_path, f"model.{name}") for name in QKV]
    whole = int8.Rounded(*(np.concatenate(each) for each in zip(*parts, strict=True)))
    outputs, inputs = whole.numbers.shape
    dense = Dense(QKV, inputs, outputs, bias=False)
    linear = Weights(Checkpoint.open(tmp_path, "model"), place).layer_linear(dense)
    assert place.formats == {QKV[0]: "int8"}
    x, out = np.random.default_rng(0).normal(size=(7, inputs)).astype("f"), place.empty(7, outputs)
    kernels.linear(out, place.floats(x), linear, "none", place.stream)
    np.testing.assert_array_equal(out.numpy(), int8.product(int8.rounded_rows(x), whole))


def test_scales_may_be_negative(tmp_path):
    """As AutoRound's are, of outputs whose largest weight is positive: its integer is -128."""
    form = w8a8()

    def write(weight: np.ndarray) -> Layer:
        tensors = form.write(weight).tensors
        signs = torch.arange(len(weight))[:, None] % 2 * 2 - 1
        scales = (tensors["weight_scale"].float() * signs).bfloat16()
        numbers = (tensors["weight"] * signs).to(torch.int8)
        numbers[:, 3] = -128
        weights = numbers.float() * scales.float()
        return Layer({"weight": numbers, "weight_scale": scales}, weights.numpy())

    reference = written(tmp_path, Format(write, form.config))
    skipped = Placement("cpu", quantize_skip=check_folder(tmp_path, "generate"))
    dequantised = logits_in_pieces(load_decoder(tmp_path, skipped), SEQUENCES, None)
    for ours, theirs in zip(dequantised, transformers_logits(reference, SEQUENCES), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=MODEL_FP32)
    computes_in_int8(reference, tmp_path)
    expected = np.concatenate(transformers_logits(reference, SEQUENCES))
    place = Placement("cpu")
    got = np.concatenate(logits_in_pieces(load_decoder(tmp_path, place), SEQUENCES, None))
    assert set(place.formats.values()) == {"int8"}
    assert np.median(np.abs(got - expected).max(1)) <= MODEL_FP32


@pytest.mark.parametrize("model_type", ["llama", "gpt_neox", "gpt2"])
def test_logits_are_those_of_the_integers(tmp_path, model_type):
    """In fp32 beside them, where an activation at the edge of two integers may take the other: in
    most rows none does."""
    reference = written(tmp_path, w8a8(), model_type)
    dequantised = np.concatenate(transformers_logits(reference, SEQUENCES))
    computes_in_int8(reference, tmp_path)
    expected = np.concatenate(transformers_logits(reference, SEQUENCES))
    got = np.concatenate(logits_in_pieces(load_decoder(tmp_path), SEQUENCES, None))
    off = np.abs(got - expected).max(1)
    assert np.median(off) <= MODEL_FP32
    assert off.max() < np.median(np.abs(dequantised - expected).max(1))


def test_a_head_may_be_stored_so_too(tmp_path):
    reference = tiny_decoder(tmp_path, "llama", num_hidden_layers=1)
    form = w8a8()
    quantise(tmp_path, reference, Format(form.write, form.config | {"ignore": []}), plain=())
    place = Placement("cpu")
    model = load_decoder(tmp_path, place)
    assert place.formats["lm_head"] == "int8"
    computes_in_int8(reference, tmp_path)
    expected = np.concatenate(transformers_logits(reference, SEQUENCES))
    got = np.concatenate(logits_in_pieces(model, SEQUENCES, None))
    assert np.median(np.abs(got - expected).max(1)) <= MODEL_FP32


def test_an_encoder_computes_in_them_alike_in_any_batch(tmp_path):
    reference = tiny_checkpoint(tmp_path, "bert", "classify", num_hidden_layers=1)
    quantise(tmp_path, reference, w8a8(), plain=("pooler.dense", "classifier"))
    place = Placement("cpu")
    model = load_model(tmp_path, "classify", place)
    assert len(place.formats) == 4
    assert set(place.formats.values()) == {"int8"}
    sequences = random_sequences(model, (5, 1, 17, 33))
    together = fusewire_answers(model, sequences, "classify")
    alone = [fusewire_answers(model, [each], "classify")[0] for each in sequences]
    np.testing.assert_equal(together, alone)


@pytest.mark.parametrize(
    "form",
    [
        int_quantized(),
        w8a8(num_bits=4),
        w8a8(type="float"),
        w8a8(symmetric=False),
        w8a8(dynamic=False, strategy="tensor"),
        w8a8("group"),
    ],
)
def test_others_are_dequantised(tmp_path, form):
    """Of activations that stay as they are, or are quantised in another way than products do it,
    and of weights with several scales a row."""
    reference = written(tmp_path, form)
    place = Placement("cpu")
    got = logits_in_pieces(load_decoder(tmp_path, place), SEQUENCES, None)
    expected = transformers_logits(reference, SEQUENCES)
    assert set(place.formats.values()) == {"float32"}
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=MODEL_FP32)


def test_what_is_skipped_is_dequantised(tmp_path):
    reference = written(tmp_path, w8a8())
    names = {"layers.0.self_attn.q_proj", "layers.0.self_attn.o_proj"}
    names |= {"layers.0.mlp.gate_proj", "layers.0.mlp.down_proj"}
    place = Placement("cpu", quantize_skip=names)
    got = logits_in_pieces(load_decoder(tmp_path, place), SEQUENCES, None)
    place.check_skipped()
    for ours, theirs in zip(got, transformers_logits(reference, SEQUENCES), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=MODEL_FP32)


def test_they_take_a_byte_a_number_and_no_more_to_load(tmp_path):
    width, inner = 128, 512
    written(tmp_path, w8a8(), hidden_size=width, intermediate_size=inner, head_dim=32)

    def taken(skip: tuple[str, ...]) -> tuple[int, int]:
        """By the model, and at most by numpy while it is loaded."""
        tracemalloc.start()
        _, bytes_held = held(lambda: load_decoder(tmp_path, Placement("cpu", quantize_skip=skip)))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return bytes_held, peak

    taken(())  # what is imported on the way
    names = ("layers.0.mlp.gate_proj", "layers.0.mlp.down_proj")
    (integers, to_load), (floats, to_dequantise) = taken(()), taken(names)
    of_both = 3 * width * inner
    assert 2.9 * of_both < floats - integers < 3 * of_both  # with scales
    assert to_load < 4 * of_both / 3 < to_dequantise  # less than one matrix in fp32


def test_each_is_measured_beside_what_it_stands_for(tmp_path):
    written(tmp_path, w8a8())
    found = calibrate(tmp_path, "generate", "int8")
    errors = {each.name: each.error for each in found.matrices}
    assert len(errors) == 6  # four of the layer, words and head
    assert all(0 < error < 0.05 for error in errors.values())
