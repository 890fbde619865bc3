"""Parameters in bfloat16 without fp32 ones beside them: gradients in fp32, and updates that are
rounded stochastically."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import fusewire
import pytest
import torch
import transformers
from fusewire import train
from fusewire.errors import ConfigurationError
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn

from tests.tolerance import BFLOAT16_FALL, TRAINED_VERSUS_EAGER
from tests.train.processes import EACH_DEVICE, run
from tests.train.test_step import ON_EACH, batches, joined, weights
from tests.train.tiny_models import CONFIGS, eager, loss_of, ragged

HALF = torch.bfloat16
NAMES = [name for name in CONFIGS if name != "BertModel"]
# Allowed error, of that of transformers: on a CPU layers compute in fp32, on a GPU in 16 bits as
# transformers does.
NOISE = {"cpu": 1, "cuda": 2}
T5 = "T5ForConditionalGeneration"
SHORT = ["BertForMaskedLM", "GPT2LMHeadModel", T5]


def half_of(name: str, device: str = "cpu", **more: Any) -> Any:
    return eager(name, **more).to(device, HALF)


def on(device: str, batch: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value.to(device, HALF if value.is_floating_point() else value.dtype)
        for key, value in batch.items()
    }


def gradients(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    model.zero_grad()
    loss_of(model, batch).backward()
    named = sorted(model.named_parameters())
    return torch.cat([p.grad.double().flatten() for _, p in named if p.grad is not None])


def in_fp32(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    """Of transformers, at the values that the parameters have in 16 bits. (In fp64 its masks of
    rows that see only padding overflow.)"""
    exact = {k: v.float() if v.is_floating_point() else v for k, v in batch.items()}
    return gradients(copy.deepcopy(model).float(), exact)


@ON_EACH
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_nearer_to_the_truth_than_those_of_transformers(
    name: str, device: str
) -> None:
    theirs = half_of(name, device)
    ours = train.replace(copy.deepcopy(theirs))
    # Of question answering padding is a part of the loss, and differs.
    lengths = (11, 11) if name.endswith("QuestionAnswering") else (7, 12, 1, 9)
    batch = on(device, ragged(name, lengths))
    right = in_fp32(theirs, batch)
    errors = [(gradients(model, batch) - right).norm() for model in (ours, theirs)]
    assert errors[0] <= errors[1] * NOISE[device]
    for parameter in ours.parameters():
        assert parameter.dtype == HALF
        assert parameter.grad is None or parameter.grad.dtype == torch.float32


@ON_EACH
@pytest.mark.parametrize("name", [T5, "M2M100ForConditionalGeneration"])
def test_gradients_of_a_source_are_rounded_once_for_all_segments(name: str, device: str) -> None:
    layers = {"num_decoder_layers": 4} if name == T5 else {"decoder_layers": 4}
    batch, model = ragged(name), half_of(name, device, **layers)
    one, other = (
        gradients(train.replace(copy.deepcopy(model), segments=count), on(device, batch))
        for count in (1, 2)
    )
    assert torch.equal(one, other)


@ON_EACH
@pytest.mark.parametrize("name", SHORT)
def test_gradients_of_several_passes_add_up_in_fp32(name: str, device: str) -> None:
    model = train.replace(half_of(name, device))
    one, other = (on(device, ragged(name, seed=seed)) for seed in (0, 1))
    apart = gradients(model, one) + gradients(model, other)
    model.zero_grad()
    for batch in (one, other):
        loss_of(model, batch).backward()
    named = sorted(model.named_parameters())
    both = torch.cat([p.grad.double().flatten() for _, p in named if p.grad is not None])
    torch.testing.assert_close(both, apart, rtol=0, atol=2.0**-20 * float(apart.abs().max()))


@ON_EACH
def test_small_updates_train_where_rounding_to_nearest_loses_them(device: str) -> None:
    """200 steps beside those of fp32 parameters, and of some that are rounded to nearest."""
    name = "GPT2LMHeadModel"
    start, fell = half_of(name, device), {}
    for kind in ("bfloat16", "fp32", "nearest"):
        model = copy.deepcopy(start)
        model = train.replace(model if kind == "bfloat16" else model.float())
        optimizer = train.Adam(model.parameters(), lr=1e-4)
        curve = []
        for step in range(200):
            loss = loss_of(model, {k: v.to(device) for k, v in ragged(name, seed=step % 5).items()})
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if kind == "nearest":
                with torch.no_grad():
                    for p in model.parameters():
                        p.copy_(p.to(HALF))
            curve.append(float(loss.detach()))
        fell[kind] = sum(curve[:20]) - sum(curve[-20:])
    assert fell["bfloat16"] == pytest.approx(fell["fp32"], rel=BFLOAT16_FALL)
    assert fell["nearest"] < fell["fp32"] / 2


@ON_EACH
@pytest.mark.parametrize("name", [name for name in NAMES if "Image" in name])
def test_pixels_may_be_fp32_as_in_transformers(name: str, device: str) -> None:
    model = train.replace(half_of(name, device))
    batch = {key: value.to(device) for key, value in ragged(name).items()}
    assert torch.equal(gradients(model, batch), gradients(model, on(device, batch)))


@ON_EACH
@pytest.mark.parametrize("several", [False, True], ids=["single", "accumulated"])
@pytest.mark.parametrize("name", SHORT)
def test_a_step_is_the_one_by_hand(name: str, several: bool, device: str) -> None:
    model = train.replace(half_of(name, device))
    twin = copy.deepcopy(model)
    optimizers = [train.Adam(m.parameters(), lr=1e-3, max_grad_norm=1.0) for m in (model, twin)]
    step = train.Step(model, optimizers[0])
    made = batches(name)
    for number in range(0, len(made), 2):
        given = made[number : number + 2] if several else made[number]
        loss = step(given)
        whole = joined(given) if several else given
        wanted = loss_of(twin, on(device, whole))
        wanted.backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
        assert float(loss) == pytest.approx(float(wanted.detach()), rel=0.02)
    moved = (weights(model) - weights(half_of(name, device))).norm()
    assert (weights(model) - weights(twin)).norm() < 0.1 * moved


@ON_EACH
def test_a_checkpoint_goes_on_bit_for_bit(device: str, tmp_path: Path) -> None:
    """Moments stay fp32, and the numbers by which values are rounded follow from the step."""
    name = "GPT2LMHeadModel"
    model = train.replace(half_of(name, device))
    optimizer = train.Adam(model.parameters(), lr=1e-3)

    def go_on(model: Any, optimizer: Any, steps: range) -> None:
        for seed in steps:
            loss_of(model, on(device, ragged(name, seed=seed))).backward()
            optimizer.step()
            optimizer.zero_grad()

    go_on(model, optimizer, range(3))
    torch.save([model.state_dict(), optimizer.state_dict()], tmp_path / "checkpoint.pt")
    go_on(model, optimizer, range(3, 6))
    of_model, of_optimizer = torch.load(tmp_path / "checkpoint.pt")
    resumed = train.replace(half_of(name, device))
    resumed.load_state_dict(of_model)
    other = train.Adam(resumed.parameters(), lr=1e-3)
    other.load_state_dict(of_optimizer)
    states = [state for state in other.state.values() if "exp_avg" in state]
    assert all(state["exp_avg"].dtype == torch.float32 for state in states)
    go_on(resumed, other, range(3, 6))
    assert torch.equal(weights(resumed), weights(model))


def test_a_checkpoint_may_count_its_steps_by_numbers_that_are_no_tensors() -> None:
    """As those of old versions of torch do."""
    name = "GPT2LMHeadModel"
    model = train.replace(half_of(name))
    optimizer = train.Adam(model.parameters(), lr=1e-3)
    loss_of(model, ragged(name)).backward()
    optimizer.step()
    saved = optimizer.state_dict()
    old = {i: state | {"step": int(state["step"])} for i, state in saved["state"].items()}
    other = train.Adam(model.parameters(), lr=1e-3)
    other.load_state_dict(saved | {"state": old})
    for i, state in other.state_dict()["state"].items():
        for key, value in state.items():
            assert torch.equal(value, saved["state"][i][key])


@ON_EACH
@pytest.mark.parametrize("moved", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_and_pickles_have_gradients_in_fp32_too(moved: Any, device: str) -> None:
    name = "BertForMaskedLM"
    model = train.replace(half_of(name, device))
    batch = on(device, ragged(name))
    wanted = gradients(model, batch)
    other = moved(model)
    assert torch.equal(gradients(other, batch), wanted)
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in other.parameters())


@ON_EACH
def test_gradients_that_a_conversion_made_16_bits_are_fp32_again(device: str) -> None:
    """Module.to converts pending gradients in place, whatever their grad_dtype is."""
    name = "BertForMaskedLM"
    model = train.replace(half_of(name, device))
    batch = on(device, ragged(name))
    wanted = 2 * gradients(model, batch)
    gradients(model, batch)
    model.float().to(HALF)
    loss_of(model, batch).backward()
    named = sorted(model.named_parameters())
    found = torch.cat([p.grad.double().flatten() for _, p in named if p.grad is not None])
    torch.testing.assert_close(found, wanted, rtol=0, atol=2.0**-9 * float(wanted.abs().max()))
    assert all(p.grad is None or p.grad.dtype == torch.float32 for _, p in named)
    train.Adam(model.parameters()).step()


@ON_EACH
@pytest.mark.parametrize("name", SHORT)
def test_the_criterion_takes_heads_in_16_bits(name: str, device: str) -> None:
    theirs = half_of(name, device)
    model = train.replace(copy.deepcopy(theirs))
    batch = on(device, ragged(name))
    loss = train.CrossEntropy().of_model(model, batch)
    assert loss.dtype == torch.float32
    plain = loss_of(model, batch).detach()
    assert float(loss.detach()) == pytest.approx(float(plain), rel=0.01)
    loss.backward()
    named = sorted(model.named_parameters())
    found = torch.cat([p.grad.double().flatten() for _, p in named if p.grad is not None])
    right = in_fp32(theirs, batch)
    assert (found - right).norm() <= NOISE[device] * (gradients(theirs, batch) - right).norm()


@pytest.mark.parametrize("device", EACH_DEVICE)
def test_processes_share_the_update_and_the_batch(device: str, tmp_path: Path) -> None:
    """A process rounds its part of the parameters by the numbers of a single process."""
    one, other = run("tests.train.bfloat16_process", 2, tmp_path, device)
    for seen in (one, other):
        assert torch.equal(seen["sharded"], seen["alone"])
    assert torch.equal(one["step"], other["step"])
    assert one["losses"] == other["losses"]
    assert sum(one["losses"][-3:]) < sum(one["losses"][:3])


def test_what_is_saved_is_in_16_bits_and_served(tmp_path: Path) -> None:
    name = "BertForSequenceClassification"
    model = train.replace(half_of(name))
    optimizer = train.Adam(model.parameters(), lr=1e-3)
    for seed in range(5):
        loss_of(model, ragged(name, seed=seed)).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(tmp_path)
    reread = type(model).from_pretrained(tmp_path)
    assert reread.dtype == HALF
    assert torch.equal(weights(reread), weights(model))
    batch = ragged(name)
    del batch["labels"]
    with torch.no_grad():
        wanted = reread.float().eval()(**batch).logits
    served = fusewire.load(tmp_path)(**batch).logits
    torch.testing.assert_close(served, wanted, rtol=0, atol=TRAINED_VERSUS_EAGER)


def test_the_trainer_trains_them(tmp_path: Path) -> None:
    name = "BertForSequenceClassification"
    model = train.replace(half_of(name))
    before = weights(model)
    rows = [{k: v[0] for k, v in ragged(name, (9,), seed).items()} for seed in range(16)]
    arguments = transformers.TrainingArguments(
        tmp_path, per_device_train_batch_size=4, num_train_epochs=2, max_grad_norm=0.0,
        report_to=[], use_cpu=True, save_strategy="epoch",
    )  # fmt: skip
    optimizer = train.Adam(model.parameters(), lr=1e-3, max_grad_norm=1.0)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    trainer = transformers.Trainer(
        model, arguments, train_dataset=rows, optimizers=(optimizer, schedule)
    )
    trainer.train()
    assert model.dtype == HALF
    assert not torch.equal(weights(model), before)
    assert optimizer.skipped_steps == 0


def test_what_cannot_be_trained_so_is_refused() -> None:
    name = "BertForMaskedLM"
    mixed = half_of(name)
    mixed.cls.float()
    with pytest.raises(
        ConfigurationError, match="parameters: got bfloat16 and float32, wanted one"
    ):
        train.replace(mixed)
    with pytest.raises(ConfigurationError, match="got float16 on cpu, wanted float32 or bfloat16"):
        train.replace(eager(name).half())
    model = train.replace(half_of(name)).float()
    with pytest.raises(ConfigurationError, match=r"got torch\.float32, wanted torch\.bfloat16 as"):
        loss_of(model, ragged(name))
    plain = torch.nn.Linear(3, 3).bfloat16()
    optimizer = train.Adam(plain.parameters())
    plain(torch.ones(1, 3, dtype=HALF)).sum().backward()
    with pytest.raises(ConfigurationError, match=r"set grad_dtype = torch\.float32"):
        optimizer.step()


@pytest.mark.parametrize("kind", ["SGD", "Adagrad", "RMSprop", "Adafactor"])
def test_other_optimizers_of_torch_train_them(kind: str) -> None:
    name = "BertForMaskedLM"
    model = train.replace(half_of(name))
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.01)
    before = float(loss_of(model, ragged(name)).detach())
    for _ in range(5):
        optimizer.zero_grad()
        loss = loss_of(model, ragged(name))
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < before


def test_an_average_of_weights_is_kept_in_fp32() -> None:
    """In bfloat16 the small steps of an average are lost."""
    name = "BertForSequenceClassification"
    model = train.replace(half_of(name))
    optimizer = train.Adam(model.parameters(), lr=1e-3)
    average = get_ema_avg_fn(0.999)
    exact, rounded = (
        AveragedModel(model, avg_fn=average).float(),
        AveragedModel(model, avg_fn=average),
    )
    wanted = start = weights(model).double()
    for number in range(40):
        loss_of(model, ragged(name, seed=number % 3)).backward()
        optimizer.step()
        optimizer.zero_grad()
        exact.update_parameters(model)
        rounded.update_parameters(model)
        now = weights(model).double()
        wanted = 0.999 * wanted + 0.001 * now if number else now
    far = (wanted - start).norm()
    assert (weights(exact.module).double() - wanted).norm() < 0.02 * far
    assert (weights(rounded.module).double() - wanted).norm() > 0.2 * far
    assert float(loss_of(exact.module.bfloat16(), ragged(name)).detach()) > 0


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        *((kind, {}) for kind in ("Adam", "AdamW", "Adamax", "NAdam", "RAdam")),
        *((kind, {"fused": True}) for kind in ("AdamW", "SGD", "Adagrad")),
    ],
)
def test_those_that_take_one_dtype_are_refused(kind: str, more: dict[str, Any]) -> None:
    name = "BertForMaskedLM"
    model = train.replace(half_of(name))
    loss_of(model, ragged(name)).backward()
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.01, **more)
    with pytest.raises(ConfigurationError, match=r"wanted fusewire\.train\.Adam, which rounds"):
        optimizer.step()


@pytest.mark.gpu
def test_autocast_to_another_dtype_is_refused() -> None:
    name = "BertForMaskedLM"
    model = train.replace(half_of(name, "cuda"))
    batch = on("cuda", ragged(name))
    with (
        torch.autocast("cuda", torch.float16),
        pytest.raises(ConfigurationError, match=r"autocast: got torch\.float16 with parameters in"),
    ):
        loss_of(model, batch)
    with torch.autocast("cuda", HALF):
        loss_of(model, batch).backward()
