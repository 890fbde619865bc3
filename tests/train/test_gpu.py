"""Replaced models on a GPU: their gradients against transformers' in fp64, and refusals."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from fusewire import train
from fusewire.errors import ConfigurationError
from fusewire.train.packed import Packed

from tests.tolerance import TRAINED_VERSUS_EAGER
from tests.train.test_replace import expect_equal
from tests.train.tiny_models import both, eager, loss_of, ragged

pytestmark = pytest.mark.gpu

NAMES = [
    "BertForSequenceClassification",
    "BertForMaskedLM",
    "GPT2LMHeadModel",
    "GPTNeoXForCausalLM",
    "LlamaForCausalLM",
    "Qwen3ForCausalLM",
    "ViTForImageClassification",
    "BartForConditionalGeneration",
    "T5ForConditionalGeneration",
    "UMT5ForConditionalGeneration",
]
# Wide enough for the kernels of tensor cores.
WIDE: dict[str, dict[str, Any]] = {
    "BertForMaskedLM": {"hidden_size": 256, "intermediate_size": 512},
    "GPT2LMHeadModel": {"n_embd": 256},
    "GPTNeoXForCausalLM": {"hidden_size": 256, "intermediate_size": 512},
    "LlamaForCausalLM": {"hidden_size": 256, "intermediate_size": 512},
    "T5ForConditionalGeneration": {"d_model": 256, "d_kv": 64, "d_ff": 512},
}
HALVES = [torch.bfloat16, torch.float16]


def pair(name: str, **more: Any) -> tuple[Any, Any]:
    """transformers' own and the replaced one, on the GPU."""
    theirs = eager(name, **more).cuda()
    return theirs, train.replace(copy.deepcopy(theirs))


def batch_of(name: str, seed: int = 0) -> dict[str, Any]:
    return {key: value.cuda() for key, value in ragged(name, seed=seed).items()}


def gradients(
    model: Any, batch: dict[str, Any], dtype: torch.dtype | None = None
) -> tuple[float, dict[str, torch.Tensor]]:
    model.zero_grad()
    with nullcontext() if dtype is None else torch.autocast("cuda", dtype):
        loss = loss_of(model, batch)
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return float(loss.detach()), found


def doubled(batch: dict[str, Any]) -> dict[str, Any]:
    return {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}


def truth(theirs: Any, batch: dict[str, Any]) -> tuple[float, dict[str, torch.Tensor]]:
    return gradients(copy.deepcopy(theirs).double(), doubled(batch))


