"""Adam is torch's, with its clipping, checkpoints and loss scaling."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable

import pytest
import torch
from fusewire.errors import ConfigurationError
from fusewire.train.adam import Adam
from fusewire.train.flat import FlatParameters
from torch import nn
from torch.nn.utils import clip_grad_norm_

from tests.tolerance import TRAINED_WEIGHT

TORCHS = {True: torch.optim.AdamW, False: torch.optim.Adam}


def network(flat: bool) -> nn.Module:
    """Sizes of whole and of broken cache lines."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 5), nn.LayerNorm(5))
    if flat:
        layers.flat = FlatParameters(layers)
    return layers


def groups(model: nn.Module) -> list[dict[str, object]]:
    """Weights decay, vectors do not: their parameters alternate in memory."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.3, "lr": 3e-3},
        {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
    ]


def backward(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(7, 16, generator=generator), torch.randn(7, 5, generator=generator)
    (model(x) - y).square().sum().backward()


def flat_backward(model: nn.Module, seed: int) -> None:
    """The same gradients, in the flat buffer."""
    backward(model, seed)
    for name, p in model.named_parameters():
        view = model.flat.gradient(name)
        view.copy_(p.grad)
        p.grad = view


def assert_close(ours: nn.Module, theirs: nn.Module) -> None:
    for p, wanted in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, wanted, rtol=0, atol=TRAINED_WEIGHT)


@pytest.mark.parametrize("clip", [None, 0.5, 1e4])
@pytest.mark.parametrize("adamw", [True, False])
@pytest.mark.parametrize("flat", [True, False])
def test_a_hundred_steps_are_torchs(flat: bool, adamw: bool, clip: float | None) -> None:
    ours, theirs = network(flat), network(False)
    optimizer = Adam(groups(ours), lr=1e-2, adamw=adamw, max_grad_norm=clip)
    reference = TORCHS[adamw](groups(theirs), lr=1e-2)
    schedules = [
        torch.optim.lr_scheduler.OneCycleLR(one, max_lr=[3e-3, 1e-2], total_steps=100)
        for one in (optimizer, reference)
    ]
    for seed in range(100):
        (flat_backward if flat else backward)(ours, seed)
        backward(theirs, seed)
        norm = clip_grad_norm_(theirs.parameters(), clip or math.inf)
        for one in (optimizer, reference, *schedules):
            one.step()
        assert optimizer.gradient_norm == pytest.approx(norm.item(), rel=1e-3)
        optimizer.zero_grad()
        reference.zero_grad()
    assert_close(ours, theirs)
    assert optimizer.skipped_steps == 0


def test_flat_parameters_are_one_call_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusewire import kernels

    calls = []
    adam = kernels.adam
    monkeypatch.setattr(kernels, "adam", lambda *a: (calls.append(len(a[5].numpy())), adam(*a)))
    model = network(True)
    optimizer = Adam(groups(model))
    for seed in range(3):
        flat_backward(model, seed)
        optimizer.step()
    assert calls == [6, 6, 6]


def test_gradients_may_move_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """From one buffer to memory of their own and back, all of them or one of them; runs are made
    anew only where gradients that a run holds together part, or come together."""
    import fusewire.train.adam as module

    made, runs = [], module.runs
    monkeypatch.setattr(module, "runs", lambda *a: (made.append(1), runs(*a))[1])
    ours, theirs = network(True), network(False)
    optimizer = Adam(ours.parameters(), lr=1e-2)
    reference = torch.optim.AdamW(theirs.parameters(), lr=1e-2)
    whole, kept = ("flat", "flat", "own", "flat", "one", "one", "one", "flat"), []
    for seed, where in enumerate(whole):
        flat_backward(ours, seed)
        backward(theirs, seed)
        parameters = list(ours.parameters())
        for p in {"flat": [], "own": parameters, "one": parameters[2:3]}[where]:
            p.grad = p.grad.clone()
            kept.append(p.grad)  # so that the next one is elsewhere
        for one in (optimizer, reference):
            one.step()
            one.zero_grad()
    assert_close(ours, theirs)
    assert len(made) == 5  # at the first, third, fourth, fifth and last step
    assert [int(optimizer.state[p]["step"]) for p in ours.parameters()] == [len(whole)] * 6


def test_a_frozen_parameter_inside_of_the_buffer_is_left_alone() -> None:
    ours, theirs = network(True), network(False)
    for model in (ours, theirs):
        model[0].bias.requires_grad_(False)
    optimizer = Adam(ours.parameters(), lr=1e-2, max_grad_norm=1.0)
    reference = torch.optim.AdamW(theirs.parameters(), lr=1e-2)
    for seed in range(5):
        backward(ours, seed)
        for name, p in ours.named_parameters():
            if p.grad is not None:
                view = ours.flat.gradient(name)
                view.copy_(p.grad)
                p.grad = view
        ours.flat.gradient("0.bias").fill_(math.nan)
        backward(theirs, seed)
        clip_grad_norm_(theirs.parameters(), 1.0)
        for one in (optimizer, reference):
            one.step()
            one.zero_grad()
    assert torch.equal(ours[0].bias, theirs[0].bias)
    assert_close(ours, theirs)
    assert optimizer.skipped_steps == 0


def through_a_file(state: dict[str, object]) -> dict[str, object]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


@pytest.mark.parametrize("back", [False, True])
def test_checkpoints_load_either_way(back: bool) -> None:
    """Five steps here, five there: ten of torch's."""
    model, theirs = network(False), network(False)
    ours = Adam(groups(model), lr=1e-2)
    torchs = torch.optim.AdamW(groups(model), lr=1e-2)
    reference = torch.optim.AdamW(groups(theirs), lr=1e-2)
    first, second = (ours, torchs) if back else (torchs, ours)
    for seed in range(10):
        if seed == 5:
            second.load_state_dict(through_a_file(first.state_dict()))
        for one, at in ((first if seed < 5 else second, model), (reference, theirs)):
            one.zero_grad()
            backward(at, seed)
            one.step()
    assert_close(model, theirs)
    mine, wanted = ours.state_dict(), reference.state_dict()
    assert mine.keys() == wanted.keys()
    for got, group in zip(mine["param_groups"], wanted["param_groups"], strict=True):
        assert got.keys() == group.keys()
    assert mine["state"].keys() == wanted["state"].keys()
    for key, state in wanted["state"].items():
        assert mine["state"][key].keys() == state.keys()
        assert all(mine["state"][key][name].shape == state[name].shape for name in state)


