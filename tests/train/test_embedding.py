"""Embeddings whose gradients are written to the flat buffer are torch's in all else."""

from __future__ import annotations

import copy

import pytest
import torch
from fusewire.train.cross_entropy import CrossEntropy
from fusewire.train.embedding import EmbeddingForward, is_plain
from fusewire.train.flat import FlatParameters
from torch import nn

from tests.tolerance import TRAINED_GRADIENT

ROWS, FEATURES = 23, 16


class Tied(nn.Module):
    """Two lookups in one table, which a head reads too, by `CrossEntropy` or torch."""

    def __init__(self, padding_idx: int | None = None, chunked: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Embedding(ROWS, FEATURES, padding_idx=padding_idx)
        self.second = nn.Embedding(ROWS, FEATURES, padding_idx=padding_idx)
        self.second.weight = self.first.weight
        self.other = nn.Embedding(5, FEATURES)
        self.chunked = chunked

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.first(ids).tanh() + self.other(ids % 5)
        y = self.second(ids.flip(1)) * x
        labels = (ids + 1) % ROWS
        if self.chunked:
            return CrossEntropy()(y, self.first.weight, labels)
        logits = y @ self.first.weight.T
        return nn.functional.cross_entropy(logits.reshape(-1, ROWS), labels.reshape(-1))


def ours(model: Tied) -> tuple[Tied, FlatParameters]:
    flat = FlatParameters(model)
    for module in (model.first, model.second, model.other):
        assert is_plain(module)
        module.forward = EmbeddingForward(module)
    return model, flat


def ids(seed: int = 1) -> torch.Tensor:
    return torch.randint(0, ROWS, (3, 17), generator=torch.Generator().manual_seed(seed))


def wanted(model: Tied, *seeds: int) -> list[torch.Tensor]:
    """Torch's own gradients, of the sum of losses, in fp64."""
    same = Tied(model.first.padding_idx, chunked=False).double()
    same.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
    sum(same(ids(seed)) for seed in seeds).backward()
    return [p.grad for p in same.parameters()]


def assert_gradients(model: Tied, *seeds: int) -> None:
    for p, right in zip(model.parameters(), wanted(model, *seeds), strict=True):
        assert (p.grad - right).norm() <= TRAINED_GRADIENT * right.norm()


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("padding_idx", [None, 0, 3])
def test_all_gradients_of_a_tied_table_are_added_in_its_slice(padding_idx, chunked) -> None:
    model, flat = ours(Tied(padding_idx, chunked))
    model(ids()).backward()
    assert_gradients(model, 1)
    for slot in flat.slots:
        assert slot.is_in(flat.gradients, slot.parameter.grad)


@pytest.mark.parametrize("chunked", [True, False])
def test_the_gradients_of_several_passes_are_added(chunked) -> None:
    model, _ = ours(Tied(chunked=chunked))
    model(ids(1)).backward()
    (model(ids(2)) + model(ids(3))).backward()
    assert_gradients(model, 1, 2, 3)
    for p in model.parameters():
        p.grad.zero_()
    model(ids(4)).backward()
    assert_gradients(model, 4)
    model.zero_grad()
    model(ids(5)).backward()
    assert_gradients(model, 5)


def test_a_gradient_that_lies_elsewhere_is_added_to_by_torch() -> None:
    model, flat = ours(Tied())
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    model(ids()).backward()
    assert_gradients(model, 1)
    assert not flat.slots[0].is_in(flat.gradients, flat.slots[0].parameter.grad)


def test_autograd_grad_returns_gradients_and_sets_none() -> None:
    model, _ = ours(Tied())
    found = torch.autograd.grad(model(ids()), list(model.parameters()))
    for got, right in zip(found, wanted(model, 1), strict=True):
        assert (got - right).norm() <= TRAINED_GRADIENT * right.norm()
    assert all(p.grad is None for p in model.parameters())


def test_a_pass_to_some_parameters_leaves_the_others_alone() -> None:
    model, _ = ours(Tied())
    model(ids()).backward(inputs=[model.other.weight])
    right = wanted(model, 1)[1]
    assert (model.other.weight.grad - right).norm() <= TRAINED_GRADIENT * right.norm()
    assert model.first.weight.grad is None


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_of_a_parameter_see_its_whole_gradient(register) -> None:
    model, _ = ours(Tied())
    seen = []
    table = model.first.weight
    getattr(table, register)(lambda got: seen.append((got if got is not table else got.grad) * 1))
    model(ids()).backward()
    right = wanted(model, 1)[0]
    assert len(seen) == 1
    assert (seen[0] - right).norm() <= TRAINED_GRADIENT * right.norm()


def test_a_frozen_table_has_no_gradient() -> None:
    model, _ = ours(Tied())
    model.first.weight.requires_grad_(False)
    model(ids()).backward()
    assert model.first.weight.grad is None
    right = wanted(model, 1)[1]
    assert (model.other.weight.grad - right).norm() <= TRAINED_GRADIENT * right.norm()


def test_a_copy_has_gradients_of_its_own() -> None:
    model, _ = ours(Tied())
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.first.weight.mul_(2)
    other(ids()).backward()
    assert_gradients(other, 1)
    assert all(p.grad is None for p in model.parameters())


def test_a_module_that_does_more_than_look_up_is_left_alone() -> None:
    class Scaled(nn.Embedding):
        def forward(self, input):
            return super().forward(input) * 2

    assert not is_plain(Scaled(3, 4))
    for settings in ({"max_norm": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}):
        assert not is_plain(nn.Embedding(3, 4, **settings))
    assert not is_plain(nn.Linear(3, 4))


def test_ids_outside_of_the_table_are_torchs_error() -> None:
    model, _ = ours(Tied())
    with pytest.raises(IndexError):
        model.first(torch.tensor([ROWS]))
