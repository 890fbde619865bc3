"""Lightning trains replaced models as transformers' own, with closures and clipping of its own."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fusewire.train import Adam, replace

from tests.tolerance import TRAINED_VERSUS_EAGER
from tests.train.tiny_hosted import KINDS, batch, examples, model_of

lightning = pytest.importorskip("pytorch_lightning", reason="it comes with fusewire[test]")
# Of its own: about workers that load data, and what it means to change.
pytestmark = pytest.mark.filterwarnings("ignore:::pytorch_lightning", "ignore:::lightning_fabric")

STEPS, ACCUMULATED = 6, 2


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    yield
    logging.getLogger("pytorch_lightning").setLevel(logging.NOTSET)


class Module(lightning.LightningModule):
    def __init__(self, kind: str, *, replaced: bool) -> None:
        super().__init__()
        self.model = replace(model_of(kind)) if replaced else model_of(kind)
        self.model.train()
        self.optimizer = Adam if replaced else torch.optim.AdamW
        self.losses: list[float] = []

    def training_step(self, inputs: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        loss: torch.Tensor = self.model(**inputs).loss
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.optimizer(self.parameters(), lr=1e-3)


def train(module: Module, kind: str, steps: int, begun: Path | None = None) -> Any:
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        accumulate_grad_batches=ACCUMULATED,
        gradient_clip_val=0.05,  # below the norms of all steps
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = torch.utils.data.DataLoader(examples(64, kind), batch_size=4, collate_fn=batch)
    trainer.fit(module, loader, ckpt_path=begun, weights_only=True)
    return trainer


@pytest.mark.parametrize("kind", KINDS)
def test_lightning_learns_and_resumes_as_with_transformers_own_layers(
    kind: str, tmp_path: Path
) -> None:
    found = []
    for replaced in (True, False):
        module, resumed = (Module(kind, replaced=replaced) for _ in range(2))
        file = tmp_path / f"{replaced}.ckpt"
        train(module, kind, STEPS).save_checkpoint(file)
        train(resumed, kind, 2 * STEPS, file)
        found.append([module.losses, resumed.losses])
    assert len(found[0][0]) == len(found[0][1]) == STEPS * ACCUMULATED
    for ours, theirs in zip(*found, strict=True):
        assert ours == pytest.approx(theirs, rel=TRAINED_VERSUS_EAGER)
