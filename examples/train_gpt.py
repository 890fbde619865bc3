"""Trains a small GPT on the prose of Python's own reference: a plain PyTorch loop.

    pip install 'fusewire[train]' matplotlib
    python examples/train_gpt.py FOLDER [--steps STEPS]
    fusewire serve writer=FOLDER

Nothing is downloaded: the text comes with Python. Paragraphs of any length are packed into batches
of at most 2048 tokens, so nothing is padded. The model learns the style of that reference, but no
facts. The model, its tokenizer and the loss curve, loss.png, are written to FOLDER.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import fusewire
import torch
import transformers as hf
from fusewire.train import Adam, PackingCollator, TokenBudgetSampler, replace
from matplotlib.figure import Figure
from rich.progress import Progress
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.utils.data import DataLoader

END = "<|endoftext|>"
LONGEST = 256  # maximum tokens of a paragraph
HELD_OUT = 100  # paragraphs that are not trained on


def paragraphs() -> list[str]:
    """Returns the paragraphs of the reference that are sentences, each once."""
    found: dict[str, None] = {}
    for topic in topics.values():
        for paragraph in re.split(r"\n\s*\n", topic):
            line = " ".join(paragraph.split())
            if len(line) > 60 and re.fullmatch(r"[A-Z].*[a-z)]\.", line):
                found[line] = None
    return list(found)


def train_tokenizer(texts: list[str]) -> hf.PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2048, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, bos_token=END)


def batches(examples: list[dict[str, list[int]]]) -> Iterator[dict[str, torch.Tensor]]:
    """Yields packed rows of at most 2048 tokens, over all examples in a new order each time."""
    lengths = [len(example["input_ids"]) for example in examples]
    sampler = TokenBudgetSampler(lengths, max_tokens=2048)
    loader = DataLoader(examples, batch_sampler=sampler, collate_fn=PackingCollator(causal=True))
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        yield from loader


def main(folder: str, steps: int) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)  # fails before training rather than after it
    hf.set_seed(0)
    texts = paragraphs()
    tokenizer = train_tokenizer(texts)
    rows = [{"input_ids": tokenizer(text + END)["input_ids"][:LONGEST]} for text in texts]
    order = torch.randperm(len(rows)).tolist()
    held_out = PackingCollator(causal=True)([rows[i] for i in order[:HELD_OUT]])
    examples = [rows[i] for i in order[HELD_OUT:]]

    config = hf.MistralConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        sliding_window=None,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = replace(hf.MistralForCausalLM(config))
    optimizer = Adam(model.parameters(), lr=3e-3, max_grad_norm=1.0)
    schedule = hf.get_cosine_schedule_with_warmup(optimizer, steps // 10, steps)

    losses = []
    model.train()
    with Progress() as progress:
        bar = progress.add_task("training", total=steps)
        for batch in itertools.islice(batches(examples), steps):
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            losses.append(loss.item())
            progress.update(bar, advance=1, description=f"training, loss {losses[-1]:.2f}")

    model.eval()
    with torch.no_grad():
        print(f"held out loss {model(**held_out).loss:.3f}")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (figure := Figure()).subplots(subplot_kw={"xlabel": "step", "ylabel": "loss"}).plot(losses)
    figure.savefig(f"{folder}/loss.png")

    with fusewire.LLM(folder) as llm:
        for output in llm.generate(["A function", "The value of"], max_new_tokens=40):
            print(f"{output.prompt}{output.outputs[0].text}")
    print(f"To serve it: fusewire serve writer={folder}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="where the model goes")
    parser.add_argument("--steps", type=int, default=300)
    main(**vars(parser.parse_args()))
