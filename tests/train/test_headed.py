"""The criterion of a whole model: the loss that transformers computes, without its logits."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from fusewire import train
from fusewire.errors import InvalidInput, Unsupported

from tests.tolerance import TRAINED_GRADIENT, TRAINED_VERSUS_EAGER
from tests.train.test_step import ON_EACH, batches, by_hand, prepare
from tests.train.tiny_models import CONFIGS, both, eager, ragged

HEADED = [
    name
    for name in CONFIGS
    if name.endswith(
        ("MaskedLM", "LMHeadModel", "ForCausalLM", "ForConditionalGeneration", "MTModel")
    )
    and not name.startswith("Gemma")
]


def with_a_bias(model: Any) -> Any:
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_(generator=torch.Generator().manual_seed(3))
    return model


@pytest.mark.parametrize("name", HEADED)
def test_loss_and_gradients_are_those_of_transformers(name: str) -> None:
    theirs, ours = both(name)
    with_a_bias(theirs), with_a_bias(ours)
    batch = ragged(name)
    wanted, found = theirs(**batch).loss, train.CrossEntropy().of_model(ours, batch)
    torch.testing.assert_close(found, wanted, rtol=TRAINED_VERSUS_EAGER, atol=0)
    wanted.backward()
    found.backward()
    for (at, right), mine in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        assert (mine.grad is None) == (right.grad is None) == (not right.requires_grad), at
        if right.grad is None:
            continue
        assert (mine.grad - right.grad).norm() <= TRAINED_GRADIENT * right.grad.norm() + 1e-9, at


def test_the_sum_of_losses_is_divided_by_the_number_of_items() -> None:
    model, batch = both("MarianMTModel")[1], ragged("MarianMTModel")
    criterion, labels = train.CrossEntropy(), int((batch["labels"] != -100).sum())
    mean = criterion.of_model(model, batch)
    for items in (7, torch.tensor(40)):
        found = criterion.of_model(model, batch, num_items_in_batch=items)
        torch.testing.assert_close(found, mean * labels / items)


def test_targets_may_be_given_beside_labels() -> None:
    model = eager("MarianMTModel")
    batch = ragged("MarianMTModel")
    starts = model.prepare_decoder_input_ids_from_labels(batch["labels"])
    given = {**batch, "decoder_input_ids": starts}
    criterion = train.CrossEntropy()
    torch.testing.assert_close(
        criterion.of_model(model, given), model(**given).loss, rtol=TRAINED_VERSUS_EAGER, atol=0
    )


@ON_EACH
@pytest.mark.parametrize(
    "name", ["GPT2LMHeadModel", "LlamaForCausalLM", "MarianMTModel", "RobertaForMaskedLM"]
)
def test_a_step_takes_it_as_its_loss(name: str, device: str) -> None:
    model, optimizer = prepare(name, device)
    twin = copy.deepcopy(model)
    other = train.Adam(twin.parameters(), lr=1e-3, max_grad_norm=1.0)
    criterion = train.CrossEntropy()
    step = train.Step(model, optimizer, loss=criterion.of_model)
    for batch in batches(name):
        got, wanted = step(batch), by_hand(twin, other, batch, device)
        torch.testing.assert_close(got, wanted, rtol=TRAINED_VERSUS_EAGER, atol=0)
    assert step.replays == (0 if device == "cpu" else 9)
    there = {key: value.to(device) for key, value in batch.items()}
    with torch.no_grad():  # by the weights that the last replay wrote
        now, right = criterion.of_model(model, there), twin(**there).loss
    torch.testing.assert_close(now, right, rtol=TRAINED_VERSUS_EAGER, atol=0)


@pytest.mark.gpu
def test_a_label_that_is_no_class_skips_the_step() -> None:
    model, optimizer = prepare("GPT2LMHeadModel", "cuda")
    step = train.Step(model, optimizer, loss=train.CrossEntropy().of_model)
    batch = batches("GPT2LMHeadModel")[0]
    for _ in range(2):
        step(batch)
    before = [p.detach().clone() for p in model.parameters()]
    batch["labels"][0, 1] = model.config.vocab_size
    assert step(batch).isnan()
    assert optimizer.skipped_steps == 1
    assert all(map(torch.equal, before, model.parameters()))


def test_a_model_has_its_logits_again_after_an_error() -> None:
    model, batch = eager("BertForMaskedLM"), ragged("BertForMaskedLM")
    wanted = model(**batch).logits
    with pytest.raises(IndexError, match="out of range"):
        train.CrossEntropy().of_model(model, {**batch, "input_ids": batch["input_ids"] + 61})
    assert torch.equal(model(**batch).logits, wanted)


@pytest.mark.parametrize("name", ["BertForPreTraining", "Gemma2ForCausalLM"])
def test_other_heads_are_refused(name: str) -> None:
    with pytest.raises(Unsupported, match=f"{name}: .*call CrossEntropy with its hidden states"):
        train.CrossEntropy().of_model(eager(name), ragged(name))


def test_labels_are_wanted() -> None:
    batch = ragged("GPT2LMHeadModel")
    del batch["labels"]
    with pytest.raises(InvalidInput, match="labels: got none"):
        train.CrossEntropy().of_model(eager("GPT2LMHeadModel"), batch)
