"""Kernels compute with the parameters that are there, whoever wrote them, where the optimizer
writes the copies that they read."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusewire import train
from fusewire.train.rounded import RoundedCopies
from torch.autograd.graph import increment_version

from tests.tolerance import TRAINED_VERSUS_EAGER
from tests.train.tiny_models import eager, ragged

NAME = "GPT2LMHeadModel"
ON_EACH = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
DTYPE = {"cpu": torch.float32, "cuda": torch.bfloat16}
# Of losses in bf16, of batches whose sizes are rounded up and of those as they are.
BFLOAT16 = 0.02


def prepare(device: str, rate: float = 1e-3) -> tuple[Any, train.Adam, train.Step]:
    model = train.replace(eager(NAME).to(device)).train()
    optimizer = train.Adam(model.parameters(), lr=rate, weight_decay=0.0)
    return model, optimizer, train.Step(model, optimizer, dtype=DTYPE[device])


def test_a_copy_that_inference_mode_made_is_written_in_training() -> None:
    """As where a host validates before it trains."""
    values = torch.ones(4)
    copies = RoundedCopies(values)
    with torch.inference_mode():
        copies.read(torch.bfloat16, (0, 0, 0))
    values.fill_(2.0)
    assert copies.read(torch.bfloat16, (0, 0, 1)).tolist() == [2.0] * 4


def norm(model: Any) -> torch.nn.Parameter:
    """The weight that all logits are proportional to."""
    found: torch.nn.Parameter = model.transformer.ln_f.weight
    return found


def by_hand(model: Any) -> None:
    with torch.no_grad():
        norm(model).mul_(-8.0)


def by_loading(model: Any) -> None:
    name = next(name for name, p in model.named_parameters() if p is norm(model))
    model.load_state_dict(model.state_dict() | {name: -8.0 * norm(model).detach()})


def by_another_optimizer(model: Any) -> None:
    weight = norm(model)
    weight.grad = 9.0 * weight.detach()
    torch.optim.SGD([weight], lr=1.0).step()
    weight.grad = None


def by_what_torch_does_not_count(model: Any) -> None:
    """As torch.distributed's broadcast."""
    norm(model).data.mul_(-8.0)
    increment_version(norm(model))


def loss_of_copy(model: Any, batch: dict[str, torch.Tensor], device: str) -> float:
    """By the weights as they are, without anything that was kept of them."""
    there = {name: value.to(device) for name, value in batch.items()}
    with torch.no_grad(), torch.autocast(device, DTYPE[device], enabled=device == "cuda"):
        return float(copy.deepcopy(model)(**there).loss)


@ON_EACH
@pytest.mark.parametrize("several", [False, True], ids=["single", "accumulated"])
@pytest.mark.parametrize(
    "write", [by_hand, by_loading, by_another_optimizer, by_what_torch_does_not_count]
)
def test_a_step_sees_what_others_wrote_before_it(
    write: Callable[[Any], None], several: bool, device: str
) -> None:
    model, _, step = prepare(device, rate=0.0)
    batch = ragged(NAME, seed=1)
    given: Any = [batch, batch] if several else batch
    rel = TRAINED_VERSUS_EAGER if device == "cpu" else BFLOAT16
    for _ in range(3):
        step(given)
    for _ in range(2):
        before = float(step(given))
        write(model)
        got = float(step(given))
        assert got == pytest.approx(loss_of_copy(model, batch, device), rel=rel)
        assert got != pytest.approx(before, rel=2 * rel)
        assert float(step(given)) == pytest.approx(got, rel=rel)


@ON_EACH
def test_others_see_what_was_written_as_torch_does_not_count(device: str) -> None:
    """As who evaluates with averages of the weights, and puts the weights back."""
    model, _, step = prepare(device)
    batch = ragged(NAME, seed=1)
    there = {name: value.to(device) for name, value in batch.items()}
    rel = TRAINED_VERSUS_EAGER if device == "cpu" else BFLOAT16

    def averages(weight: torch.Tensor) -> None:
        norm(model).data.copy_(weight)
        if device == "cpu":  # whose packed weights would be older: docs/training.md says it
            increment_version(norm(model))

    for _ in range(4):
        wanted = loss_of_copy(model, batch, device)
        assert float(step(batch)) == pytest.approx(wanted, rel=rel)
        kept = norm(model).detach().clone()
        averages(-8.0 * kept)
        with torch.no_grad(), torch.autocast(device, DTYPE[device], enabled=device == "cuda"):
            got = float(model(**there).loss)
        assert got == pytest.approx(loss_of_copy(model, batch, device), rel=rel)
        assert got != pytest.approx(wanted, rel=2 * rel)
        averages(kept)


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 2], ids=["single", "accumulated"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_adam_writes_what_kernels_read(dtype: torch.dtype, count: int) -> None:
    model = train.replace(eager(NAME).cuda()).train()
    optimizer = train.Adam(model.parameters(), lr=1e-2, max_grad_norm=1.0)
    step = train.Step(model, optimizer, dtype=dtype)
    flat, batch = model.transformer.fusewire.flat, ragged(NAME, seed=1)
    for _ in range(4):
        before = flat.values.clone()
        step(batch if count == 1 else [batch] * count)
        assert optimizer.copied == [flat]
        assert not torch.equal(flat.values, before)
        with flat.copy_written_along(dtype):
            assert torch.equal(flat.values_in(dtype), flat.values.to(dtype))
    assert step.replays > 0


@pytest.mark.gpu
def test_a_loop_writes_no_copies() -> None:
    """It may write parameters as torch does not count, between a step and a forward."""
    model, optimizer, _ = prepare("cuda")
    there = {name: value.cuda() for name, value in ragged(NAME, seed=1).items()}
    for _ in range(3):
        with torch.autocast("cuda", torch.bfloat16):
            model(**there).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert optimizer.copied == []
