"""Trains a tiny GPT in about a minute with numpy alone, and saves it as a Hugging Face folder.

The text is the prose of Python's own reference (`pydoc_data.topics`), so nothing is downloaded. Two
layers of hidden size 128 learn the style of that reference, but no facts. The architecture is
Mistral's with a short sliding window, so texts may be longer than the training sequences. `make
demo` runs it; alone it needs `pip install safetensors` beside fusewire:

    python client/examples/tiny_gpt.py FOLDER
"""

from __future__ import annotations

import os

# Set before numpy is imported: the shards run in parallel.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics

import muon
import numpy as np
from muon import Floats, Step, Weights, linear_layers, softmax
from numpy.typing import NDArray
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY, HIDDEN, INNER, LAYERS, HEADS, WINDOW = 2048, 128, 384, 2, 4, 128
HEAD_DIM, EPS = HIDDEN // HEADS, 1e-5
STEPS, BATCH, SHARDS = 240, 16, 2
EMBEDDING = "model.embed_tokens.weight"
CONFIG = {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "sliding_window": WINDOW,
    "rms_norm_eps": EPS,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
}

angles = np.arange(WINDOW)[:, None] * 10000.0 ** (-np.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))
COS, SIN = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
FUTURE = np.triu(np.full((WINDOW, WINDOW), -np.inf, np.float32), 1)


def prose() -> str:
    """Returns the paragraphs of the reference that are sentences, each once."""
    found: dict[str, None] = {}
    for topic in topics.values():
        for paragraph in re.split(r"\n\s*\n", topic):
            line = " ".join(paragraph.split())
            if len(line) > 60 and re.fullmatch(r"[A-Z].*[a-z)]\.", line):
                found[line] = None
    return "\n\n".join(found)


def train_tokenizer(text: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def initial(rng: np.random.Generator) -> Weights:
    """Returns the initial matrices. Norms keep the weight 1: the matrix that follows each norm can
    scale its input."""
    shapes = {EMBEDDING: (VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        shapes |= {f"{at}.self_attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qkvo"}
        shapes |= {f"{at}.mlp.{name}_proj.weight": (INNER, HIDDEN) for name in ("gate", "up")}
        shapes[f"{at}.mlp.down_proj.weight"] = (HIDDEN, INNER)
    return {
        name: rng.normal(0, 0.02 if name == EMBEDDING else shape[1] ** -0.5, shape).astype("f4")
        for name, shape in shapes.items()
    }


def rms_norm(x: Floats) -> Step:
    inverse = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(EPS))
    y = x * inverse
    return y, lambda dy: (dy - y * (dy * y).mean(-1, keepdims=True)) * inverse


def rotate(x: Floats, sin: Floats) -> Floats:
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * COS - b * sin, b * COS + a * sin], -1)


def gradients(weights: Weights, ids: NDArray[np.int64]) -> tuple[float, Weights]:
    """Returns the mean loss of predicting each token of ids[:, 1:] from those before it, and its
    gradients."""
    inputs, wanted = ids[:, :-1], ids[:, 1:].reshape(-1)
    grads: Weights = {}
    linear = linear_layers(weights, grads)

    def heads(x: Floats) -> Floats:
        return x.reshape(len(ids), WINDOW, HEADS, HEAD_DIM).transpose(0, 2, 1, 3)

    def joined(x: Floats) -> Floats:
        return x.transpose(0, 2, 1, 3).reshape(-1, HIDDEN)

    def attention(x: Floats, at: str) -> Step:
        (q, q_back), (k, k_back), (v, v_back) = (
            linear(x, f"{at}.self_attn.{name}_proj.weight") for name in "qkv"
        )
        scale = np.float32(HEAD_DIM**-0.5)
        q, k, v = rotate(heads(q), SIN) * scale, rotate(heads(k), SIN), heads(v)
        p = softmax(q @ k.swapaxes(-1, -2) + FUTURE)
        y, y_back = linear(joined(p @ v), f"{at}.self_attn.o_proj.weight")

        def back(dy: Floats) -> Floats:
            d = heads(y_back(dy))
            dp = d @ v.swapaxes(-1, -2)
            ds = p * (dp - (dp * p).sum(-1, keepdims=True))
            dq, dk = rotate(ds @ k * scale, -SIN), rotate(ds.swapaxes(-1, -2) @ q, -SIN)
            return q_back(joined(dq)) + k_back(joined(dk)) + v_back(joined(p.swapaxes(-1, -2) @ d))

        return y, back

    def feed_forward(x: Floats, at: str) -> Step:
        gate, gate_back = linear(x, f"{at}.mlp.gate_proj.weight")
        up, up_back = linear(x, f"{at}.mlp.up_proj.weight")
        sigmoid = 1 / (1 + np.exp(-gate))
        silu = gate * sigmoid
        y, y_back = linear(silu * up, f"{at}.mlp.down_proj.weight")

        def back(dy: Floats) -> Floats:
            d = y_back(dy)
            return gate_back(d * up * (sigmoid + silu * (1 - sigmoid))) + up_back(d * silu)

        return y, back

    x = weights[EMBEDDING][inputs.reshape(-1)]
    passed = []
    for layer in range(LAYERS):
        for part in (attention, feed_forward):
            normed, norm_back = rms_norm(x)
            y, back = part(normed, f"model.layers.{layer}")
            x = x + y
            passed.append((norm_back, back))
    normed, norm_back = rms_norm(x)
    logits, head_back = linear(normed, EMBEDDING)
    p = softmax(logits)
    rows = np.arange(wanted.size)
    loss = -float(np.log(p[rows, wanted]).mean())
    p[rows, wanted] -= 1
    dx = norm_back(head_back(p / np.float32(wanted.size)))
    for norm_back, back in reversed(passed):
        dx = dx + norm_back(back(dx))
    np.add.at(grads[EMBEDDING], inputs.reshape(-1), dx)
    return loss, grads


def train(ids: NDArray[np.int64], on_loss: Callable[[float], None]) -> Weights:
    """Returns the trained weights. `on_loss` is called with the loss of every step."""
    rng = np.random.default_rng(0)

    def shards() -> list[NDArray[np.int64]]:
        begins = rng.integers(0, ids.size - WINDOW, BATCH)
        return np.split(ids[begins[:, None] + np.arange(WINDOW + 1)], SHARDS)

    weights = initial(rng)
    muon.train(weights, EMBEDDING, STEPS, shards, gradients, on_loss)
    return weights


def save(folder: Path, weights: Weights, tokenizer: Tokenizer) -> None:
    """Writes a Hugging Face folder. The weights are written last: where they exist, the folder is
    complete."""
    ones = np.ones(HIDDEN, np.float32)
    norms = [f"layers.{layer}.{name}" for layer in range(LAYERS) for name in _NORMS]
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))
    tensors = weights | {f"model.{name}.weight": ones for name in [*norms, "norm"]}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


_NORMS = ("input_layernorm", "post_attention_layernorm")


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: tiny_gpt.py FOLDER, which is where the model goes")
    text = prose()
    tokenizer = train_tokenizer(text)
    ids = np.array(tokenizer.encode(text).ids)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        bar = progress.add_task("training", total=STEPS)

        def on_loss(loss: float) -> None:
            words = f"training a tiny GPT on {len(text) // 1000} kB of Python's reference"
            progress.update(bar, advance=1, description=f"{words}, loss {loss:.2f}")

        weights = train(ids, on_loss)
    save(Path(sys.argv[1]), weights, tokenizer)


if __name__ == "__main__":
    main()
