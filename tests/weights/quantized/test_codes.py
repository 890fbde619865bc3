"""Folders that are meant for products of 8 bits (W8A8) keep their codes where a device multiplies
them: which do, and what GPUs make of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from fusewire import kernels
from fusewire.matrix_formats import MatrixFormats
from fusewire.models import load_decoder, load_model
from fusewire.models.assemble import Weights
from fusewire.models.stored_weights import Dense
from fusewire.placement import Placement
from fusewire.weights import Checkpoint
from fusewire.weights.quantized import BLOCKS
from safetensors.torch import load_file, save_file

from tests.models.oracle import fusewire_answers, random_sequences
from tests.models.paged_texts import PagedTexts, logits_in_pieces
from tests.models.tiny_decoders import random_ids, tiny_decoder, transformers_logits
from tests.ops.float8_rows import exactly, rounded_blocks, rounded_rows, rounded_with
from tests.places import GPU_HALVES, rounded
from tests.reference import tiny_checkpoint
from tests.weights.quantized.writers import (
    FORMATS,
    INPUT_SCALE,
    Format,
    block_fp8,
    float_quantized,
    fp8_of_blocks,
    quantise,
    static_fp8,
    static_w8a8,
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
    pytest.param(static_fp8(), "float8_e4m3", id="fp8-whole-static"),
    pytest.param(static_w8a8(), "float8_e4m3", id="fp8-tensor-static"),
    pytest.param(static_w8a8("channel"), "float8_e4m3", id="fp8-static"),
    pytest.param(block_fp8((128, 128)), BLOCKS, id="fp8-blocks"),
    pytest.param(fp8_of_blocks(), BLOCKS, id="compressed-fp8-blocks"),
]
# Queries, keys and values of whole blocks, a hidden size of no whole ones.
OF_BLOCKS = {"hidden_size": 192, "intermediate_size": 256, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 64}  # fmt: skip
MULTIPLIED = ("fp8-whole", "fp8-static", "fp8-static-channel")
ON_GPUS = pytest.mark.parametrize("place", GPU_HALVES, indirect=True)
LEAST_COSINE = 0.99  # of tiny random models, whose channels have few numbers to even errors out


@pytest.fixture
def hopper(place: Placement) -> Placement:
    if "float8_e4m3" not in kernels.weight_formats(place.dtype, place.stream):
        pytest.skip("this GPU has no kernels for float8_e4m3")
    return place


def written(folder: Path, form: Format) -> torch.nn.Module:
    reference = tiny_decoder(folder, "llama", num_hidden_layers=1, **OF_BLOCKS)
    quantise(folder, reference, form, plain=("lm_head", "embed_out"))
    return reference


def as_multiplied(x: np.ndarray, stored: str, input_scale: float) -> np.ndarray:
    """What a product in the format makes of rows."""
    if stored == BLOCKS:
        return exactly(rounded_blocks(x))
    if stored == "float8_e4m3":
        return exactly(rounded_with(x, input_scale) if input_scale else rounded_rows(x))
    top = np.abs(x).max(1, keepdims=True)
    return np.rint(x * (np.float32(127) / top)) * (top / np.float32(127)).astype(np.float64)


@pytest.mark.parametrize(("form", "stored"), KEPT)
def test_codes_and_scales_are_those_of_the_file(tmp_path, form, stored):
    rows, columns = 180, 148
    weight = np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32)
    layer = write_layer(tmp_path, form, weight)
    checkpoint = Checkpoint.open(tmp_path)
    checkpoint.check({"layer.weight": weight.shape}, [])
    found = checkpoint.codes("layer.weight")
    assert found is not None
    assert found.format == stored
    assert rows * columns < checkpoint.quantized_bytes <= rows * (columns + 4) + 4
    np.testing.assert_array_equal(found.codes, layer.tensors["weight"].view(torch.uint8).numpy())
    name = next(name for name in layer.tensors if name.startswith("weight_scale"))
    scales = layer.tensors[name].float().numpy()
    if stored != BLOCKS:
        scales = np.broadcast_to(scales.reshape(-1), rows)
    np.testing.assert_array_equal(found.scales, scales)
    of_input = layer.tensors.keys() & {"input_scale", "activation_scale"}
    assert found.input_scale == (np.float32(INPUT_SCALE) if of_input else 0)


@pytest.mark.parametrize(
    "form",
    [
        *(FORMATS[name] for name in FORMATS if name not in MULTIPLIED),
        w8a8(symmetric=False),
        w8a8(type="float"),
        w8a8("channel", "float", type="int"),
        w8a8("channel", "float", dynamic=False),
        w8a8("channel", dynamic=False, strategy="tensor"),
        w8a8("block", "float"),
        w8a8("block", "float", strategy="group", group_size=64),
        w8a8("block", "float", group_size=128),
        w8a8("group"),
        float_quantized(),
    ],
)
def test_others_have_none(tmp_path, form):
    """Of activations that stay as they are, or are quantised in another way than products do it,
    and of weights with several scales a row that are none of blocks."""
    write_layer(tmp_path, form, np.ones((160, 144), np.float32))
    checkpoint = Checkpoint.open(tmp_path)
    checkpoint.check({"layer.weight": (160, 144)}, [])
    assert checkpoint.codes("layer.weight") is None


def test_a_cpu_dequantises_fp8(tmp_path):
    written(tmp_path, w8a8("channel", "float"))
    place = Placement("cpu")
    load_decoder(tmp_path, place)
    assert set(place.formats.values()) == {"float32"}


class _Multiplying(MatrixFormats):
    """As of a device that multiplies 8 bits."""

    def _has(self, stored: str) -> bool:
        return True


class _Recording(Placement):
    """As of such a device: what it is given to store."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.matrices = _Multiplying(self.precision, self.stream)
        self.given: list[tuple[str, np.ndarray, np.ndarray]] = []

    def codes_linear(self, stored, codes, scales, input_scale, bias, name):
        self.given.append((stored, codes, scales, input_scale))
        return super().codes_linear("int8", codes, np.ones(len(codes), np.float32), 0.0, bias, name)


