"""Systems that run training steps, each in its own process: the same seeded weights, the same
batches, padded to their longest text; a step is forward, loss, backward, clipping to a norm of 1
and AdamW."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

from benchmarks import machine
from benchmarks.worker import Handler

SYSTEMS = ("fusewire", "transformers", "transformers, compiled")
LEARNING_RATE = 5e-5
# Their models and configurations in transformers.
KINDS = {
    "bert": ("BertForSequenceClassification", "BertConfig"),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config"),
    "marian": ("MarianMTModel", "MarianConfig"),
    "vit": ("ViTForImageClassification", "ViTConfig"),
}
# Models whose batches have one shape.
EVEN = ("gpt2", "vit")
_TRANSFORMER = {
    "kind": "marian",
    "activation_function": "relu",
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
    "eos_token_id": 2,
    "forced_eos_token_id": None,
}
_BIG = {
    **_TRANSFORMER,
    "vocab_size": 40480,
    "d_model": 1024,
    "encoder_attention_heads": 16,
    "decoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "decoder_ffn_dim": 4096,
}
SHAPES: dict[str, dict[str, Any]] = {
    "BERT-base": {"kind": "bert"},
    "GPT, 4 layers of 256": {"kind": "gpt2", "n_layer": 4, "n_embd": 256, "n_head": 8},
    "GPT-2 124M": {"kind": "gpt2", "length": 1024},
    "GPT-2, tiny": {
        "kind": "gpt2",
        "length": 16,
        "n_layer": 2,
        "n_embd": 32,
        "n_head": 2,
        "vocab_size": 99,
    },
    "GPT-2 large": {"kind": "gpt2", "length": 1024, "n_layer": 36, "n_embd": 1280, "n_head": 20},
    "BERT-large": {
        "kind": "bert",
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
    "Transformer-big, 6 + 6 layers": {**_BIG, "encoder_layers": 6, "decoder_layers": 6},
    "Transformer-big, 24 + 24 layers": {**_BIG, "encoder_layers": 24, "decoder_layers": 24},
    "ViT-B/32": {"kind": "vit", "patch_size": 32, "num_labels": 1000},
    "ViT, tiny": {
        "kind": "vit",
        "image_size": 32,
        "patch_size": 16,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 48,
    },
    "Transformer, tiny": {
        **_TRANSFORMER,
        "vocab_size": 99,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
    },
    "BERT, tiny": {
        "kind": "bert",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "vocab_size": 99,
    },
}


class Asked(NamedTuple):
    """`dropout`: whether it is as configured, or off. Without `runs`, the answer is the losses of a
    step with each batch from the initial weights, otherwise the seconds of this many steps."""

    batches: list[dict[str, np.ndarray]]
    dropout: bool
    runs: int


def stepping(system: str, shape: str, threads: int) -> Handler:
    import torch

    torch.set_num_threads(threads)
    model = make(shape)
    parameters = {name: value.clone() for name, value in model.state_dict().items()}
    if system == "fusewire":
        from fusewire import kernels
        from fusewire.train import Adam, replace

        kernels.set_num_threads(threads)
        model = replace(model)
        optimizer: Any = Adam(model.parameters(), lr=LEARNING_RATE, max_grad_norm=1.0)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    first = optimizer.state_dict()
    many = SHAPES[shape]["kind"] not in EVEN
    call = torch.compile(model, dynamic=many or None) if system.endswith("compiled") else model
    machine.settle()

    def step(batch: dict[str, Any]) -> float:
        loss = call(**batch).loss
        loss.backward()
        if system != "fusewire":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    def answer(asked: Asked) -> Any:
        batches = [{k: torch.from_numpy(v) for k, v in each.items()} for each in asked.batches]
        model.train(asked.dropout)
        if not asked.runs:
            model.load_state_dict(parameters)
            optimizer.load_state_dict(first)
            return [step(batch) for batch in batches]
        began = time.process_time()
        step(batches[0])
        seconds, worked = [], []
        for run in range(asked.runs):
            begin, cpu = time.perf_counter(), time.process_time()
            step(batches[run % len(batches)])
            seconds.append(time.perf_counter() - begin)
            worked.append(time.process_time() - cpu)
        return seconds, worked, time.process_time() - began

    return answer


def make(shape: str) -> Any:
    """Returns a transformers model of seeded weights, with its configuration's dropout (0.1)."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    sizes = dict(SHAPES[shape])
    sizes.pop("length", None)
    model, config = (getattr(transformers, name) for name in KINDS[sizes.pop("kind")])
    return model(config(use_cache=False, **sizes))


def counted(shape: str) -> str:
    """Returns the unit that a batch's size is given in: a translator's is in tokens."""
    return {"marian": "target tokens", "vit": "images"}.get(SHAPES[shape]["kind"], "texts")


def token_mask(batch: Any) -> Any:
    """Returns the mask [rows, length] of a batch in numpy or torch: which positions are tokens;
    those of the targets, where there are some. An image counts as one."""
    if "pixel_values" in batch:
        return batch["labels"][:, None] >= 0
    if "attention_mask" in batch and batch["labels"].ndim == 2:
        return batch["labels"] != -100
    return batch.get("attention_mask", batch["input_ids"] >= 0) > 0


def batch_of(shape: str, texts: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns a padded batch. Lengths are as in GLUE: at least 8 tokens, mean 45, rarely more than
    128; a GPT gets rows of `length` tokens (128), all of them labels. A translator gets targets
    with this many tokens together, with a mean of 28 over batches and similar lengths in each, as
    its samplers group them, and sources about as long."""
    sizes = SHAPES[shape]
    if sizes["kind"] == "vit":
        size = sizes.get("image_size", 224)
        pixels = rng.standard_normal((texts, 3, size, size), np.float32)
        labels = rng.integers(0, sizes.get("num_labels", 2), texts)
        return {"pixel_values": pixels, "labels": labels}
    if sizes["kind"] == "marian":
        return _pairs(sizes["vocab_size"], texts, rng)
    if sizes["kind"] == "gpt2":
        ids = rng.integers(0, sizes.get("vocab_size", 50257), (texts, sizes.get("length", 128)))
        return {"input_ids": ids, "labels": ids}
    lengths = np.clip(rng.gamma(2.0, 18.5, texts) + 8, 8, 128).astype(int)
    ids = rng.integers(5, sizes.get("vocab_size", 30522), (texts, lengths.max()))
    mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": rng.integers(0, 2, texts)}


def _pairs(vocabulary: int, tokens: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    longest = min(8 + rng.gamma(3.0, 8.0), 100.0)
    ends = np.cumsum(np.ceil(longest * rng.uniform(0.75, 1.0, tokens)).astype(int))
    rows = int(np.searchsorted(ends, tokens)) + 1
    targets = np.diff(np.minimum(ends[:rows], tokens), prepend=0)
    sources = np.ceil(targets * rng.uniform(0.8, 1.25, rows)).astype(int)

    def padded(lengths: np.ndarray, filled: int) -> tuple[np.ndarray, np.ndarray]:
        mask = np.arange(lengths.max()) < lengths[:, None]
        return np.where(mask, rng.integers(5, vocabulary, mask.shape), filled), mask

    ids, mask = padded(sources, 0)
    labels, _ = padded(targets, -100)
    return {"input_ids": ids, "attention_mask": mask.astype(np.int64), "labels": labels}
