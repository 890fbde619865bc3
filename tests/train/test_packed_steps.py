"""A step of a batch that the collator packed is the one of its rows, and computes no padding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from fusewire import train
from fusewire.errors import InvalidInput, Unsupported
from torch.utils.data import DataLoader

from tests.tolerance import TRAINED_VERSUS_EAGER
from tests.train.test_step import GPT, ON_EACH, batches, by_hand, joined, prepare, weights
from tests.train.tiny_models import ragged

CAUSAL = ["GPT2LMHeadModel", "GPTNeoXForCausalLM", "LlamaForCausalLM", "MistralForCausalLM"]
OTHERS = ["BertForMaskedLM", "RobertaForMaskedLM", "BertForTokenClassification"]


def texts(batch: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """The rows of a padded batch without their padding."""
    there = batch["attention_mask"].bool()
    return [
        {name: value[row][mask] for name, value in batch.items() if name != "attention_mask"}
        for row, mask in enumerate(there)
    ]


def packed(name: str, batch: dict[str, torch.Tensor]) -> dict[str, Any]:
    first = 1 if name.startswith("Roberta") else 0  # behind its padding id
    return train.PackingCollator(causal=name in CAUSAL, first_position=first)(texts(batch))


@ON_EACH
@pytest.mark.parametrize("name", CAUSAL)
def test_with_a_criterion_it_is_bit_equal_to_that_of_padded_rows(name: str, device: str) -> None:
    model, optimizer = prepare(name, device)
    twin, other = prepare(name, device)
    step, padded = (
        train.Step(*each, loss=train.CrossEntropy(label_smoothing=0.1).of_model)
        for each in ((model, optimizer), (twin, other))
    )
    for batch in batches(name):
        assert torch.equal(step(packed(name, batch)), padded(batch))
        assert torch.equal(weights(model), weights(twin))
    assert step.replays == padded.replays == (0 if device == "cpu" else 9)


@ON_EACH
@pytest.mark.parametrize("name", [*CAUSAL, *OTHERS])
def test_it_is_the_step_of_padded_rows_by_hand(name: str, device: str) -> None:
    """Whose heads add up the gradients of padding too, which are 0."""
    model, optimizer = prepare(name, device)
    twin, other = prepare(name, device)
    step = train.Step(model, optimizer)
    for batch in batches(name, 6):
        got, wanted = step(packed(name, batch)), by_hand(twin, other, batch, device)
        torch.testing.assert_close(got, wanted, rtol=TRAINED_VERSUS_EAGER, atol=0)
        assert optimizer.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-3)
        twin.load_state_dict(model.state_dict())  # so that each step is compared by itself


@ON_EACH
@pytest.mark.parametrize("name", [GPT, "BertForMaskedLM"])
def test_lists_may_mix_both_forms(name: str, device: str) -> None:
    model, optimizer = prepare(name, device)
    twin, other = prepare(name, device)
    step, every = train.Step(model, optimizer), batches(name)
    for begin in range(0, 9, 3):
        several = every[begin : begin + 3]
        got = step([several[0], packed(name, several[1]), packed(name, several[2])])
        wanted = by_hand(twin, other, joined(several), device)
        torch.testing.assert_close(got, wanted, rtol=TRAINED_VERSUS_EAGER, atol=0)
        assert optimizer.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-3)
        twin.load_state_dict(model.state_dict())


@ON_EACH
def test_the_collator_of_transformers_packs_as_ours(device: str) -> None:
    collator = transformers.DataCollatorWithFlattening(
        return_flash_attn_kwargs=True, return_seq_idx=True
    )
    steps = [train.Step(*prepare(GPT, device)) for _ in range(2)]
    for batch in batches(GPT, 6):
        theirs = collator(texts(batch))
        assert "seq_idx" in theirs
        assert torch.equal(steps[0](theirs), steps[1](packed(GPT, batch)))


@ON_EACH
def test_batches_of_as_many_tokens_share_buckets_and_have_no_padding(device: str) -> None:
    """Whatever the lengths of their texts are."""
    lengths = torch.randint(1, 20, (1000,), generator=torch.Generator().manual_seed(5)).tolist()
    examples = [{"input_ids": [3 + n % 50 for n in range(length)]} for length in lengths]
    sampler = train.TokenBudgetSampler(lengths, 256)
    loader = DataLoader(examples, batch_sampler=sampler, collate_fn=train.PackingCollator())
    shapes = set()

    def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        assert set(batch) == {"input_ids", "position_ids", "labels"}
        shapes.add(tuple(model(**batch).logits.shape[:2]))
        return train.CrossEntropy().of_model(model, batch)

    model, optimizer = prepare(GPT, device)
    step = train.Step(model, optimizer, loss=loss)
    for batch in loader:
        step(batch)
    assert all(rows == 1 and tokens <= 256 for rows, tokens in shapes)
    assert len(loader) > 30
    assert len(step._buckets) <= 4
    assert step.replays == (0 if device == "cpu" else len(loader) - len(step._buckets))


def test_places_that_are_classes_are_not_rounded_up() -> None:
    name = "BertForQuestionAnswering"
    padded = ragged(name, (9,))
    flat = {key: padded[key] for key in ("input_ids", "start_positions", "end_positions")}
    flat["cu_seq_lens_q"] = torch.tensor([0, 5, 9], dtype=torch.int32)
    wanted = by_hand(*prepare(name, "cpu"), flat, "cpu")
    got = train.Step(*prepare(name, "cpu"))(flat | {"max_length_q": 5})
    torch.testing.assert_close(got, wanted, rtol=TRAINED_VERSUS_EAGER, atol=0)
    assert got != by_hand(*prepare(name, "cpu"), padded, "cpu")


def test_what_is_no_packed_batch_is_refused() -> None:
    step = train.Step(*prepare(GPT, "cpu"))
    batch = packed(GPT, ragged(GPT))
    for offsets, got in (
        ([0, 7], "7 tokens in all"),
        ([0, 7, 7, 29], "numbers that do not rise from 0"),
        ([1, 7, 29], "numbers that do not rise from 0"),
        ([29], r"shape \[1\]"),
        ([[0, 29]], r"shape \[1, 2\]"),
    ):
        wrong = batch | {"cu_seq_lens_q": torch.tensor(offsets, dtype=torch.int32)}
        for model in (step, lambda b: step._model(**b)):
            with pytest.raises(InvalidInput, match=f"cu_seq_lens_q: got {got}, wanted .*: 29, "):
                model(wrong)
    with pytest.raises(InvalidInput, match="attention_mask: got one beside cu_seq_lens_q"):
        step(batch | {"attention_mask": torch.ones_like(batch["input_ids"])})
    rows = {name: batch[name].expand(2, -1) for name in ("input_ids", "labels")}
    with pytest.raises(InvalidInput, match="input_ids: got 2 rows with cu_seq_lens_q, wanted one"):
        step(rows | {"cu_seq_lens_q": torch.tensor([0, 29, 58])})
    bare = {name: batch[name] for name in ("input_ids", "labels", "position_ids")}
    with pytest.raises(InvalidInput, match=r"position_ids: .* return_flash_attn_kwargs=True"):
        step(bare)
    marian = train.Step(*prepare("MarianMTModel", "cpu"))
    with pytest.raises(Unsupported, match=r"cu_seq_lens_q: got a flattened batch, .* padded batch"):
        marian(batch)
