"""Who writes parameters and gradients beside fusewire: optimizers, other losses, other owners."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from fusewire.train import CrossEntropy, replace

from tests.tolerance import TRAINED_VERSUS_EAGER
from tests.train.test_replace import expect_equal
from tests.train.tiny_models import both, eager, ragged

NAME = "BertForSequenceClassification"
Gradients = tuple[float, dict[str, torch.Tensor]]


class Plain(torch.optim.Optimizer):
    """Writes as torch does not count it."""

    def __init__(self, parameters: object) -> None:
        super().__init__(parameters, {})  # type: ignore[arg-type]

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(p.grad, alpha=-0.05)


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "fused AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, fused=True),
    "fused SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, fused=True),
    "one that writes through .data": Plain,
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers_that_write_unseen_train_the_layers(optimizer: str) -> None:
    curves = []
    for model in both(NAME):
        steps, curve = OPTIMIZERS[optimizer](model.parameters()), []
        for _ in range(6):
            steps.zero_grad()
            loss = model(**ragged(NAME)).loss
            loss.backward()
            steps.step()
            curve.append(loss.item())
        curves.append(curve)
    assert curves[1] == pytest.approx(curves[0], rel=TRAINED_VERSUS_EAGER)
    assert curves[0][-1] < 0.9 * curves[0][0]


def test_the_criterion_sees_what_a_fused_optimizer_writes() -> None:
    torch.manual_seed(0)
    head, hidden = torch.nn.Linear(8, 50), torch.randn(20, 8)
    labels, criterion = torch.randint(50, (20,)), CrossEntropy()
    optimizer = torch.optim.AdamW(head.parameters(), lr=0.05, fused=True)
    for _ in range(4):
        loss = criterion(hidden, head.weight, labels, head.bias)
        wanted = torch.nn.functional.cross_entropy(head(hidden), labels)
        assert loss.item() == pytest.approx(wanted.item(), rel=TRAINED_VERSUS_EAGER)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def through_data(parameter: torch.Tensor) -> None:
    """As averages of weights are swapped in: EMA, SWA."""
    parameter.data.copy_(-2.0 * parameter.data)


def through_numpy(parameter: torch.Tensor) -> None:
    parameter.detach().numpy()[...] *= -2.0


@pytest.mark.parametrize("write", [through_data, through_numpy])
def test_what_torch_does_not_count_is_computed_with(
    write: Callable[[torch.Tensor], None],
) -> None:
    curves = []
    for model in both(NAME):
        curve = []
        for _ in range(3):
            with torch.no_grad():
                curve.append(model(**ragged(NAME)).loss.item())
            for parameter in model.bert.encoder.parameters():
                write(parameter)
        curves.append(curve)
    assert curves[1] == pytest.approx(curves[0], rel=TRAINED_VERSUS_EAGER)


def test_the_criterion_sees_what_torch_does_not_count() -> None:
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(20, 8), torch.randn(50, 8), torch.randn(50)
    labels, criterion = torch.randint(50, (20,)), CrossEntropy()
    for _ in range(3):
        wanted = torch.nn.functional.cross_entropy(hidden @ weight.T + bias, labels)
        loss = criterion(hidden, weight, labels, bias)
        assert loss.item() == pytest.approx(wanted.item(), rel=TRAINED_VERSUS_EAGER)
        weight.data.mul_(0.5)
        bias.numpy()[...] *= 0.5


def two_forwards_and_a_penalty(model: torch.nn.Module) -> Gradients:
    first = model(**ragged(NAME)).loss
    penalty = sum((p**2).sum() for p in model.parameters())
    second = model(**ragged(NAME, seed=3)).loss
    loss = first + 0.1 * penalty + second
    loss.backward()
    return of(loss, model)


def frozen_with_gradients(model: torch.nn.Module) -> Gradients:
    model(**ragged(NAME)).loss.backward()
    model.zero_grad(set_to_none=False)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layer.1" not in name)
    loss = model(**ragged(NAME)).loss
    loss.backward()
    return of(loss, model)


def of(loss: torch.Tensor, model: torch.nn.Module) -> Gradients:
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return loss.item(), found


@pytest.mark.parametrize("passes", [two_forwards_and_a_penalty, frozen_with_gradients])
def test_gradients_are_those_of_transformers(
    passes: Callable[[torch.nn.Module], Gradients],
) -> None:
    theirs, ours = both(NAME)
    expect_equal(passes(ours), passes(theirs))


def test_other_parameters_for_one_call_leave_the_models_own() -> None:
    _, ours = both(NAME)
    batch = ragged(NAME)
    others = {name: 0.5 * p.detach() for name, p in ours.named_parameters()}
    before = {name: p.detach().clone() for name, p in ours.named_parameters()}
    alone = ours(**batch).loss.item()
    assert torch.func.functional_call(ours, others, (), batch).loss.item() != alone
    assert ours(**batch).loss.item() == alone
    assert all(torch.equal(p, before[name]) for name, p in ours.named_parameters())


def test_a_copy_of_a_part_stands_alone() -> None:
    _, ours = both(NAME)
    batch = {k: v for k, v in ragged(NAME).items() if k != "labels"}
    part = copy.deepcopy(ours.bert)
    wanted = ours.bert(**batch)[0]
    del ours
    assert torch.equal(part(**batch)[0], wanted)


def test_the_default_dtype_is_for_others() -> None:
    torch.manual_seed(0)
    hidden, labels = torch.randn(6, 8), torch.randint(50, (6,))
    weight = torch.randn(50, 8, requires_grad=True)
    wanted = torch.nn.functional.cross_entropy(hidden @ weight.T, labels)
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = eager(NAME).float()
        loss = replace(model)(**ragged(NAME)).loss
        loss.backward()
        criterion = CrossEntropy()(hidden, weight, labels)
        criterion.backward()
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())
    assert criterion.item() == pytest.approx(wanted.item(), rel=TRAINED_VERSUS_EAGER)
    assert weight.grad is not None