@pytest.mark.parametrize("flat", [True, False])
def test_a_resumed_run_is_bit_equal(flat: bool) -> None:
    step = flat_backward if flat else backward

    def train(model: nn.Module, optimizer: Adam, seeds: range) -> None:
        for seed in seeds:
            step(model, seed)
            optimizer.step()
            optimizer.zero_grad()

    whole, half, resumed = network(flat), network(flat), network(flat)
    train(whole, Adam(whole.parameters()), range(8))
    optimizer = Adam(half.parameters())
    train(half, optimizer, range(4))
    resumed.load_state_dict(half.state_dict())
    after = Adam(resumed.parameters())
    after.load_state_dict(optimizer.state_dict())
    train(resumed, after, range(4, 8))
    assert all(map(torch.equal, resumed.parameters(), whole.parameters()))
    train(half, optimizer, range(4, 8))  # what was loaded from is not what was stepped
    assert all(map(torch.equal, half.parameters(), whole.parameters()))


def forget(optimizer: torch.optim.Optimizer) -> None:
    optimizer.state.clear()


def forget_one(optimizer: torch.optim.Optimizer) -> None:
    del optimizer.state[optimizer.param_groups[0]["params"][0]]


def halve(optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        state["exp_avg"] = state["exp_avg"] * 0.5


def regroup(optimizer: torch.optim.Optimizer) -> None:
    first, second = (group["params"] for group in optimizer.param_groups)
    second.append(first.pop())


def exchange_a_group(optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0] = optimizer.param_groups[0] | {"lr": 1e-4}


@pytest.mark.parametrize("change", [forget, forget_one, halve, regroup, exchange_a_group])
@pytest.mark.parametrize("flat", [True, False])
def test_state_and_groups_may_be_changed_between_steps(
    flat: bool, change: Callable[[torch.optim.Optimizer], None]
) -> None:
    ours, theirs = network(flat), network(False)
    pair = Adam(groups(ours), lr=1e-2), torch.optim.AdamW(groups(theirs), lr=1e-2)
    for seed in range(9):
        (flat_backward if flat else backward)(ours, seed)
        backward(theirs, seed)
        for one in pair:
            if seed == 4:
                change(one)
            one.step()
            one.zero_grad()
    assert_close(ours, theirs)
    states = (one.state_dict()["state"] for one in pair)
    for state, wanted in zip(*(each.values() for each in states), strict=True):
        torch.testing.assert_close(state, wanted, rtol=1e-4, atol=1e-6)


def test_a_checkpoint_with_what_it_lacks_is_refused() -> None:
    model = network(False)
    other = torch.optim.AdamW(model.parameters(), amsgrad=True)
    with pytest.raises(ConfigurationError, match=r"amsgrad: got a checkpoint"):
        Adam(model.parameters()).load_state_dict(other.state_dict())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38])
def test_a_step_without_finite_gradients_is_skipped_and_counted(bad: float) -> None:
    model = network(False)
    optimizer = Adam(model.parameters(), max_grad_norm=1.0)
    backward(model, 0)
    optimizer.step()
    before = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict())
    model[2].weight.grad[3, 3] = bad
    optimizer.step()
    assert optimizer.skipped_steps == 1
    assert all(map(torch.equal, model.parameters(), before[0].parameters()))
    for key, state in optimizer.state_dict()["state"].items():
        assert all(torch.equal(state[name], before[1]["state"][key][name]) for name in state)
    optimizer.zero_grad()
    backward(model, 1)
    optimizer.step()
    assert optimizer.skipped_steps == 1
    assert not torch.equal(model[0].weight, before[0][0].weight)


