"""Trains a small BERT to tell praise from complaint: Hugging Face's Trainer on fusewire's kernels.

    python examples/fine_tune.py FOLDER [STEPS]
    fusewire serve reviews=FOLDER

The texts are made here: what is said last counts. Needs fusewire[train] and matplotlib.
"""

from __future__ import annotations

import random
import sys

import transformers as hf
from fusewire.train import Adam, replace
from matplotlib.figure import Figure
from tokenizers import BertWordPieceTokenizer

THINGS = ["film", "meal", "hotel", "book", "concert", "lecture", "journey", "garden"]
COMPLAINT = ["awful", "dull", "cold", "noisy", "slow", "sad", "broken", "wrong"]
PRAISE = ["superb", "bright", "warm", "calm", "quick", "joyful", "clever", "right"]
WORDS = {"complaint": COMPLAINT, "praise": PRAISE}


def review(last: str) -> str:
    (first,) = WORDS.keys() - {last}
    thing, one, two = (random.choice(words) for words in (THINGS, WORDS[first], WORDS[last]))
    shapes = f"the {thing} looked {one} but was {two}", f"first {one}, in the end {two}"
    return random.choice((*shapes, f"I was told the {thing} was {one}; we found it {two}"))


def main(folder: str, steps: str = "300") -> None:
    hf.set_seed(0)
    texts = [(review(label), number) for _ in range(1000) for number, label in enumerate(WORDS)]
    words = BertWordPieceTokenizer()
    words.train_from_iterator((text for text, _ in texts), vocab_size=300, show_progress=False)
    tokenizer = hf.BertTokenizerFast(tokenizer_object=words._tokenizer, model_max_length=32)
    rows = [{**tokenizer(text), "labels": number} for text, number in texts]
    sizes = {"hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 4}
    labels = {"id2label": dict(enumerate(WORDS)), "label2id": {n: i for i, n in enumerate(WORDS)}}
    config = hf.BertConfig(vocab_size=len(tokenizer), num_hidden_layers=2, **sizes, **labels)
    model = replace(hf.BertForSequenceClassification(config))
    settings = {"use_cpu": True, "report_to": [], "save_strategy": "no", "logging_steps": 10}
    settings |= {"per_device_train_batch_size": 32}
    arguments = hf.TrainingArguments(folder, max_steps=int(steps), max_grad_norm=0, **settings)
    optimizers = Adam(model.parameters(), lr=1e-3, max_grad_norm=1.0), None
    pad = hf.DataCollatorWithPadding(tokenizer)
    trainer = hf.Trainer(model, arguments, pad, rows[200:], optimizers=optimizers)
    trainer.train()
    answers = trainer.predict(rows[:200])
    print(f"accuracy {(answers.predictions.argmax(1) == answers.label_ids).mean():.3f}")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    losses = {row["step"]: row["loss"] for row in trainer.state.log_history if "loss" in row}
    (figure := Figure()).subplots().plot(losses.keys(), losses.values())
    figure.savefig(f"{folder}/loss.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