@pytest.mark.parametrize(("form", "stored"), KEPT)
def test_matrices_that_become_one_are_joined_by_rows(tmp_path, form, stored):
    written(tmp_path, form)
    tensors, place = load_file(tmp_path / "model.safetensors"), _Recording()
    parts = [tensors[f"model.{name}.weight"].view(torch.uint8).numpy() for name in QKV]
    inputs, outputs = parts[0].shape[1], sum(map(len, parts))
    dense = Dense(QKV, inputs, outputs, bias=False)
    Weights(Checkpoint.open(tmp_path, "model"), place).layer_linear(dense)
    ((given, codes, scales, _),) = place.given
    assert given == stored
    np.testing.assert_array_equal(codes, np.concatenate(parts))
    assert scales.shape == ((outputs // 128, -(-inputs // 128)) if stored == BLOCKS else (outputs,))


@pytest.mark.parametrize(
    ("form", "changed"),
    [
        pytest.param(static_fp8(), "k_proj.activation_scale", id="scales"),
        pytest.param(block_fp8((128, 128)), "", id="blocks"),
    ],
)
def test_parts_that_do_not_join_are_dequantised(tmp_path, form, changed):
    """Of other input scales, and blocks with rows of two."""
    sizes = OF_BLOCKS | ({} if changed else {"head_dim": 32})
    reference = tiny_decoder(tmp_path, "llama", num_hidden_layers=1, **sizes)
    quantise(tmp_path, reference, form)
    tensors, place = load_file(tmp_path / "model.safetensors"), _Recording()
    for name in (name for name in tensors if changed and name.endswith(changed)):
        tensors[name] = tensors[name] * 2
    save_file(tensors, tmp_path / "model.safetensors")
    inputs, outputs = 192, sum(len(tensors[f"model.{name}.weight"]) for name in QKV)
    Weights(Checkpoint.open(tmp_path, "model"), place).layer_linear(
        Dense(QKV, inputs, outputs, bias=False)
    )
    assert not place.given


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
    """And of rows in the folder's format."""
    written(tmp_path, form)
    checkpoint = Checkpoint.open(tmp_path, "model")
    inputs = checkpoint.take(f"{QKV[0]}.weight").shape[1]
    whole = np.concatenate([checkpoint.take(f"{name}.weight") for name in QKV])
    dense = Dense(QKV, inputs, len(whole), bias=False)
    linear = Weights(checkpoint, hopper).layer_linear(dense)
    assert linear.format == stored
    x = np.random.default_rng(0).normal(size=(9, inputs)).astype(np.float32) * 4
    x = rounded(x, hopper.dtype)
    out = hopper.empty(9, len(whole))
    kernels.linear(out, hopper.floats(x), linear, "none", hopper.stream)
    rows = as_multiplied(x, stored, checkpoint.codes(f"{QKV[0]}.weight").input_scale)
    exact = rows @ whole.T.astype(np.float64)
    bits = {"float16": 11, "bfloat16": 8}[hopper.dtype]
    allowed = np.abs(exact) * 2.0**-bits + np.abs(rows) @ np.abs(whole.T) * 3e-4
    assert (np.abs(hopper.numpy(out) - exact) <= allowed).all()


@pytest.mark.parametrize("form", [static_fp8(), block_fp8((128, 128))], ids=["static", "blocks"])
@ON_GPUS
def test_recorded_steps_are_the_launched_ones(tmp_path, form, hopper):
    written(tmp_path, form)
    kept = Placement(hopper.device, hopper.dtype)
    model = load_decoder(tmp_path, kept)

    def steps(record: bool) -> list[np.ndarray]:
        rng, texts, answers = np.random.default_rng(0), PagedTexts(model, 4), []
        if record:
            model.record_steps(texts.cache, 4, max_tokens=40)
        for count in (5, 1, 1, 1):
            new = [rng.integers(0, model.vocab_size, count).tolist() for _ in range(4)]
            answers += texts.step(list(enumerate(new)))
        assert not record or model._replays.hits > 0
        return answers

    with kept.tuning():  # a kernel for each product, before and behind
        launched, recorded = steps(False), steps(True)
    for one, other in zip(launched, recorded, strict=True):
        np.testing.assert_array_equal(one, other)


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
