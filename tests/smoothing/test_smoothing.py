"""A smoothed folder is the same function in fp32, and loses less in int8."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from fusewire.errors import ConfigurationError
from fusewire.models import DECODERS, blueprint_of, load_decoder, read_config
from fusewire.models.assemble import Weights
from fusewire.models.blueprint import Blueprint, Layer
from fusewire.models.decoder import DecoderModel
from fusewire.models.stored_weights import Norm
from fusewire.placement import Placement
from fusewire.serving.served_files import descriptions
from fusewire.smoothing import check_smooth, smoothed
from fusewire.smoothing.channels import channels_of
from fusewire.smoothing.factors import changes
from fusewire.smoothing.maxima import channel_maxima
from fusewire.weights import Checkpoint, weight_files
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file as save_torch

from tests.models.paged_texts import logits_in_pieces
from tests.models.test_model_refusals import edit_weights, rename
from tests.models.tiny_decoders import random_ids, tiny_decoder, transformers_logits
from tests.models.tiny_seq2seq import tiny_seq2seq
from tests.reference import edit_config, tiny_checkpoint
from tests.smoothing.outliers import CHANNELS, LARGER, outlier_decoder
from tests.tolerance import MODEL_FP32

SEQUENCES = random_ids((9, 1, 33, 20, 14))
ALPHA = 0.5


@contextmanager
def smooth(folder: Path, alpha: float = ALPHA) -> Iterator[Path]:
    with smoothed(folder, alpha, descriptions(folder), folder.parent) as changed:
        yield changed


def logits(folder: Path, place: Placement | None = None) -> np.ndarray:
    return np.concatenate(logits_in_pieces(load_decoder(folder, place), SEQUENCES, None))


def int8_error(folder: Path, truth: np.ndarray) -> float:
    """Of logits where the layers are int8, and nothing else."""
    words = blueprint_of(read_config(folder), "generate").stack.embeddings.word.name
    skip = words.removesuffix(".weight"), "lm_head"
    off = logits(folder, Placement("cpu", quantize="int8", quantize_skip=skip)) - truth
    return float(np.linalg.norm(off) / np.linalg.norm(truth))


@pytest.mark.parametrize("model_type", DECODERS)
def test_logits_stay_and_errors_of_int8_fall(tmp_path: Path, model_type: str) -> None:
    folder = tmp_path / "model"
    outlier_decoder(folder, model_type)
    truth = logits(folder)
    with smooth(folder) as changed:
        if model_type.startswith("gemma"):  # what norms store is rounded
            np.testing.assert_allclose(logits(changed), truth, rtol=0, atol=MODEL_FP32)
        else:
            np.testing.assert_array_equal(logits(changed), truth)
        causal = transformers.AutoModelForCausalLM.from_pretrained(
            changed, attn_implementation="eager", dtype=torch.float32
        )
        theirs = np.concatenate(transformers_logits(causal.eval(), SEQUENCES))
        np.testing.assert_allclose(theirs, truth, rtol=0, atol=2 * MODEL_FP32)
        assert int8_error(changed, truth) < int8_error(folder, truth) / 5


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_weights_in_half_precision_lose_nothing(tmp_path: Path, stored: torch.dtype) -> None:
    folder = tmp_path / "model"
    outlier_decoder(folder, "llama")
    path = folder / "model.safetensors"
    halves = {name: tensor.to(stored) for name, tensor in load_torch(path).items()}
    save_torch(halves, path)
    truth = logits(folder)
    with smooth(folder) as changed:
        np.testing.assert_array_equal(logits(changed), truth)
        dtypes = {name: each.dtype for name, each in load_torch(changed / path.name).items()}
    assert dtypes["model.embed_tokens.weight"] == stored
    kept = torch.bfloat16 if stored == torch.bfloat16 else torch.float32
    assert dtypes["model.layers.0.self_attn.q_proj.weight"] == kept


def test_shards_and_buffers_stay_where_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    outlier_decoder(folder, "gpt2", shard="60KB")
    first = next(iter(weight_files(folder)))
    plain = load_torch(folder / first)
    assert len(weight_files(folder)) > 1
    index = folder / "model.safetensors.index.json"
    mask = "transformer.h.0.attn.bias"
    index.write_text(
        index.read_text().replace('"weight_map": {', f'"weight_map": {{"{mask}": "{first}",')
    )
    save_torch(plain | {mask: torch.ones(1, 1, 4, 4, dtype=torch.uint8)}, folder / first)
    truth = logits(folder)
    with smooth(folder) as changed:
        assert weight_files(changed) == weight_files(folder)
        assert load_torch(changed / first)[mask].dtype == torch.uint8
        np.testing.assert_array_equal(logits(changed), truth)
    assert not list(tmp_path.glob(".import-*"))


def test_tensors_are_found_without_the_prefix_of_the_base_model(tmp_path: Path) -> None:
    """As GPT-2 is published."""
    folder = tmp_path / "model"
    outlier_decoder(folder, "gpt2")
    edit_weights(
        folder, lambda tensors: rename(tensors, lambda name: name.removeprefix("transformer."))
    )
    truth = logits(folder)
    with smooth(folder) as changed:
        np.testing.assert_array_equal(logits(changed), truth)
        assert int8_error(changed, truth) < int8_error(folder, truth) / 5


def test_a_model_without_outliers_keeps_its_quality(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    tiny_decoder(folder, "llama")
    truth = logits(folder)
    with smooth(folder) as changed:
        assert int8_error(changed, truth) < 1.1 * int8_error(folder, truth)


def model_of(blueprint: Blueprint, tensors: dict[str, np.ndarray]) -> DecoderModel:
    checkpoint = Checkpoint.from_arrays(tensors, "the model", blueprint.prefix, blueprint.aliases)
    return DecoderModel(blueprint, checkpoint, Placement("cpu"), config={}, folder=None)


def test_matrices_that_read_one_norm_have_one_scale(tmp_path: Path) -> None:
    """Parallel parts behind one norm, as GPT-J and Falcon have them."""
    outlier_decoder(tmp_path, "gpt_neox")
    two = blueprint_of(read_config(tmp_path), "generate")
    layers = tuple(
        replace(
            each,
            blocks=tuple(replace(b, input_norm=each.blocks[0].input_norm) for b in each.blocks),
        )
        for each in two.stack.layers
    )
    blueprint = replace(two, stack=replace(two.stack, layers=layers))
    tensors = {
        name: tensor
        for name, tensor in load_file(tmp_path / "model.safetensors").items()
        if "post_attention" not in name
    }
    checkpoint = Checkpoint.from_arrays(tensors, "the model", blueprint.prefix, blueprint.aliases)
    place = Placement("cpu")
    texts = [np.array(ids) for ids in SEQUENCES]
    maxima = channel_maxima(blueprint, checkpoint, texts, place)
    found = changes(channels_of(blueprint), maxima, Weights(checkpoint, place), ALPHA)
    attention, feed_forward = (
        found[f"layers.0.{name}.weight"].columns
        for name in ("attention.query_key_value", "mlp.dense_h_to_4h")
    )
    np.testing.assert_array_equal(attention, feed_forward)
    assert np.abs(attention).max() > 2
    prefix = f"{blueprint.prefix}."
    changed = {
        name: found[short].of(tensor) if (short := name.removeprefix(prefix)) in found else tensor
        for name, tensor in tensors.items()
    }
    before, after = (
        np.concatenate(logits_in_pieces(model_of(blueprint, each), SEQUENCES, None))
        for each in (tensors, changed)
    )
    np.testing.assert_array_equal(before, after)


def test_maxima_are_those_of_transformers(tmp_path: Path) -> None:
    reference = tiny_decoder(tmp_path, "llama")
    seen: dict[str, list[np.ndarray]] = {}

    def watch(name: str) -> None:
        def hook(
            module: torch.nn.Module, given: tuple[torch.Tensor, ...], out: torch.Tensor
        ) -> None:
            rows = out if name.endswith("v_proj") else given[0]
            seen.setdefault(name, []).append(rows[0].abs().amax(0).numpy())

        reference.model.get_submodule(name).register_forward_hook(hook)

    blueprint = blueprint_of(read_config(tmp_path), "generate")
    names = {}
    for index in range(3):
        root = f"layers.{index}"
        names |= {
            f"{root}.self_attn.q_proj": f"{root}.input_layernorm",
            f"{root}.self_attn.v_proj": f"{root}.self_attn.q_proj",
            f"{root}.mlp.gate_proj": f"{root}.post_attention_layernorm",
            f"{root}.mlp.down_proj": f"{root}.mlp.gate_proj",
        }
    for name in names:
        watch(name)
    transformers_logits(reference, SEQUENCES)
    checkpoint = Checkpoint.open(tmp_path, blueprint.prefix, blueprint.aliases)
    texts = [np.array(ids) for ids in SEQUENCES]
    maxima = channel_maxima(blueprint, checkpoint, texts, Placement("cpu"))
    ours = {(s.name if isinstance(s, Norm) else s.names[0]): each for s, each in maxima.items()}
    assert ours.keys() == set(names.values())
    for name, source in names.items():
        expected = np.max(seen[name], axis=0)
        np.testing.assert_allclose(ours[source], expected, rtol=0, atol=MODEL_FP32, err_msg=name)


def test_outliers_are_divided_by_the_papers_factor(tmp_path: Path) -> None:
    """To the nearest power of two, and times what is common to all channels."""
    outlier_decoder(tmp_path, "llama")
    blueprint = blueprint_of(read_config(tmp_path), "generate")
    checkpoint = Checkpoint.open(tmp_path, blueprint.prefix, blueprint.aliases)
    place = Placement("cpu")
    texts = [np.array(ids) for ids in SEQUENCES]
    weights = Weights(checkpoint, place)
    maxima = channel_maxima(blueprint, checkpoint, texts, place)
    norm = blueprint.stack.layers[0].blocks[0].input_norm
    assert norm is not None
    qkv = np.concatenate(
        [checkpoint.take(f"layers.0.self_attn.{name}_proj.weight") for name in "qkv"]
    )
    for alpha in (0.3, 0.8):
        found = changes(channels_of(blueprint), maxima, weights, alpha)
        exponents = -found[f"{norm.name}.weight"].rows
        wanted = np.log2(maxima[norm] ** alpha / np.abs(qkv).max(0) ** (1 - alpha))
        off = wanted - exponents
        assert np.ptp(off) <= 1.001
        others = np.delete(exponents, CHANNELS)
        assert exponents[CHANNELS].min() > others.max()
        assert exponents[CHANNELS].max() <= np.log2(LARGER) + others.max() + 2


def test_a_tied_norm_is_refused_by_name(tmp_path: Path) -> None:
    tiny_decoder(tmp_path, "llama")
    blueprint = blueprint_of(read_config(tmp_path), "generate")
    first, second, third = blueprint.stack.layers
    norm = first.blocks[0].input_norm
    tied = Layer((replace(second.blocks[0], input_norm=norm), second.blocks[1]))
    stack = replace(blueprint.stack, layers=(first, tied, third))
    wanted = r"smooth: got layers.0.input_layernorm.weight, which the model uses in 2 places"
    with pytest.raises(ConfigurationError, match=wanted):
        channels_of(replace(blueprint, stack=stack))


def test_what_cannot_be_smoothed_is_refused(tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path / "bert", "bert")
    tiny_seq2seq(tmp_path / "t5", "t5")
    for model_type in ("bert", "t5"):
        wanted = rf"smooth: got a model of the type {model_type}, wanted a decoder \(gpt2, "
        with pytest.raises(ConfigurationError, match=wanted):
            check_smooth(read_config(tmp_path / model_type), ALPHA)
    folder = tmp_path / "opt"
    tiny_decoder(folder, "opt", do_layer_norm_before=False)
    with pytest.raises(
        ConfigurationError, match=r"decoder.layers.0.self_attn.q_proj without a norm in front"
    ):
        check_smooth(read_config(folder), ALPHA)
    tiny_decoder(folder, "llama")
    for alpha in (-0.1, 1.5, float("nan")):
        with pytest.raises(ConfigurationError, match=r"smooth: got .*, wanted a number in 0..1"):
            check_smooth(read_config(folder), alpha)
    edit_config(folder, quantization_config={"quant_method": "gptq"})
    with pytest.raises(ConfigurationError, match=r"quantised already \(gptq\)"):
        check_smooth(read_config(folder), ALPHA)
