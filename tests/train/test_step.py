"""A whole step is the one that its parts make, over batches whose sizes change."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import transformers
from fusewire import train
from fusewire.errors import ConfigurationError, InvalidInput
from fusewire.train.targets import labels_of

from tests.tolerance import TRAINED_VERSUS_EAGER, TRAINED_WEIGHT
from tests.train.tiny_models import eager, ragged

GPT = "GPT2LMHeadModel"
PAIRS = ["BartForConditionalGeneration", "MarianMTModel", "T5ForConditionalGeneration"]
NAMES = [
    "BertForSequenceClassification",
    "BertForMaskedLM",
    GPT,
    "LlamaForCausalLM",
    *PAIRS,
    "ViTForImageClassification",
]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
ON_EACH = pytest.mark.parametrize("device", DEVICES)


LENGTHS = (7, 12, 1, 9), (33, 5, 8, 2), (3, 4, 5, 6)


def batches(name: str, count: int = 12) -> list[dict[str, Any]]:
    """Three batches, over and over: ragged, of different lengths; targets have those of others.
    Images differ in their number."""
    made = []
    for seed in range(count):
        rows = 2 + seed % 3 if name.startswith("ViT") else 4
        batch = ragged(name, LENGTHS[seed % 3][:rows], seed % 3)
        if name in PAIRS:
            batch["labels"] = ragged(name, LENGTHS[(seed + 1) % 3], seed % 3)["labels"]
        made.append(batch)
    return made


def joined(several: list[dict[str, Any]]) -> dict[str, Any]:
    """All rows in one batch."""

    def padded(name: str, value: torch.Tensor, length: int) -> torch.Tensor:
        filled = -100 if name == "labels" else 0
        more = torch.full((len(value), length - value.shape[1]), filled, dtype=value.dtype)
        return torch.cat([value, more], 1)

    found = {}
    for name, first in several[0].items():
        values = [batch[name] for batch in several]
        if first.ndim == 2:
            longest = max(value.shape[1] for value in values)
            values = [padded(name, value, longest) for value in values]
        found[name] = torch.cat(values)
    return found


def prepare(name: str, device: str, segments: int = 1, **more: Any) -> tuple[Any, Any]:
    model = train.replace(eager(name, **more).to(device), segments=segments)
    model.train()
    return model, train.Adam(model.parameters(), lr=1e-3, max_grad_norm=1.0)


def weights(model: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


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
@pytest.mark.parametrize("name", NAMES)
def test_several_batches_make_the_step_of_all_their_rows(name: str, device: str) -> None:
    """However many labels each has, and with single batches in between."""
    model, optimizer = prepare(name, device)
    twin, other = prepare(name, device)
    step, every = train.Step(model, optimizer), batches(name)
    for begin, end in ((0, 2), (2, 5), (5, 6), (6, 8), (8, 11), (11, 12), (0, 2), (2, 5)):
        several, before = every[begin:end], weights(model)
        got = step(several if len(several) > 1 else several[0])
        wanted = by_hand(twin, other, joined(several), device)
        torch.testing.assert_close(got, wanted, rtol=TRAINED_VERSUS_EAGER, atol=0)
        assert optimizer.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-3)
        # Adam makes whole steps of gradients that are rounding alone, as those of keys' biases.
        moved, off = weights(twin) - before, weights(model) - weights(twin)
        assert off.norm() <= 0.25 * moved.norm()
        with torch.no_grad():  # so that each step is compared by itself
            for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
                theirs.copy_(ours)
    # Three buckets in lists, one that is alone, and the update, each computed as it is once.
    assert step.replays == (0 if device == "cpu" else 15 + 2 + 8 - 3 - 1 - 1)
    assert all(p.grad is None for p in model.parameters())


@ON_EACH
@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "T5ForConditionalGeneration"])
def test_a_batch_without_labels_has_no_share_in_the_step(name: str, device: str) -> None:
    """Which has no labels of its own, and so no mean."""
    first, second, unlabelled = batches(name, 3)
    unlabelled["labels"] = torch.full_like(unlabelled["labels"], -100)
    losses = []
    for several in ([first, second], [first, unlabelled, second]):
        model, optimizer = prepare(name, device)
        losses.append(train.Step(model, optimizer)(several).item())
    assert losses[1] == pytest.approx(losses[0], rel=TRAINED_VERSUS_EAGER)


@ON_EACH
@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "BartForConditionalGeneration"])
@pytest.mark.parametrize("loss", [None, train.CrossEntropy().of_model], ids=["mean", "criterion"])
@pytest.mark.parametrize("count", [1, 2], ids=["single", "accumulated"])
def test_a_step_without_labels_changes_nothing(
    count: int, loss: Any, name: str, device: str
) -> None:
    """Though momentum and decay would. No GradScaler takes it for an overflow."""
    model, optimizer = prepare(name, device)
    scaler = torch.amp.GradScaler(device, init_scale=8.0)
    step = train.Step(model, optimizer, loss=loss, scaler=scaler)
    learned = batches(name, 1) * count
    labels = learned[0]["labels"]
    nothing = [batch | {"labels": torch.full_like(labels, -100)} for batch in learned]

    def take(several: list[dict[str, Any]]) -> torch.Tensor:
        return step(several if count > 1 else several[0])

    for skipped in range(1, 4):
        take(learned)
        before = weights(model)
        assert not math.isfinite(take(nothing)) or (loss is not None and count == 1)
        assert torch.equal(weights(model), before)
        assert optimizer.skipped_steps == skipped
        assert scaler.get_scale() == 8.0
    assert math.isfinite(take(learned))
    assert not torch.equal(weights(model), before)


@ON_EACH
def test_parameters_that_replace_did_not_see_get_the_gradients_of_one_step(device: str) -> None:
    name = "BertModel"

    def headed() -> tuple[Any, Any]:
        torch.manual_seed(0)
        model = torch.nn.ModuleDict({"base": eager(name), "head": torch.nn.Linear(32, 1)})
        train.replace(model.base)
        model.to(device).train()
        # Of a key's bias the gradient is rounding alone: eps keeps it from becoming a step.
        return model, train.Adam(model.parameters(), lr=1e-3, eps=1e-4)

    def loss(model: Any, batch: dict[str, Any]) -> torch.Tensor:
        there = {key: value.to(device) for key, value in batch.items()}
        return model.head(model.base(**there).pooler_output).square().mean()

    (model, optimizer), (twin, other) = headed(), headed()
    step = train.Step(model, optimizer, loss=loss, items=len)
    several = [ragged(name, seed=seed) for seed in range(2)]
    for _ in range(4):
        step(several)
        (sum(loss(twin, batch) for batch in several) / 2).backward()
        other.step()
        other.zero_grad()
        torch.testing.assert_close(weights(model), weights(twin), rtol=0, atol=TRAINED_WEIGHT)


@ON_EACH
def test_parameters_that_no_loss_reaches_are_left_alone(device: str) -> None:
    name = "BertForPreTraining"
    model, optimizer = prepare(name, device)
    before = copy.deepcopy(model)
    model.bert.embeddings.requires_grad_(False)

    def loss(model: Any, batch: Any) -> torch.Tensor:
        return model(**batch).prediction_logits.square().mean()

    step = train.Step(model, optimizer, loss=loss, items=lambda batch: batch["labels"].numel())
    for _ in range(3):
        step([ragged(name, seed=seed) for seed in range(2)])
    changed = {
        name
        for (name, p), old in zip(model.named_parameters(), before.parameters(), strict=True)
        if not torch.equal(p, old)
    }
    assert changed == {
        name
        for name, _ in model.named_parameters()
        if "embeddings" not in name and "pooler" not in name and "seq_relationship" not in name
    }


@ON_EACH
@pytest.mark.parametrize("count", [1, 2], ids=["single", "accumulated"])
def test_parameters_are_frozen_and_unfrozen_between_steps(count: int, device: str) -> None:
    """What was recorded before is not replayed."""
    (model, optimizer), (twin, other) = prepare(GPT, device), prepare(GPT, device)
    step, recorded = train.Step(model, optimizer), []
    for trained in (True, False, True):
        for each in (model, twin):
            each.transformer.h[0].requires_grad_(trained)
        for _ in range(4):
            several, before = [ragged(GPT)] * count, weights(model.transformer.h[0])
            got = step(several if count > 1 else several[0])
            wanted = by_hand(twin, other, joined(several), device)
            torch.testing.assert_close(got, wanted, rtol=TRAINED_VERSUS_EAGER, atol=0)
            assert torch.equal(before, weights(model.transformer.h[0])) == (not trained)
        recorded += step._buckets.values()
    assert len(set(map(id, recorded))) == 3


@ON_EACH
def test_an_encoder_may_be_in_eval_mode_alone(device: str) -> None:
    """Its dropout is not replayed then."""
    model, optimizer = prepare("MarianMTModel", device, dropout=0.5)
    optimizer.param_groups[0]["lr"] = 0.0
    model.get_decoder().eval()
    step, batch = train.Step(model, optimizer), ragged("MarianMTModel")
    losses: dict[bool, set[float]] = {True: set(), False: set()}
    for training in (True, False, True):
        model.get_encoder().train(training)
        for _ in range(4):
            losses[training].add(float(step(batch)))
    assert [len(losses[training]) for training in (True, False)] == [8, 1]
    assert len(step._buckets) == 2


@ON_EACH
@pytest.mark.parametrize("count", [1, 2], ids=["single", "accumulated"])
def test_a_grad_scaler_scales_skips_and_grows_as_by_hand(count: int, device: str) -> None:
    """In float16 on a GPU."""
    name = "BertForSequenceClassification"
    dtype = torch.float16 if device == "cuda" else torch.float32
    (model, optimizer), (twin, other) = prepare(name, device), prepare(name, device)
    factor = torch.tensor(1.0, device=device)
    scalers = [
        torch.amp.GradScaler(device, init_scale=2.0**10, growth_interval=3) for _ in range(2)
    ]
    step = train.Step(
        model,
        optimizer,
        loss=lambda model, batch: model(**batch).loss * factor,
        dtype=dtype,
        scaler=scalers[0],
    )
    scales = []
    for number in range(9):
        factor.fill_(math.inf if number == 4 else 1.0)
        several = batches(name)[number % 3 :][:count]
        got = step(several if count > 1 else several[0])
        there = {key: value.to(device) for key, value in joined(several).items()}
        with torch.autocast(device, dtype, enabled=device == "cuda"):
            wanted = twin(**there).loss * factor
        scalers[1].scale(wanted).backward()
        scalers[1].step(other)
        scalers[1].update()
        other.zero_grad()
        rel = TRAINED_VERSUS_EAGER if device == "cpu" else 0.02
        assert float(got) == pytest.approx(float(wanted.detach()), rel=rel)
        scales.append(scalers[0].get_scale())
        assert scales[-1] == scalers[1].get_scale()
    assert scales == [2.0**n for n in (10, 10, 11, 11, 10, 10, 10, 11, 11)]
    assert optimizer.skipped_steps == other.skipped_steps == 1
    assert step.replays == (0 if device == "cpu" else 6 if count == 1 else 18 + 9 - 3 - 1)


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


@ON_EACH
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match:UserWarning")
@pytest.mark.parametrize("count", [1, 2], ids=["single", "accumulated"])
def test_steps_go_on_from_a_checkpoint_and_from_a_loop(count: int, device: str) -> None:
    """Which both change where moments are."""
    name = "BertForSequenceClassification"
    model, _ = prepare(name, device)
    twin, batch = copy.deepcopy(model), ragged(name, seed=1)
    # Of a key's bias the gradient is rounding alone: eps keeps it from becoming a step.
    optimizer, other = (train.Adam(m.parameters(), lr=1e-3, eps=1e-4) for m in (model, twin))
    step = train.Step(model, optimizer)

    def three() -> None:
        for _ in range(3):
            step(batch if count == 1 else [batch] * count)
            by_hand(twin, other, batch, device)
        torch.testing.assert_close(weights(model), weights(twin), rtol=0, atol=TRAINED_WEIGHT)
        twin.load_state_dict(model.state_dict())  # so that what differs does not add up

    three()
    begun = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    three()
    by_hand(model, optimizer, batch, device)
    by_hand(twin, other, batch, device)
    three()
    for trained, its in ((model, optimizer), (twin, other)):
        trained.load_state_dict(begun[0])
        its.load_state_dict(begun[1])
    three()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["BertForSequenceClassification", *PAIRS])
def test_a_replay_is_bit_equal_to_the_step_that_it_records(name: str) -> None:
    model, optimizer = prepare(name, "cuda")
    twin, other = prepare(name, "cuda")
    twin.load_state_dict(model.state_dict())
    step, uncaptured = train.Step(model, optimizer), train.Step(twin, other)
    for batch in batches(name):
        for bucket in uncaptured._buckets.values():
            bucket.step.seen = False
        assert torch.equal(step(batch), uncaptured(batch))
    assert step.replays == 9
    assert uncaptured.replays == 0
    assert all(map(torch.equal, model.parameters(), twin.parameters()))


def test_a_head_that_replace_did_not_see_trains_alone() -> None:
    class Headed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base, self.head = train.replace(eager("BertModel")), torch.nn.Linear(32, 1)

    model = Headed().train()
    before = copy.deepcopy(model)

    def loss(model: Any, batch: dict[str, Any]) -> torch.Tensor:
        return model.head(model.base(**batch).pooler_output).square().mean()

    train.Step(model, train.Adam(model.head.parameters()), loss=loss)(ragged("BertModel"))
    assert not torch.equal(model.head.weight, before.head.weight)
    assert torch.equal(weights(model.base), weights(before.base))


@ON_EACH
@pytest.mark.parametrize("labels", [torch.eye(4), torch.arange(16.0).view(4, 4)])
def test_as_many_classes_as_places_are_no_places(labels: torch.Tensor, device: str) -> None:
    """Of several labels a text, and of regression."""
    kind = "multi_label_classification" if labels.max() <= 1 else "regression"
    more = {"num_labels": 4, "problem_type": kind}
    model, optimizer = prepare("BertForSequenceClassification", device, **more)
    batch = ragged("BertForSequenceClassification", (4, 4, 4, 2)) | {"labels": labels}
    wanted = by_hand(*prepare("BertForSequenceClassification", device, **more), batch, device)
    got = train.Step(model, optimizer)(batch)
    torch.testing.assert_close(got, wanted, rtol=TRAINED_VERSUS_EAGER, atol=0)


@ON_EACH
@pytest.mark.parametrize("pad", [0, 60, None])
@pytest.mark.parametrize("name", ["GPT2", "Llama"])
def test_a_decoder_classifies_by_the_last_token_of_a_row(
    name: str, pad: int | None, device: str
) -> None:
    """Which its head finds by the ids behind it; without an id of padding it takes single rows."""
    lengths = (7,) if pad is None else (7, 12, 1, 9)
    batch = ragged(GPT, lengths)
    there = batch["attention_mask"].bool()
    batch["input_ids"] = torch.where(there, batch["input_ids"].clamp(3, 50), pad or 0)
    batch["labels"] = torch.arange(len(lengths)) % 3
    causal = eager(GPT if name == "GPT2" else "LlamaForCausalLM", num_labels=3, pad_token_id=pad)
    pairs = []
    for _ in range(2):
        torch.manual_seed(1)
        model = getattr(transformers, f"{name}ForSequenceClassification")(causal.config)
        model = train.replace(model.to(device).train())
        pairs.append((model, train.Adam(model.parameters(), lr=1e-3, max_grad_norm=1.0)))
    step = train.Step(*pairs[0])
    for _ in range(4):
        got, wanted = step(batch), by_hand(*pairs[1], batch, device)
        torch.testing.assert_close(got, wanted, rtol=TRAINED_VERSUS_EAGER, atol=0)
    assert step.replays == (0 if device == "cpu" else 3)


@ON_EACH
def test_places_that_are_classes_are_not_rounded_up(device: str) -> None:
    name = "BertForQuestionAnswering"
    wanted = by_hand(*prepare(name, device), ragged(name), device)
    got = train.Step(*prepare(name, device))(ragged(name))
    torch.testing.assert_close(got, wanted, rtol=TRAINED_VERSUS_EAGER, atol=0)


@ON_EACH
@pytest.mark.parametrize("name", ["BertForMaskedLM", GPT, "MarianMTModel"])
def test_a_loss_may_call_the_model_with_the_batch_alone(name: str, device: str) -> None:
    """Whose tokens are known beforehand: others would be taken for them."""

    def twice(model: Any, batch: dict[str, Any]) -> torch.Tensor:
        return (model(**batch).loss + model(**batch).loss) / 2

    got = train.Step(*prepare(name, device), loss=twice)(ragged(name))
    wanted = by_hand(*prepare(name, device), ragged(name), device)
    torch.testing.assert_close(got, wanted, rtol=TRAINED_VERSUS_EAGER, atol=0)

    def with_other(**changes: Any) -> Any:
        def loss(model: Any, batch: dict[str, Any]) -> Any:
            return model(**batch | {k: change(batch[k]) for k, change in changes.items()}).loss

        return train.Step(*prepare(name, device), loss=loss)

    with pytest.raises(InvalidInput, match="attention_mask: got another in a Step, wanted that of"):
        with_other(attention_mask=lambda mask: mask.flip(1))(ragged(name))
    half = dict.fromkeys(ragged(name), lambda value: value[:2])
    with pytest.raises(InvalidInput, match=r"input_ids: got shape \[2, 32\] in a Step, wanted"):
        with_other(**half)(ragged(name))
    if name in PAIRS:
        with pytest.raises(InvalidInput, match="decoder_attention_mask: got another in a Step"):
            with_other(labels=lambda labels: labels.flip(0))(ragged(name))


def test_what_it_cannot_do_is_refused() -> None:
    model, optimizer = prepare("BertForSequenceClassification", "cpu")
    with pytest.raises(ConfigurationError, match="wanted one that fusewire"):
        train.Step(torch.nn.Linear(2, 2), optimizer)
    with pytest.raises(ConfigurationError, match="optimizer: got AdamW, wanted"):
        train.Step(model, torch.optim.AdamW(model.parameters()))
    with pytest.raises(ConfigurationError, match="optimizer: got parameters of another model"):
        train.Step(model, prepare("BertForSequenceClassification", "cpu")[1])
    with pytest.raises(ConfigurationError, match=r"dtype: got torch.bfloat16 on cpu, wanted"):
        train.Step(model, optimizer, dtype=torch.bfloat16)
    step, batch = train.Step(model, optimizer), ragged("BertForSequenceClassification", seed=1)
    with pytest.raises(InvalidInput, match="input_ids: got none"):
        step({})
    for wrong in (list(batch.values()), [batch, None], iter([batch])):
        with pytest.raises(
            InvalidInput, match=r"batch: got a \w+, wanted tensors by name, .* list"
        ):
            step(wrong)
    for value in (["good", "bad"], None):
        with pytest.raises(InvalidInput, match=f"text: got a {type(value).__name__}, wanted a t"):
            step(batch | {"text": value})
    positions = torch.arange(12)[None]
    with pytest.raises(InvalidInput, match=r"position_ids: got shape \[1, 12\], wanted \[4, 12\]"):
        step(batch | {"position_ids": positions})
    assert step(batch | {"position_ids": positions.expand(4, -1)}) > 0
    left = batch | {"attention_mask": batch["attention_mask"].flip(1)}
    for _ in range(3):
        with pytest.raises(InvalidInput, match="padding in the first place of a row"):
            step(left)
    with pytest.raises(InvalidInput, match="batches: got none"):
        step([])
    unlabelled = {name: value for name, value in batch.items() if name != "labels"}
    for given in (unlabelled, [unlabelled]):
        with pytest.raises(InvalidInput, match=r"loss: got NoneType, .* give the batch its labels"):
            step(given)
    rows = train.Step(model, optimizer, loss=lambda model, batch: model(**batch).logits)
    with pytest.raises(InvalidInput, match=r"loss: got Tensor of shape \[4, 3\], wanted a tensor"):
        rows(batch)
    with pytest.raises(InvalidInput, match="labels: got none, wanted some, by whose number"):
        step([unlabelled, unlabelled])
    name = "BartForConditionalGeneration"
    bart = train.Step(*prepare(name, "cpu"))
    batch = ragged(name, seed=1)
    with pytest.raises(InvalidInput, match=r"labels: got none, wanted .* a target for each source"):
        bart({name: value for name, value in batch.items() if name != "labels"})
    with pytest.raises(InvalidInput, match="as decoder_input_ids"):
        bart({**batch, "decoder_input_ids": batch["labels"][:, 1:].clamp(min=0)})


def test_labels_of_pairs_that_are_not_by_token_are_refused() -> None:
    """Heads of encoder-decoder models that classify, whose labels say nothing of their targets."""
    step = train.Step(*prepare("BartForConditionalGeneration", "cpu"))
    batch = ragged("BartForConditionalGeneration")
    rows, targets = len(batch["input_ids"]), batch.pop("labels")
    for labels in (torch.ones(rows, 2), torch.ones(rows, dtype=torch.int64)):
        with pytest.raises(InvalidInput, match=r"labels: got torch.* wanted integers .* classify"):
            step(batch | {"labels": labels})
    with pytest.raises(InvalidInput, match=r"labels: got torch.int64 of shape .* classify"):
        step(batch | {"labels": labels, "decoder_input_ids": targets.clamp(min=0)})


class Holder(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **batch: torch.Tensor) -> Any:
        return self.model(**batch)


def test_losses_of_a_model_in_a_wrapper_are_weighed_alike() -> None:
    """The first label of each row has no place that predicts it."""
    (one, optimizer), (other, of_other) = (prepare(GPT, "cpu") for _ in range(2))
    pair = [ragged(GPT, (12,)), ragged(GPT, (2, 2, 2, 2, 2))]
    wanted = train.Step(one, optimizer)(pair)
    assert torch.equal(train.Step(Holder(other), of_other)(pair), wanted)
    assert labels_of(torch.compile(one), pair[1]) == labels_of(one, pair[1]) == 5


def test_a_loss_over_all_tokens_is_weighed_by_their_number() -> None:
    """ELECTRA's discriminator, whose labels have no -100."""
    name = "ElectraForPreTraining"
    (one, optimizer), (other, of_other) = (prepare(name, "cpu") for _ in range(2))
    pair = [ragged(name, (12, 1, 1)), ragged(name, (5, 4))]
    wanted = train.Step(other, of_other)(joined(pair))
    got = train.Step(one, optimizer)(pair)
    torch.testing.assert_close(got, wanted, rtol=TRAINED_VERSUS_EAGER, atol=0)


