"""A whole step is the one that its parts make, over batches whose sizes change."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from fusewire import train
from fusewire.errors import ConfigurationError, InvalidInput, Unsupported

from tests.tolerance import TRAINED_VERSUS_EAGER
from tests.train.tiny_models import eager, ragged

NAMES = ["BertForSequenceClassification", "BertForMaskedLM", "GPT2LMHeadModel", "LlamaForCausalLM"]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
ON_EACH = pytest.mark.parametrize("device", DEVICES)


LENGTHS = (7, 12, 1, 9), (33, 5, 8, 2), (3, 4, 5, 6)


def batches(name: str, count: int = 12) -> list[dict[str, Any]]:
    """Three batches, over and over: ragged, of different lengths."""
    return [ragged(name, LENGTHS[seed % 3], seed % 3) for seed in range(count)]


def prepare(name: str, device: str, **more: Any) -> tuple[Any, Any]:
    model = train.replace(eager(name, **more).to(device))
    model.train()
    return model, train.Adam(model.parameters(), lr=1e-3, max_grad_norm=1.0)


def by_hand(model: Any, optimizer: Any, batch: dict[str, Any], device: str) -> torch.Tensor:
    loss = model(**{name: value.to(device) for name, value in batch.items()}).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


@ON_EACH
@pytest.mark.parametrize("name", NAMES)
def test_steps_are_those_by_hand(name: str, device: str) -> None:
    model, optimizer = prepare(name, device)
    twin = copy.deepcopy(model)
    other = train.Adam(twin.parameters(), lr=1e-3, max_grad_norm=1.0)
    step = train.Step(model, optimizer)
    schedules = [torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.1, 12) for o in (optimizer, other)]
    for batch in batches(name):
        got, wanted = step(batch), by_hand(twin, other, batch, device)
        torch.testing.assert_close(got, wanted, rtol=TRAINED_VERSUS_EAGER, atol=0)
        assert optimizer.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-3)
        for schedule in schedules:
            schedule.step()
    assert step.replays == (0 if device == "cpu" else 9)
    assert optimizer.skipped_steps == 0
    with torch.no_grad():  # what was trained is what is evaluated
        evaluated = [
            one.eval()(**{k: v.to(device) for k, v in batch.items()}) for one in (model, twin)
        ]
    torch.testing.assert_close(*(e.loss for e in evaluated), rtol=TRAINED_VERSUS_EAGER, atol=0)


@ON_EACH
def test_dropout_draws_anew_and_from_torchs_seed(device: str) -> None:
    batch = ragged("BertForSequenceClassification", seed=1)

    def losses(seed: int) -> list[float]:
        model, _ = prepare("BertForSequenceClassification", device, dropout=0.3)
        step = train.Step(model, train.Adam(model.parameters(), lr=0.0, weight_decay=0.0))
        torch.manual_seed(seed)
        return [float(step(batch)) for _ in range(8)]

    first = losses(1)
    assert len(set(first)) == len(first)
    assert losses(1) == first
    assert losses(2) != first


@ON_EACH
def test_a_batch_with_nan_gradients_changes_nothing(device: str) -> None:
    name = "BertForSequenceClassification"
    model, optimizer = prepare(name, device)
    bad = torch.tensor(1.0, device=device)
    step = train.Step(model, optimizer, loss=lambda model, batch: model(**batch).loss * bad)
    batch = ragged(name, seed=1)
    for _ in range(3):
        step(batch)
    before = [p.detach().clone() for p in model.parameters()]
    bad.fill_(math.nan)
    assert math.isnan(step(batch))
    assert optimizer.skipped_steps == 1
    assert all(map(torch.equal, model.parameters(), before))
    bad.fill_(1.0)
    assert math.isfinite(step(batch))
    assert optimizer.skipped_steps == 1
    assert not torch.equal(next(model.parameters()), before[0])


@pytest.mark.gpu
def test_a_replay_is_bit_equal_to_the_step_that_it_records() -> None:
    name = "BertForSequenceClassification"
    model, optimizer = prepare(name, "cuda")
    twin, other = prepare(name, "cuda")
    twin.load_state_dict(model.state_dict())
    step, uncaptured = train.Step(model, optimizer), train.Step(twin, other)
    uncaptured._record = None  # it would be called
    for batch in batches(name):
        for recorded in uncaptured._recorded.values():
            recorded.seen = False
        assert torch.equal(step(batch), uncaptured(batch))
    assert step.replays == 9
    assert uncaptured.replays == 0
    assert all(map(torch.equal, model.parameters(), twin.parameters()))


def test_what_it_cannot_do_is_refused() -> None:
    model, optimizer = prepare("BertForSequenceClassification", "cpu")
    with pytest.raises(ConfigurationError, match="wanted one that fusewire"):
        train.Step(torch.nn.Linear(2, 2), optimizer)
    with pytest.raises(ConfigurationError, match="optimizer: got AdamW, wanted"):
        train.Step(model, torch.optim.AdamW(model.parameters()))
    step, batch = train.Step(model, optimizer), ragged("BertForSequenceClassification", seed=1)
    with pytest.raises(InvalidInput, match="input_ids: got none"):
        step({})
    with pytest.raises(Unsupported, match="cu_seq_lens_q: got a flattened batch"):
        step(batch | {"cu_seq_lens_q": torch.tensor([0, 1])})
    left = batch | {"attention_mask": batch["attention_mask"].flip(1)}
    for _ in range(3):
        with pytest.raises(InvalidInput, match="padding in the first place of a row"):
            step(left)
    bart, optimizer = prepare("BartForConditionalGeneration", "cpu")
    with pytest.raises(Unsupported, match="an encoder or a decoder alone"):
        train.Step(bart, optimizer)
