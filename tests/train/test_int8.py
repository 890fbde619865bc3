"""What quantisation-aware training computes is what is served, and training goes on through it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from fusewire.errors import ConfigurationError, Unsupported
from fusewire.models import load_decoder, load_image_model, load_model
from fusewire.placement import Placement
from fusewire.train import Adam, Int8Conv1D, Int8Linear, int8_layers, replace, save_int8
from torch import nn
from transformers.pytorch_utils import Conv1D

from tests.models.oracle import fusewire_answers, random_sequences, transformers_answers
from tests.models.paged_texts import logits_in_pieces
from tests.models.test_image_models import DENSE, LABELS, pixels, saved
from tests.models.tiny_decoders import random_ids, tiny_decoder, transformers_logits
from tests.ops import int8
from tests.reference import tiny_checkpoint
from tests.tolerance import MODEL_FP32

SEQUENCES = random_ids((9, 1, 33))
GATED = "dinov2 with a gated feed-forward"
CLIP = (transformers.CLIPVisionModelWithProjection, transformers.CLIPVisionConfig(**DENSE))


def dequantised(rounded: int8.Rounded) -> np.ndarray:
    return rounded.numbers * rounded.scales[:, None].astype(np.float64)


@torch.enable_grad()
@pytest.mark.parametrize("kind", [Int8Linear, Int8Conv1D])
def test_a_product_is_the_served_one_and_its_gradients_those_of_rounded_matrices(
    kind: type[nn.Module],
) -> None:
    torch.manual_seed(0)
    conv1d = kind is Int8Conv1D
    plain = Conv1D(70, 45) if conv1d else nn.Linear(45, 70)
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.Sequential(plain)])})
    with torch.no_grad():
        plain.bias.normal_()
        (plain.weight.T if conv1d else plain.weight)[3] = 0
    linear = int8_layers(model)["layers"][0][0]
    assert type(linear) is kind
    x = torch.randn(2, 5, 45, requires_grad=True)
    out, dout = linear(x), torch.randn(2, 5, 70)
    out.backward(dout)
    rows = int8.rounded_rows(x.detach().reshape(-1, 45).numpy())
    by_output, gradient = (
        np.ascontiguousarray(each.numpy().T if conv1d else each.numpy())
        for each in (linear.weight.detach(), linear.weight.grad)
    )
    weight = int8.rounded_weight(by_output)
    expected = int8.product(rows, weight, linear.bias.detach().numpy())
    np.testing.assert_array_equal(out.detach().reshape(-1, 70).numpy(), expected)
    flat = dout.reshape(-1, 70).double().numpy()
    for got, wanted in (
        (x.grad.reshape(-1, 45).numpy(), flat @ dequantised(weight)),
        (gradient, flat.T @ dequantised(rows)),
        (linear.bias.grad.numpy(), flat.sum(0)),
    ):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-4)


@torch.enable_grad()
@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
def test_a_decoder_learns_and_is_served_as_it_was_trained(tmp_path: Path, model_type: str) -> None:
    model = int8_layers(tiny_decoder(tmp_path / "before", model_type, num_hidden_layers=1))
    before = np.concatenate(transformers_logits(model, SEQUENCES))
    optimizer = Adam(model.parameters(), lr=1e-3)
    ids = torch.tensor([SEQUENCES[2]])
    losses = []
    for _ in range(20):
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1
    save_int8(model, tmp_path / "after")
    place = Placement("cpu")
    served = load_decoder(tmp_path / "after", place)
    assert set(place.formats.values()) == {"int8"}
    assert place.described == "float32 (int8 weights)"
    assert len(place.formats) == 4
    expected = np.concatenate(transformers_logits(model, SEQUENCES))
    off = np.abs(np.concatenate(logits_in_pieces(served, SEQUENCES, None)) - expected).max(1)
    # In some rows an activation at the edge of two integers takes the other.
    assert np.median(off) <= MODEL_FP32
    assert off.max() < 0.1 * np.abs(expected - before).max()


def test_an_encoder_keeps_what_is_skipped_and_its_head_in_fp32(tmp_path: Path) -> None:
    model = tiny_checkpoint(tmp_path / "before", "bert", "classify", num_hidden_layers=1)
    skip = "bert.encoder.layer.0.output.dense"
    int8_layers(model, skip=[skip])
    with torch.no_grad():
        model.bert.encoder.layer[0].intermediate.dense.weight[3] = 0
    save_int8(model, tmp_path / "after")
    place = Placement("cpu")
    served = load_model(tmp_path / "after", "classify", place)
    layer = "encoder.layer.0."
    assert place.formats == {
        f"{layer}attention.self.query": "int8",
        f"{layer}attention.output.dense": "int8",
        f"{layer}intermediate.dense": "int8",
        f"{layer}output.dense": "float32",
    }
    sequences = random_sequences(served, (5, 1, 17, 33, 9))
    ours, theirs = (
        np.stack([answer["logits"] for answer in answers])
        for answers in (
            fusewire_answers(served, sequences, "classify"),
            transformers_answers(model, served, sequences),
        )
    )
    assert np.median(np.abs(ours - theirs).max(1)) <= MODEL_FP32


def test_what_has_no_such_layers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="int8_layers: got a Embedding without any"):
        int8_layers(nn.Embedding(3, 4))
    with pytest.raises(ConfigurationError, match=r"got .lm_head. to skip, wanted nn"):
        int8_layers(tiny_decoder(tmp_path, "llama", num_hidden_layers=1), skip=["lm_head"])


def test_what_cannot_train_in_int8_is_refused(tmp_path: Path) -> None:
    def fresh() -> nn.Module:
        return tiny_decoder(tmp_path, "llama", num_hidden_layers=1)

    with pytest.raises(ConfigurationError, match="wanted transformers' own; leave `replace` out"):
        int8_layers(replace(fresh()))
    with pytest.raises(Unsupported, match="a Int8Linear"):
        replace(int8_layers(fresh()))
    with pytest.raises(Unsupported, match="a Int8Conv1D"):
        replace(int8_layers(tiny_decoder(tmp_path / "gpt2", "gpt2", num_hidden_layers=1)))
    with pytest.raises(ConfigurationError, match=r"torch\.bfloat16 on cpu, wanted float32"):
        int8_layers(fresh().bfloat16())
    with pytest.raises(ConfigurationError, match="without modules in int8"):
        save_int8(fresh(), tmp_path / "saved")
    model = int8_layers(int8_layers(fresh()), skip="model.layers.0.mlp.down_proj")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="got file, which is a file, wanted a folder"):
        save_int8(model, tmp_path / "file")
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] = np.nan
    with pytest.raises(ConfigurationError, match=r"got NaN or Inf in .*up_proj"):
        save_int8(model, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
def test_what_a_second_call_skips_is_plain_again(tmp_path: Path, model_type: str) -> None:
    model = tiny_decoder(tmp_path, model_type, num_hidden_layers=1)
    before = {name: type(module) for name, module in model.named_modules()}
    names = [n for n, m in int8_layers(model).named_modules() if type(m) is not before[n]]
    int8_layers(model, skip=names[:1])
    rounded = [n for n, m in model.named_modules() if isinstance(m, Int8Linear | Int8Conv1D)]
    assert rounded == names[1:]
    assert type(model.get_submodule(names[0])) is before[names[0]]


def test_autocast_is_refused(tmp_path: Path) -> None:
    model = int8_layers(tiny_decoder(tmp_path, "llama", num_hidden_layers=1))
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(Unsupported, match=r"Int8Linear\.forward: got autocast, .*leave out torch"),
    ):
        model(torch.tensor([[1, 2, 3]]))


def test_modules_that_change_their_class_after_replace_are_refused(tmp_path: Path) -> None:
    model = replace(tiny_decoder(tmp_path, "llama", num_hidden_layers=1))
    model.model.layers[0].mlp.up_proj.__class__ = Int8Linear
    with pytest.raises(Unsupported, match="a Int8Linear"):
        model(torch.tensor([[1, 2, 3]]))


def test_no_rows_give_none(tmp_path: Path) -> None:
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.Sequential(nn.Linear(45, 70))])})
    assert int8_layers(model)["layers"][0][0](torch.zeros(0, 45)).shape == (0, 70)


@pytest.mark.parametrize("name", ["vit", "dinov2", GATED, "clip"])
def test_an_encoder_of_images_is_served_as_it_was_trained(tmp_path: Path, name: str) -> None:
    """DINOv2's layer scales and CLIP's quick GELU are factors of matrices, whose integers stay.
    transformers stores the gate and up projection as one matrix."""
    task = "embed" if name == "clip" else "label"
    kind, config = CLIP if name == "clip" else LABELS[name]
    model = int8_layers(saved(tmp_path / "before", kind, config))
    save_int8(model, tmp_path / "after")
    place = Placement("cpu")
    served = load_image_model(tmp_path / "after", task, place)
    assert set(place.formats.values()) == {"int8"}
    images = pixels(*[(42, 42)] * 7)
    ours = served.results(served.encode(images))
    with torch.no_grad():
        output = model(torch.from_numpy(np.stack(images)))
    theirs = output.image_embeds if name == "clip" else output.logits
    assert np.median(np.abs(ours - theirs.numpy()).max(1)) <= MODEL_FP32


def test_of_matrices_that_are_stored_as_one_none_is_skipped_alone(tmp_path: Path) -> None:
    parts = [f"dinov2.encoder.layer.0.mlp.{name}_proj" for name in ("gate", "up")]
    model = int8_layers(saved(tmp_path / "before", *LABELS[GATED]), skip=parts[1:])
    with pytest.raises(
        ConfigurationError, match=r"got a part of .*layer\.0\.mlp.* in int8, wanted"
    ):
        save_int8(model, tmp_path / "after")
    assert not (tmp_path / "after").exists()
    save_int8(int8_layers(model, skip=parts), tmp_path / "after")
    place = Placement("cpu")
    load_image_model(tmp_path / "after", "label", place)
    in_fp32 = [name for name, form in place.formats.items() if form == "float32"]
    assert in_fp32 == ["encoder.layer.0.mlp.weights_in"]
