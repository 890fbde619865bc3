"""Packed batches are those of transformers' own collator, and train as each sequence alone."""

from __future__ import annotations

import pytest
import torch
import transformers
from fusewire.errors import ConfigurationError, InvalidInput
from fusewire.train.packing import PackingCollator, TokenBudgetSampler
from torch.utils.data import DataLoader

from tests.tolerance import TRAINED_VERSUS_EAGER

EXAMPLES = [
    {"input_ids": [5, 6, 7], "labels": [5, -100, 7]},
    {"input_ids": [8], "labels": [8]},
    {"input_ids": [9, 10, 11, 12, 13], "labels": [9, 10, 11, 12, 13]},
]


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("first_position", [0, 2])
def test_a_batch_is_that_of_transformers(labelled: bool, first_position: int) -> None:
    examples = [one if labelled else {"input_ids": one["input_ids"]} for one in EXAMPLES]
    theirs = transformers.DataCollatorWithFlattening(
        return_flash_attn_kwargs=True, position_ids_start=first_position
    )
    got, wanted = PackingCollator(first_position=first_position)(examples), theirs(examples)
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        if isinstance(value, int):
            assert got[name] == value
        else:
            assert got[name].dtype == value.dtype
            assert torch.equal(got[name], value)


def test_tensors_masks_and_types_are_packed() -> None:
    examples = [
        {
            "input_ids": torch.tensor([0, 5, 6, 0]),
            "attention_mask": torch.tensor([0, 1, 1, 0]),
            "token_type_ids": [0, 0, 1, 0],
            "labels": [-100, 5, -100, -100],
        },
        {"input_ids": [7], "token_type_ids": [1], "labels": [7]},
    ]
    batch = PackingCollator(causal=False)(examples)
    assert batch["input_ids"].tolist() == [[5, 6, 7]]
    assert batch["token_type_ids"].tolist() == [[0, 1, 1]]
    assert batch["labels"].tolist() == [[5, -100, 7]]
    assert batch["position_ids"].tolist() == [[0, 1, 0]]
    assert batch["cu_seq_lens_q"].tolist() == [0, 2, 3]
    assert "labels" not in PackingCollator(causal=False)([{"input_ids": [1, 2]}])


def test_a_packed_batch_trains_as_its_sequences_alone() -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=20,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=16,
        use_cache=False,  # with a cache transformers does not look for packed sequences
    )
    model = transformers.LlamaForCausalLM(config)
    batch = PackingCollator()(EXAMPLES)
    labelled = int((batch["labels"] != -100).sum())
    loss = model(**batch).loss
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    alone = [model(**PackingCollator()([one]), num_items_in_batch=labelled) for one in EXAMPLES]
    wanted = sum(output.loss for output in alone)
    torch.testing.assert_close(loss, wanted, rtol=TRAINED_VERSUS_EAGER, atol=0)
    for got, gradient in zip(
        gradients, torch.autograd.grad(wanted, list(model.parameters())), strict=True
    ):
        assert (got - gradient).norm() <= TRAINED_VERSUS_EAGER * gradient.norm()


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ([], "examples: got none"),
        ([{"input_ids": [1]}, {"labels": [1]}], "input_ids: got none in example 1"),
        ([{"input_ids": [1]}, {"input_ids": []}], "input_ids: got no token in example 1"),
        ([{"input_ids": [1, 2], "attention_mask": [0, 0]}], "no token in example 0"),
        ([{"input_ids": [1, 2], "labels": [1]}], r"labels: got torch.int64 of shape \[1\]"),
        ([{"input_ids": [1, 2], "labels": 1}], r"labels: got torch.int64 of shape \[\] in"),
        ([{"input_ids": [[1, 2]]}], r"input_ids: got torch.int64 of shape \[1, 2\]"),
        ([{"input_ids": [1.5]}], r"input_ids: got torch.float32"),
        (
            [{"input_ids": [1], "token_type_ids": [0]}, {"input_ids": [1]}],
            "token_type_ids: got it in 1 of 2",
        ),
        (
            [{"input_ids": [1]}, {"input_ids": "text"}],
            "a str that is no row of numbers in example 1",
        ),
        ([{"input_ids": [[1], [2, 3]]}], "a list that is no row of numbers in example 0"),
        ([{"input_ids": [1]}, [1, 2]], "examples: got a list as example 1, wanted .* input_ids"),
    ],
)
def test_examples_that_do_not_fit_are_refused(examples, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        PackingCollator()(examples)


LENGTHS = [3, 1, 5, 5, 2, 2, 4, 9, 1, 1]


def test_batches_fill_the_budget_in_order() -> None:
    sampler = TokenBudgetSampler(LENGTHS, 9, shuffle=False)
    assert list(sampler) == [[0, 1, 2], [3, 4, 5], [6], [7], [8, 9]]
    assert len(sampler) == 5
    assert list(TokenBudgetSampler(iter(LENGTHS), 9, shuffle=False)) == list(sampler)


def test_each_epoch_has_every_example_once_in_an_order_of_its_own() -> None:
    sampler = TokenBudgetSampler(LENGTHS, 9, seed=3)
    orders = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert batches == list(sampler)
        assert len(sampler) == len(batches)
        assert all(sum(LENGTHS[i] for i in batch) <= 9 for batch in batches)
        orders.append([i for batch in batches for i in batch])
        assert sorted(orders[-1]) == list(range(len(LENGTHS)))
    assert orders[0] != orders[1] != orders[2]


def test_processes_share_the_batches_evenly() -> None:
    every = list(TokenBudgetSampler(LENGTHS, 9, shuffle=False))
    parts = [TokenBudgetSampler(LENGTHS, 9, shuffle=False, rank=r, world_size=2) for r in (0, 1)]
    assert [list(part) for part in parts] == [every[0:4:2], every[1:4:2]]
    assert [len(part) for part in parts] == [2, 2]


def test_a_data_loader_takes_both() -> None:
    examples = [{"input_ids": list(range(1, n + 1))} for n in LENGTHS]
    sampler = TokenBudgetSampler(LENGTHS, 9)
    loader = DataLoader(examples, batch_sampler=sampler, collate_fn=PackingCollator())
    assert sum(batch["input_ids"].numel() for batch in loader) == sum(LENGTHS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lengths": [3, 10], "max_tokens": 9}, "10 tokens in example 1, wanted 1 to 9"),
        ({"lengths": [0], "max_tokens": 9}, "0 tokens in example 0"),
        ({"lengths": [1], "max_tokens": 9, "world_size": 0}, "world_size: got 0"),
        ({"lengths": [1], "max_tokens": 9, "rank": 2, "world_size": 2}, "rank: got 2"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TokenBudgetSampler(**settings)