def joined(found: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([found[name].double().flatten() for name in sorted(found)])


@pytest.mark.parametrize("name", NAMES)
def test_gradients_in_fp32_are_those_of_fp64(name: str) -> None:
    theirs, ours = pair(name)
    batch = batch_of(name)
    expect_equal(gradients(ours, batch), truth(theirs, batch))
    # Weights that were written are read anew.
    with torch.no_grad():
        for model in (theirs, ours):
            for parameter in model.parameters():
                parameter.mul_(0.9)
    expect_equal(gradients(ours, batch), truth(theirs, batch))


@pytest.mark.parametrize("name", WIDE)
def test_gradients_of_wide_layers_are_those_of_fp64(name: str) -> None:
    theirs, ours = pair(name, **WIDE[name])
    batch = batch_of(name)
    expect_equal(gradients(ours, batch), truth(theirs, batch))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", WIDE)
def test_gradients_under_autocast_are_within_twice_its_own_error(
    name: str, dtype: torch.dtype
) -> None:
    """Of transformers in the dtype throughout, as our hidden states are, against fp64."""
    theirs, ours = pair(name, **WIDE[name])
    batch = batch_of(name)
    right = joined(truth(theirs, batch)[1])
    plain = joined(gradients(copy.deepcopy(theirs).to(dtype), batch)[1])
    loss, found = gradients(ours, batch, dtype)
    assert all(g.dtype == torch.float32 for g in found.values())
    assert loss == pytest.approx(truth(theirs, batch)[0], rel=0.02)
    assert float((joined(found) - right).norm()) <= 2 * float((plain - right).norm())


@pytest.mark.parametrize("dtype", [None, *HALVES], ids=str)
def test_norms_stored_as_their_difference_from_1_are_read_anew(dtype: torch.dtype | None) -> None:
    """Rows of one length: in fp64 transformers makes NaN of padding that no window reaches."""
    name = "Gemma3ForCausalLM"
    theirs, ours = pair(name, hidden_size=256, intermediate_size=512)
    batch = {key: value.cuda() for key, value in ragged(name, (11, 11, 11)).items()}
    for _ in range(2):
        right, found = truth(theirs, batch), gradients(ours, batch, dtype)
        if dtype is None:
            expect_equal(found, right)
        else:
            plain = joined(gradients(copy.deepcopy(theirs).to(dtype), batch)[1])
            off = joined(found[1]) - joined(right[1])
            assert float(off.norm()) <= 2 * float((plain - joined(right[1])).norm())
        with torch.no_grad():
            for model in (theirs, ours):
                for parameter in model.parameters():
                    parameter.mul_(0.9)


@pytest.mark.parametrize("name", ["BertForMaskedLM", "GPT2LMHeadModel"])
def test_hidden_states_under_autocast_are_of_its_dtype(name: str) -> None:
    _, ours = pair(name)
    batch = batch_of(name)
    del batch["labels"]
    with torch.autocast("cuda", torch.bfloat16):
        assert ours.base_model(**batch)[0].dtype == torch.bfloat16
    assert ours.base_model(**batch)[0].dtype == torch.float32


@pytest.mark.parametrize("recompute", ["norm", "activation", "layer"])
def test_recomputing_changes_no_bit(recompute: str) -> None:
    name = "LlamaForCausalLM"
    plain = eager(name).cuda()
    found = [
        gradients(train.replace(copy.deepcopy(plain), recompute=kind), batch_of(name))
        for kind in ("none", recompute)
    ]
    assert all(torch.equal(found[0][1][n], found[1][1][n]) for n in found[0][1])


# Parameters belong to the first stream; of their embeddings' gradients torch says so.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match:UserWarning")
def test_backward_is_bit_equal_in_many_runs_and_on_another_stream() -> None:
    name = "GPT2LMHeadModel"
    _, ours = pair(name, n_embd=256)
    batch = batch_of(name)
    first = gradients(ours, batch)[1]
    other = torch.cuda.Stream()
    for run in range(20):
        stream = other if run % 2 else torch.cuda.current_stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            again = gradients(ours, batch)[1]
        torch.cuda.synchronize()
        # Those of embeddings are torch's, whose sums are in no order.
        layers = [n for n in first if ".h." in n]
        assert all(torch.equal(again[n], first[n]) for n in layers)


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "GPT2LMHeadModel"])
def test_50_steps_follow_the_same_curve(name: str) -> None:
    curves = []
    for model in pair(name):
        steps = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
        curve = []
        for step in range(50):
            loss = loss_of(model, batch_of(name, seed=step % 5))
            loss.backward()
            steps.step()
            steps.zero_grad()
            curve.append(float(loss.detach()))
        curves.append(curve)
    assert curves[1] == pytest.approx(curves[0], rel=TRAINED_VERSUS_EAGER)


def test_dropout_is_the_same_on_a_cpu_and_a_gpu() -> None:
    name = "GPT2LMHeadModel"
    plain = eager(name, dropout=0.2)
    for module in plain.modules():  # torch's own, whose masks differ by device
        if isinstance(module, torch.nn.Dropout) and module is plain.transformer.drop:
            module.p = 0.0
    found = []
    for place in ("cpu", "cuda"):
        model = train.replace(copy.deepcopy(plain).to(place))
        batch = {key: value.to(place) for key, value in ragged(name).items()}
        torch.manual_seed(3)
        loss, grads = gradients(model, batch)
        found.append((loss, {key: value.cpu() for key, value in grads.items()}))
    expect_equal(found[1], found[0])