def test_a_step_whose_gradients_are_all_zero_is_skipped_and_counted() -> None:
    model = network(False)
    optimizer = Adam(model.parameters(), weight_decay=0.1)
    backward(model, 0)
    optimizer.step()
    before = copy.deepcopy(model)
    for p in model.parameters():
        p.grad.zero_()
    optimizer.step()
    assert (optimizer.skipped_steps, optimizer.gradient_norm) == (1, 0.0)
    assert all(map(torch.equal, model.parameters(), before.parameters()))
    model[2].weight.grad[3, 3] = 1e-9
    optimizer.step()
    assert optimizer.skipped_steps == 1
    assert not torch.equal(model[0].weight, before[0].weight)


@pytest.mark.parametrize("unscaled", [True, False])
def test_a_grad_scaler_scales_and_skips_as_with_torchs(unscaled: bool) -> None:
    ours, theirs = network(False), network(False)
    optimizers = Adam(ours.parameters(), lr=1e-2), torch.optim.AdamW(theirs.parameters(), lr=1e-2)
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=4) for _ in range(2)]
    for seed in range(12):
        for model, optimizer, scaler in zip((ours, theirs), optimizers, scalers, strict=True):
            generator = torch.Generator().manual_seed(seed)
            loss = model(torch.randn(7, 16, generator=generator)).pow(3).sum()
            scaler.scale(loss * (math.inf if seed == 5 else 1.0)).backward()
            if unscaled:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert scalers[0].get_scale() == scalers[1].get_scale()
    assert optimizers[0].skipped_steps == 1
    assert_close(ours, theirs)


def test_writes_are_known_to_torch() -> None:
    model = network(True)
    optimizer = Adam(model.parameters())
    flat_backward(model, 0)
    before = model.flat.version()
    loss = model(torch.ones(1, 16)).sum()
    optimizer.step()
    assert model.flat.version() != before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_goes_on_alike(copied: Callable[[tuple], tuple]) -> None:
    model = network(False)
    optimizer = Adam(model.parameters(), max_grad_norm=0.5)
    backward(model, 0)
    optimizer.step()
    twin, twins = copied((model, optimizer))
    for one, its in ((model, optimizer), (twin, twins)):
        its.zero_grad()
        backward(one, 1)
        its.step()
    assert all(map(torch.equal, model.parameters(), twin.parameters()))
    assert twins.max_grad_norm == 0.5


def test_a_closure_is_called_with_gradients_and_its_loss_returned() -> None:
    model = network(False)
    optimizer = Adam(model.parameters())

    def closure() -> float:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 16)).square().sum()
        loss.backward()
        return loss.item()

    losses = [optimizer.step(closure) for _ in range(5)]
    assert losses == sorted(losses, reverse=True)


def test_memory_of_gradients_is_not_held() -> None:
    model = network(False)
    optimizer = Adam(model.parameters())
    backward(model, 0)
    storage = model[0].weight.grad.untyped_storage()
    users = storage._use_count() if hasattr(storage, "_use_count") else None
    optimizer.step()
    assert users is None or storage._use_count() == users


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -1.0}, "lr: got -1.0"),
        ({"eps": math.nan}, "eps: got nan"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"betas": (0.9,)}, "betas"),
        ({"max_grad_norm": 0.0}, "max_grad_norm: got 0.0"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Adam(nn.Linear(2, 2).parameters(), **settings)


@pytest.mark.parametrize("change", [nn.Module.double, lambda module: module.to("meta")])
def test_parameters_of_other_kinds_are_refused(change: Callable[[nn.Module], nn.Module]) -> None:
    with pytest.raises(ConfigurationError, match=r"wanted contiguous float32 or bfloat16 on the"):
        Adam(change(nn.Linear(2, 2)).parameters())


def test_sparse_gradients_are_refused() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ConfigurationError, match=r"wanted dense gradients"):
        Adam(table.parameters()).step()


@pytest.mark.parametrize("adamw", [True, False])
def test_decay_is_by_default_that_of_torchs(adamw: bool) -> None:
    wanted = TORCHS[adamw]([nn.Parameter(torch.ones(2))]).defaults["weight_decay"]
    assert Adam([nn.Parameter(torch.ones(2))], adamw=adamw).defaults["weight_decay"] == wanted


def test_the_norm_is_that_of_a_skipped_step_too() -> None:
    p = nn.Parameter(torch.ones(2))
    optimizer = Adam([p])
    for value in (1.0, math.nan):
        p.grad = torch.full((2,), value)
        optimizer.step()
    assert optimizer.skipped_steps == 1
    assert math.isnan(optimizer.gradient_norm)
