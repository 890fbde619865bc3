"""What trains Hugging Face's models trains replaced ones, unchanged."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import accelerate
import fusewire
import pytest
import torch
import transformers
from fusewire.errors import Unsupported
from fusewire.train import Adam, PackingCollator, replace
from fusewire.train.segment import Segment
from torch.nn.utils import clip_grad_norm_
from transformers import DataCollatorWithFlattening

from tests.tolerance import MODEL_FP32, TRAINED_VERSUS_EAGER
from tests.train.processes import EACH_DEVICE, run
from tests.train.test_replace import gradients
from tests.train.tiny_hosted import KINDS, batch, classifier, examples, model_of

STEPS = 8
OF_EACH_KIND = pytest.mark.parametrize("kind", KINDS)


def arguments(folder: Path, **settings: Any) -> transformers.TrainingArguments:
    return transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **{"save_strategy": "no", "weight_decay": 0.1, **settings},
    )


def with_its_own(folder: Path, model: Any, **settings: Any) -> transformers.Trainer:
    """A Trainer with the optimizer that it makes."""
    (kind,) = (kind for kind, name in KINDS.items() if name == type(model).__name__)
    given = {"args": arguments(folder, **settings), "train_dataset": examples(64, kind)}
    return transformers.Trainer(model=model, **given)


def trainer(folder: Path, model: Any, **settings: Any) -> transformers.Trainer:
    """With our optimizer, over groups as the Trainer makes them, for a replaced model."""
    made = with_its_own(folder, model, **settings)
    if any(hasattr(module, "fusewire") for module in model.modules()):
        groups = made.create_optimizer().param_groups
        kept = [{name: group[name] for name in ("params", "weight_decay")} for group in groups]
        made.optimizer = Adam(kept, lr=1e-3)
    return made


def losses(made: transformers.Trainer) -> list[float]:
    return [entry["loss"] for entry in made.state.log_history if "loss" in entry]


@OF_EACH_KIND
@pytest.mark.parametrize("accumulated", [1, 2])
def test_the_trainer_learns_as_with_transformers_own_layers(
    accumulated: int, kind: str, tmp_path: Path
) -> None:
    ours = trainer(tmp_path, replace(model_of(kind)), gradient_accumulation_steps=accumulated)
    theirs = trainer(tmp_path, model_of(kind), gradient_accumulation_steps=accumulated)
    for made in (ours, theirs):
        made.train()
    assert len(losses(ours)) == STEPS
    assert losses(ours) == pytest.approx(losses(theirs), rel=TRAINED_VERSUS_EAGER)
    assert ours.optimizer.optimizer.skipped_steps == 0


def test_the_trainer_may_keep_its_own_optimizer(tmp_path: Path) -> None:
    ours, theirs = (
        with_its_own(tmp_path, model) for model in (replace(classifier()), classifier())
    )
    for made in (ours, theirs):
        made.train()
    assert not isinstance(ours.optimizer.optimizer, Adam)
    assert losses(ours) == pytest.approx(losses(theirs), rel=TRAINED_VERSUS_EAGER)


@pytest.mark.parametrize("collator", [PackingCollator(), DataCollatorWithFlattening()])
@pytest.mark.parametrize("accumulated", [1, 2])
def test_the_trainer_packs_batches(accumulated: int, collator: Any, tmp_path: Path) -> None:
    texts = [
        {"input_ids": one["input_ids"][one["attention_mask"].bool()].tolist()}
        for one in examples(64, "decoder")
    ]
    found = []
    for model in (replace(model_of("decoder")), model_of("decoder")):
        model.config.use_cache = False  # with a cache transformers sees no packed sequences
        made = trainer(tmp_path, model, gradient_accumulation_steps=accumulated)
        made.data_collator, made.train_dataset = collator, texts
        made.train()
        found.append([*losses(made), made.evaluate(texts[:12])["eval_loss"]])
    assert found[0] == pytest.approx(found[1], rel=TRAINED_VERSUS_EAGER)


class OfHidden(transformers.Trainer):
    """With a loss of its own, over the hidden states of a base model."""

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
        found: torch.Tensor = (model(**inputs).pooler_output - 0.5).square().mean()
        return found


def test_a_base_model_gets_whole_batches(tmp_path: Path) -> None:
    """The Trainer leaves out what forward does not name."""
    ours, theirs = (
        OfHidden(model=model, args=arguments(tmp_path), train_dataset=examples(64))
        for model in (replace(classifier().bert), classifier().bert)
    )
    for made in (ours, theirs):
        made.train()
    assert losses(ours) == pytest.approx(losses(theirs), rel=TRAINED_VERSUS_EAGER)


@OF_EACH_KIND
def test_a_run_resumed_from_a_checkpoint_is_bit_equal(kind: str, tmp_path: Path) -> None:
    """With dropout: masks come from torch's generator, which checkpoints restore."""
    settings = {"save_strategy": "steps", "save_steps": STEPS // 2}
    whole = trainer(tmp_path, replace(model_of(kind, 0.1)), **settings)
    whole.train()
    resumed = trainer(tmp_path, replace(model_of(kind, 0.1)), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{STEPS // 2}"))
    assert losses(resumed) == losses(whole)
    assert all(map(torch.equal, resumed.model.parameters(), whole.model.parameters()))


@OF_EACH_KIND
def test_a_compiled_model_learns_as_it_does_uncompiled(kind: str, tmp_path: Path) -> None:
    """What is around the layers is compiled: the head, and the loss."""
    settings = {"torch_compile": True, "torch_compile_backend": "aot_eager"}
    compiled = trainer(tmp_path, replace(model_of(kind)), **settings)
    plain = trainer(tmp_path, replace(model_of(kind)))
    for made in (compiled, plain):
        made.train()
    assert losses(compiled) == pytest.approx(losses(plain), rel=TRAINED_VERSUS_EAGER)


@pytest.mark.skipif(
    "reason" not in signature(torch.compiler.disable).parameters, reason="torch before 2.7"
)
def test_a_whole_graph_of_a_model_is_refused_with_what_to_do() -> None:
    compiled = torch.compile(replace(classifier()), fullgraph=True, backend="eager")
    with pytest.raises(RuntimeError, match=r"reason: it runs kernels .*; leave out fullgraph=True"):
        compiled(**batch(examples(4)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bf16": True}, "got autocast, wanted fp32; .* bf16 and fp16 in .* a Trainer"),
        ({"neftune_noise_alpha": 5.0}, r"neftune_noise_alpha.*: got 5.0, wanted none"),
    ],
    ids=["bf16", "neftune"],
)
def test_what_a_trainer_asks_for_in_vain_is_refused(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    made = trainer(tmp_path, replace(classifier()), **settings)
    with pytest.raises(Unsupported, match=message):
        made.train()


def test_what_is_saved_is_what_was_trained(tmp_path: Path) -> None:
    made = trainer(tmp_path, replace(classifier()))
    made.train()
    made.save_model(str(tmp_path / "saved"))
    inputs = batch(examples(5))
    del inputs["labels"]
    model = made.model.eval()
    read = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "saved").eval()
    with torch.no_grad():
        trained, theirs = model(**inputs).logits, read(**inputs).logits
    served = fusewire.load(tmp_path / "saved")(**inputs).logits
    torch.testing.assert_close(theirs, trained, rtol=0, atol=MODEL_FP32)
    torch.testing.assert_close(served, trained, rtol=0, atol=MODEL_FP32)


def test_evaluation_has_logits(tmp_path: Path) -> None:
    answers = [
        trainer(tmp_path, model).predict(examples(6))
        for model in (replace(classifier()), classifier())
    ]
    assert answers[0].predictions == pytest.approx(answers[1].predictions, abs=MODEL_FP32)
    assert answers[0].metrics["test_loss"] == pytest.approx(
        answers[1].metrics["test_loss"], rel=TRAINED_VERSUS_EAGER
    )


@OF_EACH_KIND
def test_accelerate_trains_as_a_loop_of_ones_own(kind: str) -> None:
    every = examples(16, kind)

    def loop(host: accelerate.Accelerator | None) -> list[torch.Tensor]:
        model = replace(model_of(kind))
        optimizer = Adam(model.parameters(), lr=1e-3)
        loader = torch.utils.data.DataLoader(every, batch_size=4, collate_fn=batch)
        if host is not None:
            model, optimizer, loader = host.prepare(model, optimizer, loader)
        for number, inputs in enumerate(loader):
            if host is None:
                (model(**inputs).loss / 2).backward()
                if number % 2 == 1:
                    clip_grad_norm_(model.parameters(), 0.5)
                    optimizer.step()
                    optimizer.zero_grad()
                continue
            with host.accumulate(model):
                host.backward(model(**inputs).loss)
                if host.sync_gradients:
                    host.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
        return list(model.parameters())

    theirs = loop(accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2))
    assert all(map(torch.equal, theirs, loop(None)))


@OF_EACH_KIND
def test_accelerate_goes_on_from_its_checkpoint_bit_equal(kind: str, tmp_path: Path) -> None:
    host = accelerate.Accelerator(cpu=True)
    model = replace(model_of(kind, 0.1))
    loader = torch.utils.data.DataLoader(examples(16, kind), batch_size=4, collate_fn=batch)
    model, optimizer, loader = host.prepare(model, Adam(model.parameters(), lr=1e-3), loader)

    def epoch() -> list[torch.Tensor]:
        for inputs in loader:
            host.backward(model(**inputs).loss)
            optimizer.step()
            optimizer.zero_grad()
        return [p.detach().clone() for p in model.parameters()]

    epoch()
    host.save_state(str(tmp_path))
    wanted = epoch()
    host.load_state(str(tmp_path))
    assert all(map(torch.equal, epoch(), wanted))


@OF_EACH_KIND
def test_a_grad_scaler_changes_nothing_but_skipped_steps(kind: str) -> None:
    def loop(scaler: torch.amp.GradScaler) -> tuple[torch.nn.Module, Adam]:
        model = replace(model_of(kind))
        optimizer = Adam(model.parameters(), lr=1e-3, max_grad_norm=1.0)
        for number in range(4):
            loss = model(**batch(examples(4 * (number + 1), kind)[-4:])).loss
            overflow = float("inf") if scaler.is_enabled() and number == 1 else 1.0
            if number != 1 or scaler.is_enabled():
                scaler.scale(loss * overflow).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        return model, optimizer

    plain, _ = loop(torch.amp.GradScaler("cpu", enabled=False))
    # Powers of two scale without rounding.
    scaled, optimizer = loop(torch.amp.GradScaler("cpu", init_scale=2.0**10))
    assert optimizer.skipped_steps == 1
    assert all(map(torch.equal, scaled.parameters(), plain.parameters()))


# Later transformers have another name for it.
@pytest.mark.filterwarnings("ignore:.*activation_checkpointing_enable:FutureWarning")
def test_checkpointing_of_gradients_computes_layers_again_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    run = Segment.__call__

    def watched(self: Segment, *rest: Any, recompute: str, **settings: Any) -> torch.Tensor:
        asked.append(recompute)
        return run(self, *rest, recompute=recompute, **settings)

    monkeypatch.setattr(Segment, "__call__", watched)
    kept, computed = replace(classifier()), replace(classifier())
    computed.gradient_checkpointing_enable()
    of_each = [gradients(model.train(), batch(examples(8)))[1] for model in (kept, computed)]
    assert asked == ["none", "layer"]
    assert all(map(torch.equal, *(found.values() for found in of_each)))


@pytest.mark.parametrize("device", EACH_DEVICE)
def test_a_trainers_processes_go_on_from_a_checkpoint_bit_equal(
    device: str, tmp_path: Path
) -> None:
    """With the moments of Adam shared out: the Trainer saves and loads those of all."""
    seen = run("tests.train.trainer_process", 2, tmp_path, device, torchrun=True)
    for one in seen:
        assert all(map(torch.equal, one["resumed"], one["whole"]))
        assert all(map(torch.equal, one["whole"], seen[0]["whole"]))