@pytest.mark.parametrize(
    "name", ["BertForSequenceClassification", "GPTNeoXForCausalLM", "T5ForConditionalGeneration"]
)
def test_a_replaced_model_may_be_moved(name: str) -> None:
    """To a GPU, as the Trainer does, and back; an optimizer that was made before goes along."""
    theirs, ours = both(name)
    optimizer = train.Adam(ours.parameters(), lr=1e-3)
    gradients(ours, ragged(name))
    ours.cuda()
    expect_equal(gradients(ours, batch_of(name)), truth(theirs.cuda(), batch_of(name)))
    optimizer.step()
    assert all(p.device.type == "cuda" for p in ours.parameters())
    theirs.load_state_dict(ours.state_dict())
    expect_equal(gradients(ours, batch_of(name)), truth(theirs, batch_of(name)))
    ours.cpu()
    expect_equal(gradients(ours, ragged(name)), truth(theirs.cpu(), ragged(name)))


def test_what_it_saves_is_what_transformers_reads(tmp_path: Any) -> None:
    theirs, ours = pair("BertForSequenceClassification")
    ours.save_pretrained(tmp_path)
    again = type(theirs).from_pretrained(tmp_path).cuda().eval()
    batch = batch_of("BertForSequenceClassification")
    ours.eval()
    assert torch.allclose(ours(**batch).logits, again(**batch).logits, atol=1e-4)


class TestRefusals:
    def test_a_model_of_which_a_part_is_moved(self) -> None:
        _, ours = both("BertModel")
        ours.encoder.cuda()
        with pytest.raises(ConfigurationError, match="on cuda:0, wanted cpu as when its module"):
            loss_of(ours, ragged("BertModel"))

    def test_hidden_states_of_another_device(self) -> None:
        _, ours = pair("BertModel")
        layers = ours.encoder.layer
        with pytest.raises(ConfigurationError, match="on cpu, wanted float32 on cuda:0"):
            ours.fusewire(torch.zeros(2, 32), Packed((1, 2)), None, layers)


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("name", ["BertForSequenceClassification", "GPT2LMHeadModel"])
def test_adam_steps_as_torchs(name: str, clip: float | None) -> None:
    theirs, ours = pair(name)
    # Gradients of the biases of keys are 0 but for rounding: a small eps would make steps of it.
    options = {"lr": 1e-3, "eps": 1e-5}
    reference = torch.optim.AdamW(theirs.parameters(), **options)
    optimizer = train.Adam(ours.parameters(), **options, max_grad_norm=clip)
    for seed in range(10):
        batch = batch_of(name, seed)
        for model in (theirs, ours):
            model.zero_grad()
            loss_of(model, batch).backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip or float("inf"))
        reference.step()
        optimizer.step()
        assert optimizer.gradient_norm == pytest.approx(norm.item(), rel=1e-3)
    for p, wanted in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert (p - wanted).abs().mean() < 1e-5
    assert optimizer.skipped_steps == 0
    copied = train.Adam(ours.parameters(), lr=1e-3)
    copied.load_state_dict(optimizer.state_dict())
    assert all(
        torch.equal(copied.state[p]["exp_avg"], optimizer.state[p]["exp_avg"])
        for p in ours.parameters()
    )


def test_adam_takes_the_scale_of_a_scaler_and_skips_what_is_not_finite() -> None:
    name = "BertForSequenceClassification"
    _, ours = pair(name)
    optimizer, scaler = train.Adam(ours.parameters(), lr=1e-3), torch.amp.GradScaler("cuda")
    before = [p.detach().clone() for p in ours.parameters()]
    for bad in (True, False):
        with torch.autocast("cuda", torch.float16):
            loss = loss_of(ours, batch_of(name))
        scaler.scale(loss).backward()
        if bad:
            next(ours.parameters()).grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        same = all(torch.equal(p, was) for p, was in zip(ours.parameters(), before, strict=True))
        assert same == bad
    assert optimizer.skipped_steps == 1
    assert optimizer.gradient_norm < 1e3
