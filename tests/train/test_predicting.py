"""In a step on a GPU, which may not wait, a criterion computes the rows of tokens: no padding.

A step on a CPU may wait and counts the rows that have a label; here it is made to do as on a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusewire import kernels, train
from fusewire.errors import ConfigurationError
from fusewire.train.bucket_inputs import BucketInputs
from fusewire.train.packed import SOURCE, TARGET, in_step, prepared
from fusewire.train.sides import sides_of
from fusewire.train.targets import predicts
from torch.nn.functional import pad

from tests.tolerance import TRAINED_GRADIENT, TRAINED_VERSUS_EAGER
from tests.train.test_step import ON_EACH, batches, by_hand, joined, prepare
from tests.train.tiny_models import both, ragged

MASKED, GPT, MARIAN = "BertForMaskedLM", "GPT2LMHeadModel", "MarianMTModel"
T5 = "T5ForConditionalGeneration"
HEADED = [GPT, "LlamaForCausalLM", MARIAN, "BartForConditionalGeneration", MASKED, T5]
# Tokens of the buckets of `batches`; targets have a sequence of missing tokens too.
TOKENS = {False: {29, 48, 18}, True: {30, 50, 19}}


@pytest.fixture(autouse=True)
def never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[train.CrossEntropy.__module__]
    monkeypatch.setattr(module, "_may_not_wait", lambda labels: in_step())


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each call of the criterion's kernel."""
    found, kernel = [], kernels.cross_entropy

    def spied(losses: Any, *others: Any) -> None:
        found.append(losses.shape[0])
        kernel(losses, *others)

    monkeypatch.setattr(kernels, "cross_entropy", spied)
    return found


def moved(batch: dict[str, Any], device: str) -> dict[str, Any]:
    return {name: value.to(device) for name, value in batch.items()}


def in_bucket(model: Any, batch: dict[str, Any], device: str) -> BucketInputs:
    """The batch as a step's model gets it."""
    sides = sides_of(model, batch, pairs=model.config.is_encoder_decoder)
    inputs = BucketInputs(batch, sides, torch.device(device))
    inputs.write(batch, sides)
    return inputs


def padded_on_the_left(batch: dict[str, Any]) -> dict[str, Any]:
    order = torch.argsort(batch["attention_mask"], dim=1, stable=True)
    return {name: value.gather(1, order) for name, value in batch.items()}


@ON_EACH
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("name", HEADED)
def test_loss_and_gradients_are_those_of_all_places(
    name: str, smoothing: float, device: str, rows: list[int]
) -> None:
    theirs, ours = both(name)
    theirs, ours = theirs.to(device), ours.to(device)
    batch = ragged(name)
    batch["labels"][0, 2:5] = -100  # at tokens
    logits, labels = theirs(**moved(batch, device)).logits, batch["labels"].to(device)
    if name.endswith(("LMHeadModel", "ForCausalLM")):
        logits, labels = logits[:, :-1], labels[:, 1:]
    wanted = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing
    )
    inputs = in_bucket(ours, batch, device)
    with prepared(inputs.packed):
        found = train.CrossEntropy(label_smoothing=smoothing).of_model(ours, inputs.batch)
    side = TARGET if ours.config.is_encoder_decoder else SOURCE
    assert rows == [inputs.packed[side].tokens] == [inputs.sizes[f"{side}predicting"]]
    assert rows[0] < inputs.batch["labels"].numel() / 4
    torch.testing.assert_close(found, wanted, rtol=TRAINED_VERSUS_EAGER, atol=0)
    wanted.backward()
    found.backward()
    for (at, right), mine in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        assert (mine.grad is None) == (right.grad is None) == (not right.requires_grad), at
        if right.grad is not None:
            off = (mine.grad - right.grad).norm()
            assert off <= TRAINED_GRADIENT * right.grad.norm() + 1e-9, at


@ON_EACH
@pytest.mark.parametrize("count", [1, 2], ids=["single", "accumulated"])
@pytest.mark.parametrize("name", HEADED)
def test_steps_compute_tokens_alone(name: str, count: int, device: str, rows: list[int]) -> None:
    model, optimizer = prepare(name, device)
    twin, other = prepare(name, device)
    step = train.Step(model, optimizer, loss=train.CrossEntropy().of_model)
    every = batches(name)
    for begin in range(0, len(every), count):
        several = every[begin : begin + count]
        got = step(several if count > 1 else several[0])
        wanted = by_hand(twin, other, joined(several), device)
        torch.testing.assert_close(got, wanted, rtol=TRAINED_VERSUS_EAGER, atol=0)
        assert optimizer.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-3)
        with torch.no_grad():
            for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
                theirs.copy_(ours)
    assert (step.replays > 0) == (device == "cuda")
    assert set(rows) == TOKENS[model.config.is_encoder_decoder]


def test_where_tokens_fill_all_places_nothing_is_gathered(rows: list[int]) -> None:
    model, _ = prepare(GPT, "cpu")
    inputs = in_bucket(model, ragged(GPT, (32, 32, 32, 31)), "cpu")
    assert inputs.packed[""].tokens == 128
    assert inputs.packed[""].predicting is None
    with prepared(inputs.packed):
        train.CrossEntropy().of_model(model, inputs.batch)
    assert rows == [128]


