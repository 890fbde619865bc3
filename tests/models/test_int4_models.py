"""Folders of 4-bit weights answer like the same folders dequantised, up to rounding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from fusewire.calibration import calibrate
from fusewire.errors import CheckpointError, ConfigurationError
from fusewire.models import load_decoder, load_model
from fusewire.placement import Placement
from safetensors.torch import load_file, save_file

from tests.held import held
from tests.models.oracle import fusewire_answers, random_sequences, transformers_answers
from tests.models.paged_texts import PagedTexts, logits_in_pieces
from tests.models.tiny_decoders import random_ids, tiny_decoder, transformers_logits
from tests.places import CPU_TARGETS, GPU_FP32, GPU_HALVES
from tests.reference import tiny_checkpoint
from tests.tolerance import INT4_VERSUS_DEQUANTISED
from tests.weights.quantized import writers
from tests.weights.quantized.writers import (
    Format,
    awq,
    gptq,
    int_quantized,
    pack_quantized,
    quantise,
)

PLACES = pytest.mark.parametrize("place", [*CPU_TARGETS, *GPU_HALVES], indirect=True)
ON_GPUS = pytest.mark.parametrize("place", GPU_HALVES, indirect=True)
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
SEQUENCES = random_ids((9, 1, 33))
FORMS = {
    "gptq": gptq(group_size=32),
    "gptq-act-order": gptq(group_size=32, act_order=True),
    "gptq-v2": gptq(group_size=32, symmetric=False, version="gptq_v2"),
    "auto-round": gptq(group_size=32, method="auto-round"),
    "awq": awq(32),
    "pack": pack_quantized(group_size=32, symmetric=False),
    "pack-act-order": pack_quantized(group_size=32, symmetric=False, act_order=True),
    "pack-channel": pack_quantized(group_size=-1),
    "bytes": int_quantized("group", bits=4, group_size=32, symmetric=False),
    "bytes-channel": int_quantized(bits=4),
}


def written(folder: Path, form: Format, model_type: str = "llama", **sizes) -> torch.nn.Module:
    reference = tiny_decoder(folder, model_type, **(SIZES | sizes))
    quantise(folder, reference, form, plain=("lm_head", "embed_out"))
    return reference


def again(place: Placement, skip: set[str] | frozenset[str] = frozenset()) -> Placement:
    return Placement(place.device, place.dtype, quantize_skip=skip)


def errors(model, expected: list[np.ndarray]) -> float:
    """Returns the root mean square error of logits, which are of the order of 1."""
    got = logits_in_pieces(model, SEQUENCES, None)
    off = [(ours - theirs).ravel() for ours, theirs in zip(got, expected, strict=True)]
    return float(np.sqrt(np.mean(np.concatenate(off) ** 2)))


def test_a_placement_says_how_many_are_dequantised_beside_others(tmp_path):
    """No kernel supports groups of 48 inputs."""
    reference = tiny_decoder(tmp_path, "llama", **(SIZES | {"num_hidden_layers": 1}))
    kept, others = pack_quantized(group_size=32), pack_quantized(group_size=48)
    groups = {
        target: form.config["config_groups"]["group_0"] | {"targets": [target]}
        for form, target in ((kept, "Linear"), (others, "re:.*down_proj"))
    }
    config = kept.config | {"config_groups": groups}
    quantise(tmp_path, reference, Format(kept.write, config), plain=("lm_head", "down_proj"))
    rest = ("lm_head", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj")
    quantise(tmp_path, reference, Format(others.write, config), plain=rest)

    def described(**given) -> str:
        place = Placement("cpu", **given)
        load_decoder(tmp_path, place)
        return place.described

    remark = "of 4 quantised matrices dequantised"
    assert described() == f"float32 (int4 weights, 1 {remark})"
    assert described(quantize="int8") == f"float32 (int8 and w4a8 weights, 1 {remark})"
    skipped = ["layers.0.self_attn.o_proj"]
    assert described(quantize_skip=skipped) == f"float32 (int4 weights, 2 {remark})"


@PLACES
@pytest.mark.parametrize("name", FORMS)
def test_a_decoder_answers_as_dequantised(tmp_path, name, place):
    reference = written(tmp_path, FORMS[name])
    expected = transformers_logits(reference, SEQUENCES)
    kept = again(place)
    packed = load_decoder(tmp_path, kept)
    assert set(kept.formats.values()) == {"int4"}
    assert kept.described == f"{place.dtype} (int4 weights)"
    skipped = again(place, set(kept.formats))
    dequantised = load_decoder(tmp_path, skipped)
    skipped.check_skipped()
    assert set(skipped.formats.values()) == {place.dtype}
    usual = errors(dequantised, expected)
    assert errors(packed, expected) <= INT4_VERSUS_DEQUANTISED * usual


@PLACES
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("model_type", ["gpt2", "gpt_neox", "qwen3", "phi3"])
def test_stacked_turned_and_regrouped_matrices(tmp_path, model_type, ordered, place):
    form = pack_quantized(group_size=32, symmetric=False, act_order=ordered)
    reference = written(tmp_path, form, model_type)
    expected = transformers_logits(reference, SEQUENCES)
    kept = again(place)
    packed = load_decoder(tmp_path, kept)
    assert set(kept.formats.values()) == {"int4"}
    dequantised = load_decoder(tmp_path, again(place, set(kept.formats)))
    usual = errors(dequantised, expected)
    assert errors(packed, expected) <= INT4_VERSUS_DEQUANTISED * usual


@PLACES
def test_matrices_of_one_input_in_several_orders_are_dequantised(tmp_path, place, monkeypatch):
    """A matrix has one order, but those of queries, keys and values may differ; packers do not
    write such folders."""
    orders = np.random.default_rng(0)
    monkeypatch.setattr(writers, "shuffled", lambda c, size: orders.permutation(c) // size)
    reference = written(tmp_path, gptq(group_size=32, act_order=True))
    expected = transformers_logits(reference, SEQUENCES)
    kept = again(place)
    packed = load_decoder(tmp_path, kept)
    of_matrix = {name.removeprefix("layers.0."): stored for name, stored in kept.formats.items()}
    assert of_matrix["self_attn.q_proj"] == of_matrix["mlp.gate_proj"] == place.dtype
    assert of_matrix["self_attn.o_proj"] == of_matrix["mlp.down_proj"] == "int4"
    dequantised = load_decoder(tmp_path, again(place, set(kept.formats)))
    usual = errors(dequantised, expected)
    assert errors(packed, expected) <= INT4_VERSUS_DEQUANTISED * usual


@PLACES
def test_a_head_may_be_stored_so_too(tmp_path, place):
    reference = tiny_decoder(tmp_path, "llama", vocab_size=136, **SIZES)
    quantise(tmp_path, reference, gptq(group_size=32), plain=())
    expected = transformers_logits(reference, SEQUENCES)
    kept = again(place)
    packed = load_decoder(tmp_path, kept)
    assert kept.formats["lm_head"] == "int4"
    dequantised = load_decoder(tmp_path, again(place, set(kept.formats)))
    usual = errors(dequantised, expected)
    assert errors(packed, expected) <= INT4_VERSUS_DEQUANTISED * usual


@pytest.mark.parametrize("name", ["gptq", "gptq-act-order", "awq", "pack-channel"])
def test_a_cpu_that_multiplies_in_int8_keeps_the_numbers(tmp_path, name):
    """It rounds the inputs of GEMMs, as it does with weights that it quantises itself."""
    reference = written(tmp_path / "packed", FORMS[name])
    reference.save_pretrained(tmp_path / "plain")
    expected = transformers_logits(reference, SEQUENCES)
    kept, rounded = Placement("cpu", quantize="int8"), Placement("cpu", quantize="int8")
    packed = load_decoder(tmp_path / "packed", kept)
    of_layers = {stored for each, stored in kept.formats.items() if each.startswith("layers.")}
    assert of_layers == {"w4a8"}
    assert kept.formats["lm_head"] == "int8"
    assert errors(packed, expected) <= errors(load_decoder(tmp_path / "plain", rounded), expected)


def test_what_int8_leaves_out_stays_in_4_bits(tmp_path):
    """`import` reports this for what it measures."""
    written(tmp_path, FORMS["gptq"])
    found = calibrate(tmp_path, "generate", "int8")
    formats = {each.name: each.format for each in found.matrices}
    assert {formats[name] for name in formats if name.startswith("layers.")} == {"w4a8"}
    assert found.skipped == []
    strict = calibrate(tmp_path, "generate", "int8", most_error=0)
    left = {each.name: each.format for each in strict.matrices}
    assert strict.skipped == list(left)
    assert strict.error == 0
    place = Placement("cpu", quantize="int8", quantize_skip=strict.skipped)
    load_decoder(tmp_path, place)
    place.check_skipped()
    assert place.formats == left
    assert {left[name] for name in left if name.startswith("layers.")} == {"int4"}
    assert left["lm_head"] == "float32"


def test_for_a_gpu_4_bits_are_not_measured(tmp_path):
    written(tmp_path, FORMS["gptq"])
    found = calibrate(tmp_path, "generate", "int8", device="cuda", most_error=0)
    assert found.matrices == ()


@ON_GPUS
@pytest.mark.parametrize("ordered", [False, True])
def test_greedy_generation_is_that_of_recorded_steps(tmp_path, ordered, place):
    written(tmp_path, gptq(group_size=32, act_order=ordered))
    with place.tuning():
        model = load_decoder(tmp_path, place)

    def continued(record: bool) -> list[list[int]]:
        texts = PagedTexts(model, 5)
        if record:
            model.record_steps(texts.cache, 5, max_tokens=40)
        rows = texts.step([(i, random_ids((3 + i,))[0]) for i in range(5)], last=True)
        found: list[list[int]] = [[] for _ in range(5)]
        for _ in range(8):
            tokens = [int(row[-1].argmax()) for row in rows]
            for text, token in zip(found, tokens, strict=True):
                text.append(token)
            rows = texts.step([(i, [token]) for i, token in enumerate(tokens)], last=True)
        return found

    assert continued(False) == continued(True)


@PLACES
def test_an_encoder(tmp_path, place):
    reference = tiny_checkpoint(tmp_path, "bert", "classify", hidden_size=64, intermediate_size=96)
    quantise(tmp_path, reference, awq(32), plain=("pooler.dense", "classifier"))
    kept = again(place)
    packed = load_model(tmp_path, "classify", kept)
    assert "int4" in kept.formats.values()
    dequantised = load_model(tmp_path, "classify", again(place, set(kept.formats)))
    sequences = random_sequences(packed, [3, 60, 1, 33])
    exact = transformers_answers(reference, packed, sequences)

    def off(model) -> float:
        """Returns the root mean square error of logits."""
        found = fusewire_answers(model, sequences, "classify")
        both = zip(found, exact, strict=True)
        return float(np.sqrt(np.mean([(a["logits"] - b["logits"]) ** 2 for a, b in both])))

    assert off(packed) <= 4 * off(dequantised)


@PLACES
def test_they_take_half_a_byte_a_number(tmp_path, place):
    width, inner = 128, 512
    written(tmp_path, gptq(group_size=128), hidden_size=width, intermediate_size=inner)

    def taken(skip: tuple[str, ...]) -> int:
        return held(lambda: load_decoder(tmp_path, again(place, set(skip))), place.device)[1]

    numbers = 3 * width * inner
    saved = taken(("layers.0.mlp.gate_proj", "layers.0.mlp.down_proj")) - taken(())
    # Bytes saved per weight, minus half a byte and the scales.
    dense = 4 if place.dtype == "float32" else 2
    assert dense - 0.55 < saved / numbers < dense - 0.5


@pytest.mark.parametrize("place", GPU_HALVES[:1], indirect=True)
def test_numbers_that_float16_cannot_hold_are_refused(tmp_path, place):
    written(tmp_path, gptq(group_size=32))
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.0.mlp.down_proj.scales"
    tensors[name] = torch.full_like(tensors[name], 60000.0)
    save_file(tensors, path)
    with pytest.raises(ConfigurationError, match=r"got float16 for layers.0.mlp.down_proj"):
        load_decoder(tmp_path, again(place))


@PLACES
@pytest.mark.parametrize("wrong", [0.0, float("nan")])
def test_tampered_scales_are_refused(tmp_path, place, wrong):
    written(tmp_path, gptq(group_size=32))
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.0.mlp.down_proj.scales"][0, 0] = wrong
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match="scales"):
        load_decoder(tmp_path, again(place))


@PLACES
@pytest.mark.parametrize("wrong", [-1, 1000, "short"])
def test_a_tampered_order_is_refused(tmp_path, place, wrong):
    written(tmp_path, gptq(group_size=32, act_order=True))
    path, name = tmp_path / "model.safetensors", "model.layers.0.mlp.down_proj.g_idx"
    tensors = load_file(path)
    if wrong == "short":
        tensors[name] = tensors[name][:-1].clone()
    else:
        tensors[name][3] = wrong
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=rf"tensor '{name}': got .*, wanted"):
        load_decoder(tmp_path, again(place))


@pytest.mark.parametrize("place", [GPU_FP32], indirect=True)
def test_float32_dequantises(tmp_path, place):
    written(tmp_path, gptq(group_size=32))
    found = again(place)
    load_decoder(tmp_path, found)
    assert set(found.formats.values()) == {"float32"}
