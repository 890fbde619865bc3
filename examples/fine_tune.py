"""Trains a small BERT to tell praise from complaint: Hugging Face's Trainer on fusewire's kernels.

    pip install 'fusewire[train]' matplotlib
    python examples/fine_tune.py FOLDER [--steps STEPS] [--compare]
    torchrun --nproc-per-node 2 examples/fine_tune.py FOLDER   # or by two processes
    fusewire serve reviews=FOLDER

The texts are generated here; the last sentence decides the label. The model, its tokenizer and the
loss curve, loss.png, are written to FOLDER. --compare trains the same model on transformers' own
layers as well, from the same weights on the same batches, and prints how long both took. With
several processes, each has its share of every batch and of Adam's moments.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
from pathlib import Path

import fusewire
import torch
import transformers as hf
from fusewire.train import Adam, replace
from matplotlib.figure import Figure
from tokenizers import BertWordPieceTokenizer
from torch import distributed

THINGS = ["film", "meal", "hotel", "book", "concert", "lecture", "journey", "garden"]
COMPLAINT = ["awful", "dull", "cold", "noisy", "slow", "sad", "broken", "wrong"]
PRAISE = ["superb", "bright", "warm", "calm", "quick", "joyful", "clever", "right"]
WORDS = {"complaint": COMPLAINT, "praise": PRAISE}
HELD_OUT = 200  # texts that are not trained on
ROWS = 32  # rows of a batch


def review(last: str) -> str:
    (first,) = WORDS.keys() - {last}
    thing, one, two = (random.choice(words) for words in (THINGS, WORDS[first], WORDS[last]))
    shapes = f"the {thing} looked {one} but was {two}", f"first {one}, in the end {two}"
    return random.choice((*shapes, f"I was told the {thing} was {one}; we found it {two}"))


def train_tokenizer(texts: list[str]) -> hf.PreTrainedTokenizerFast:
    words = BertWordPieceTokenizer()
    words.train_from_iterator(texts, vocab_size=300, show_progress=False)
    return hf.BertTokenizerFast(tokenizer_object=words._tokenizer, model_max_length=32)


def untrained(vocab_size: int) -> hf.BertForSequenceClassification:
    """Returns a model with the same initial weights each time."""
    hf.set_seed(0)
    config = hf.BertConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=256,
        num_attention_heads=4,
        num_hidden_layers=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        id2label=dict(enumerate(WORDS)),
        label2id={name: number for number, name in enumerate(WORDS)},
    )
    return hf.BertForSequenceClassification(config)


def trainer_of(
    model: hf.PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    rows: list[dict],
    tokenizer: hf.PreTrainedTokenizerFast,
    arguments: hf.TrainingArguments,
) -> hf.Trainer:
    pad = hf.DataCollatorWithPadding(tokenizer)  # padded here, packed by the model
    return hf.Trainer(model, arguments, pad, rows[HELD_OUT:], optimizers=(optimizer, None))


def main(folder: str, steps: int, compare: bool) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)  # fails before training rather than after it
    random.seed(0)
    texts = [(review(label), number) for _ in range(1000) for number, label in enumerate(WORDS)]
    arguments = hf.TrainingArguments(
        folder,
        max_steps=steps,
        max_grad_norm=0,  # our Adam clips
        average_tokens_across_devices=False,  # this head returns means
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
    )
    with arguments.main_process_first():  # the other processes read what it writes
        if arguments.process_index == 0:
            train_tokenizer([text for text, _ in texts]).save_pretrained(folder)
    tokenizer = hf.BertTokenizerFast.from_pretrained(folder)
    rows = [{**tokenizer(text), "labels": number} for text, number in texts]

    arguments.per_device_train_batch_size = ROWS // arguments.world_size
    group = distributed.group.WORLD if arguments.world_size > 1 else None
    model = replace(untrained(len(tokenizer)), segments=2 if group else 1)
    optimizer = Adam(model.parameters(), lr=1e-3, max_grad_norm=1.0, process_group=group)
    trainer = trainer_of(model, optimizer, rows, tokenizer, arguments)
    runs = {"fusewire": trainer.train()}
    if compare:
        eager = untrained(len(tokenizer))
        adamw = torch.optim.AdamW(eager.parameters(), lr=1e-3)
        clipping = dataclasses.replace(arguments, max_grad_norm=1.0)
        runs["transformers"] = trainer_of(eager, adamw, rows, tokenizer, clipping).train()

    answers = trainer.predict(rows[:HELD_OUT])  # computed by all processes
    if group:
        distributed.destroy_process_group()  # its threads might abort an interpreter that ends
    if not trainer.is_world_process_zero():
        return
    for name, run in runs.items():
        seconds = run.metrics["train_runtime"]
        print(f"{name:12}  {seconds:.1f} s  mean loss {run.training_loss:.6f}")
    accuracy = (answers.predictions.argmax(1) == answers.label_ids).mean()
    print(f"accuracy {accuracy:.3f} on {HELD_OUT} held out texts")
    model.save_pretrained(folder)
    losses = {row["step"]: row["loss"] for row in trainer.state.log_history if "loss" in row}
    (figure := Figure()).subplots(subplot_kw={"xlabel": "step", "ylabel": "loss"}).plot(
        losses.keys(), losses.values()
    )
    figure.savefig(f"{folder}/loss.png")

    new = ["the garden looked sad but was joyful", "first clever, in the end awful"]
    for text, best in zip(new, fusewire.Classifier(folder)(new), strict=True):
        print(f"{best['label']:10} {best['score']:.3f}  {text}")
    print(f"To serve it: fusewire serve reviews={folder}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="where the model goes")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--compare", action="store_true", help="train without fusewire as well")
    main(**vars(parser.parse_args()))
