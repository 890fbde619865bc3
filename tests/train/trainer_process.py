"""One of the processes of a Trainer that saves, and of one that goes on from what the first saved:
FOLDER DEVICE. The weights of both, in the end, go to FOLDER/RANK.pt."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from fusewire.train import Adam, replace
from torch import distributed

from tests.train.processes import meet, part
from tests.train.tiny_hosted import examples, model_of

KIND, SAVED, STEPS = "encoder-decoder", 2, 4


class Consolidate(transformers.TrainerCallback):
    """As in docs/training.md."""

    def on_step_end(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, **others: Any
    ) -> None:
        if control.should_save:
            optimizer.optimizer.consolidate_state_dict()

    on_epoch_end = on_step_end


def train(folder: Path, device: str, begun: Path | None = None) -> list[torch.Tensor]:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        save_steps=SAVED,
        per_device_train_batch_size=4,
        max_grad_norm=0,
        report_to=[],
        use_cpu=device == "cpu",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    model = replace(model_of(KIND, dropout=0.1).to(device), segments=2)
    group = distributed.group.WORLD
    optimizer = Adam(model.parameters(), lr=1e-3, max_grad_norm=0.5, process_group=group)
    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=examples(64, KIND),
        optimizers=(optimizer, None),
        callbacks=[Consolidate()],
    )
    trainer.train(resume_from_checkpoint=None if begun is None else str(begun))
    assert trainer.model_wrapped is not model  # DistributedDataParallel is around it
    return [p.detach().clone() for p in model.parameters()]


def main(folder: Path, device: str) -> None:
    rank, _, _ = meet(device)
    whole = train(folder, device)
    resumed = train(folder, device, folder / f"checkpoint-{SAVED}")
    torch.save({"whole": whole, "resumed": resumed}, folder / f"{rank}.pt")
    part()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