def at_padding(batch: dict[str, Any]) -> dict[str, Any]:
    batch["labels"][2, 5] = 7  # its row has 1 token
    return batch


@ON_EACH
@pytest.mark.parametrize("change", [padded_on_the_left, at_padding])
def test_all_places_are_computed_where_a_label_is_predicted_at_padding(
    change: Callable[[dict[str, Any]], dict[str, Any]], device: str, rows: list[int]
) -> None:
    """In turns with a batch of the same sizes that is padded as usual."""
    model, optimizer = prepare(GPT, device)
    twin, other = prepare(GPT, device)
    step = train.Step(model, optimizer, loss=train.CrossEntropy().of_model)
    for batch in [ragged(GPT), change(ragged(GPT))] * 4:
        got, wanted = step(batch), by_hand(twin, other, batch, device)
        torch.testing.assert_close(got, wanted, rtol=TRAINED_VERSUS_EAGER, atol=0)
    assert rows[:2] == [29, 128]
    assert set(rows) == {29, 128}


def test_which_labels_are_predicted_by_tokens() -> None:
    there = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0]]).bool()
    none = torch.full((2, 4), -100)

    def labelled(*places: tuple[int, int]) -> torch.Tensor:
        labels = none.clone()
        for place in places:
            labels[place] = 1
        return labels

    assert predicts(there, none)
    assert predicts(there, labelled((0, 0), (0, 1), (1, 2)))
    for wrong in ((0, 2), (1, 0), (1, 1), (1, 3)):
        assert not predicts(there, labelled((0, 0), wrong)), wrong
    assert predicts(torch.ones_like(there), torch.ones(2, 4, dtype=torch.int64))
    for others in (None, torch.zeros(2), torch.zeros(2, 4), none[:, :3]):
        assert not predicts(there, others)


def of_masked(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    head = model.cls.predictions
    hidden = head.transform(model.base_model(**inputs).last_hidden_state)
    weight, bias = head.decoder.weight, head.decoder.bias
    loss: torch.Tensor = train.CrossEntropy()(hidden, weight, batch["labels"], bias)
    return loss


def of_pair(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    starts = model.prepare_decoder_input_ids_from_labels(batch["labels"])
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    hidden = model.base_model(**inputs, decoder_input_ids=starts).last_hidden_state
    weight, bias = model.lm_head.weight, model.final_logits_bias.reshape(-1)
    loss: torch.Tensor = train.CrossEntropy()(hidden, weight, batch["labels"], bias)
    return loss


@ON_EACH
@pytest.mark.parametrize(
    ("name", "loss", "targets", "wanted"),
    [
        (MASKED, of_masked, (), {29}),
        (MARIAN, of_pair, (33, 5, 8, 2), {50}),
        (MARIAN, of_pair, (9, 1, 12, 7), {128}),
    ],
    ids=["labels of the texts", "of targets", "of targets as long as sources"],
)
def test_a_criterion_that_a_loss_calls_finds_its_tokens(
    name: str, loss: Any, targets: tuple[int, ...], wanted: set[int], device: str, rows: list[int]
) -> None:
    batch = ragged(name)
    if targets:
        batch["labels"] = ragged(name, targets)["labels"]
    model, optimizer = prepare(name, device)
    twin, other = prepare(name, device)
    step = train.Step(model, optimizer, loss=loss)
    for _ in range(3):
        got, right = step(batch), by_hand(twin, other, batch, device)
        torch.testing.assert_close(got, right, rtol=TRAINED_VERSUS_EAGER, atol=0)
    assert set(rows) == wanted


@ON_EACH
def test_a_loss_with_labels_of_its_own_at_padding_skips_the_step(device: str) -> None:
    """Rather than leave them out."""

    def shifted(model: Any, batch: dict[str, Any]) -> torch.Tensor:
        mask = pad(batch["attention_mask"], (1, -1), value=1).bool()  # a place too many
        labels = torch.where(mask, batch["input_ids"], -100)
        return train.CrossEntropy().of_model(model, batch | {"labels": pad(labels, (1, -1))})

    model, optimizer = prepare(GPT, device)
    step = train.Step(model, optimizer, loss=shifted)
    before = [p.detach().clone() for p in model.parameters()]
    for skipped in range(1, 4):
        assert step(ragged(GPT)).isnan()
        assert optimizer.skipped_steps == skipped
    assert all(map(torch.equal, before, model.parameters()))


@ON_EACH
def test_a_step_takes_no_label_to_ignore_but_the_one_that_it_pads_with(device: str) -> None:
    model, optimizer = prepare(MARIAN, device)
    batch = ragged(MARIAN)
    batch["labels"][batch["labels"] == -100] = model.config.pad_token_id
    criterion = train.CrossEntropy(ignore_index=model.config.pad_token_id)
    with pytest.raises(ConfigurationError, match="ignore_index: got 1 in a Step, wanted -100"):
        train.Step(model, optimizer, loss=criterion.of_model)(batch)