@ON_EACH
def test_steps_follow_what_was_changed_in_the_optimizers_state(device: str) -> None:
    model, _ = prepare(GPT, device)
    twin, _ = prepare(GPT, device)
    optimizer = train.Adam(model.parameters(), lr=1e-3, eps=1e-4)
    other = torch.optim.AdamW(twin.parameters(), lr=1e-3, eps=1e-4)
    step, batch = train.Step(model, optimizer), batches(GPT, 1)[0]
    for number in range(9):
        if number in (4, 7):  # after steps were recorded
            for one in (optimizer, other):
                one.state.clear()
        got, wanted = step(batch), by_hand(twin, other, batch, device)
        torch.testing.assert_close(got, wanted, rtol=TRAINED_VERSUS_EAGER, atol=0)
    assert (weights(model) - weights(twin)).abs().max() <= TRAINED_WEIGHT
    assert {int(state["step"]) for state in optimizer.state.values()} == {2}


def test_several_batches_with_two_kinds_of_labels_are_refused() -> None:
    step, batch = train.Step(*prepare("BertForPreTraining", "cpu")), ragged("BertForPreTraining")
    assert step(batch).isfinite()
    with pytest.raises(InvalidInput, match="next_sentence_label: got some beside labels"):
        step([batch, batch])


def test_a_step_of_parameters_that_were_exchanged_is_refused() -> None:
    model, optimizer = prepare(GPT, "cpu")
    step, batch = train.Step(model, optimizer), ragged(GPT)
    step(batch)
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="other parameters than when the Step was mad"):
            step(batch)
        with torch.no_grad():
            model(**batch)  # moves them into the buffer


def test_a_step_within_a_step_is_refused_and_the_next_goes_on() -> None:
    """As one of another thread is."""

    def loss(model: Any, batch: Any) -> torch.Tensor:
        return step(batch) if nested else model(**batch).loss

    nested = True
    step = train.Step(*prepare(GPT, "cpu"), loss=loss)
    with pytest.raises(ConfigurationError, match="got a call while another one runs"):
        step(ragged(GPT))
    nested = False
    assert step(ragged(GPT)).isfinite()
