"""Trains a tiny translator in a minute or two with numpy alone, and saves it as a folder like those
of OPUS-MT: a Marian model with SentencePiece files and several target languages.

It writes numbers up to 999,999 and dates in English and German: `>>deu<< 347` becomes
"dreihundertsiebenundvierzig". `make demo` runs it; alone it needs `pip install safetensors` beside
fusewire:

    python client/examples/tiny_translator.py FOLDER
"""

from __future__ import annotations

import os

# Set before numpy is imported: the shards run in parallel.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import json
import random
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import muon
import numpy as np
from muon import Floats, Step, Weights, linear_layers, softmax
from numbers_and_dates import LANGUAGES, a_source, translated
from numpy.typing import NDArray
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

HIDDEN, INNER, LAYERS, HEADS, LONGEST = 96, 256, 2, 4, 64
HEAD_DIM, EPS = HIDDEN // HEADS, 1e-5
STEPS, BATCH, SHARDS = 1800, 64, 2
EMBEDDING = "model.shared.weight"
END, UNKNOWN, PAD = 0, 1, 2

Ids = NDArray[np.int64]
Pieces = list[tuple[str, float]]  # pieces with their log-probabilities


def sinusoids() -> Floats:
    """Returns Marian's sinusoidal position embeddings: sines in the first half, cosines in the
    second."""
    angles = np.arange(LONGEST)[:, None] / 10000 ** (2 * np.arange(HIDDEN // 2) / HIDDEN)
    return np.concatenate([np.sin(angles), np.cos(angles)], -1).astype("f4")


POSITIONS = sinusoids()
FUTURE = np.triu(np.full((LONGEST, LONGEST), -np.inf, np.float32), 1)


def train_pieces(rng: random.Random) -> Pieces:
    """Returns subword pieces. Each digit is a piece of its own, because the model learns the place
    value of digits."""
    words = [translated(a_source(rng), language) for _ in range(3000) for language in LANGUAGES]
    letters = [
        " ".join(w for w in text.split() if not any(c.isdigit() for c in w)) for text in words
    ]
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=160, show_progress=False, max_piece_length=10)
    tokenizer.train_from_iterator(letters, trainer)
    learnt = json.loads(tokenizer.to_str())["model"]["vocab"]
    known = {piece: score for piece, score in learnt if piece != "<unk>"}
    for piece in ["▁", *"0123456789-."]:
        known.setdefault(piece, -8.0)
    return sorted(known.items(), key=lambda each: -each[1])


def vocabulary_of(pieces: Pieces) -> dict[str, int]:
    marks = [f">>{language}<<" for language in LANGUAGES]
    names = ["</s>", "<unk>", "<pad>", *(piece for piece, _ in pieces), *marks]
    return {name: index for index, name in enumerate(names)}


def reader(pieces: Pieces) -> Callable[[str], list[int]]:
    """Returns a function that encodes a text to ids, without an end token."""
    known = [("</s>", 0.0), ("<unk>", 0.0), ("<pad>", 0.0), *pieces]
    tokenizer = Tokenizer(models.Unigram(known, unk_id=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return lambda text: tokenizer.encode(text).ids


def initial(rng: np.random.Generator, size: int) -> Weights:
    """Returns the initial matrices. Biases keep 0 and norms 1: the matrices that follow them can
    compensate."""
    shapes = {EMBEDDING: (size, HIDDEN)}
    for stack, attentions in (
        ("encoder", ["self_attn"]),
        ("decoder", ["self_attn", "encoder_attn"]),
    ):
        for layer in range(LAYERS):
            at = f"model.{stack}.layers.{layer}"
            for each in attentions:
                names = (f"{at}.{each}.{name}_proj.weight" for name in ("q", "k", "v", "out"))
                shapes |= dict.fromkeys(names, (HIDDEN, HIDDEN))
            shapes[f"{at}.fc1.weight"] = (INNER, HIDDEN)
            shapes[f"{at}.fc2.weight"] = (HIDDEN, INNER)
    return {
        name: rng.normal(0, shape[1] ** -0.5, shape).astype("f4") for name, shape in shapes.items()
    }


def layer_norm(x: Floats) -> Step:
    centred = x - x.mean(-1, keepdims=True)
    inverse = 1 / np.sqrt((centred * centred).mean(-1, keepdims=True) + np.float32(EPS))
    y = centred * inverse

    def back(dy: Floats) -> Floats:
        return (dy - dy.mean(-1, keepdims=True) - y * (dy * y).mean(-1, keepdims=True)) * inverse

    return y, back


def gradients(weights: Weights, pairs: tuple[Ids, Ids]) -> tuple[float, Weights]:
    """Returns the mean loss over the target tokens, and its gradients. Sources and targets are
    padded."""
    sources, targets = pairs
    batch = len(sources)
    inputs = np.concatenate([np.full((batch, 1), PAD), targets[:, :-1]], 1)
    nowhere = np.where(sources == PAD, np.float32(-np.inf), np.float32(0))[:, None, None, :]
    grads: Weights = {}
    linear = linear_layers(weights, grads)

    def heads(x: Floats) -> Floats:
        return x.reshape(batch, -1, HEADS, HEAD_DIM).transpose(0, 2, 1, 3)

    def joined(x: Floats) -> Floats:
        return x.transpose(0, 2, 1, 3).reshape(-1, HIDDEN)

    def attention(
        x: Floats, keys: Floats, at: str, bias: Floats
    ) -> tuple[Floats, Callable[[Floats], tuple[Floats, Floats]]]:
        """Returns the output and a backward pass that returns the gradients of `x` and of
        `keys`."""
        q, q_back = linear(x, f"{at}.q_proj.weight")
        (k, k_back), (v, v_back) = (linear(keys, f"{at}.{name}_proj.weight") for name in "kv")
        scale = np.float32(HEAD_DIM**-0.5)
        q, k, v = heads(q) * scale, heads(k), heads(v)
        p = softmax(q @ k.swapaxes(-1, -2) + bias)
        y, y_back = linear(joined(p @ v), f"{at}.out_proj.weight")

        def back(dy: Floats) -> tuple[Floats, Floats]:
            d = heads(y_back(dy))
            dp = d @ v.swapaxes(-1, -2)
            ds = p * (dp - (dp * p).sum(-1, keepdims=True))
            dk, dv = ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ d
            return q_back(joined(ds @ k * scale)), k_back(joined(dk)) + v_back(joined(dv))

        return y, back

    def feed_forward(x: Floats, at: str) -> Step:
        inner, inner_back = linear(x, f"{at}.fc1.weight")
        positive = inner > 0
        y, y_back = linear(inner * positive, f"{at}.fc2.weight")
        return y, lambda dy: inner_back(y_back(dy) * positive)

    def self_attention(at: str, bias: Floats) -> Callable[[Floats], Step]:
        def part(x: Floats) -> Step:
            y, back = attention(x, x, f"{at}.self_attn", bias)
            return y, lambda dy: sum(back(dy), start=np.float32(0))

        return part

    def cross_attention(at: str) -> Callable[[Floats], Step]:
        def part(x: Floats) -> Step:
            y, back = attention(x, encoded, f"{at}.encoder_attn", nowhere)

            def both(dy: Floats) -> Floats:
                dx, from_encoded = back(dy)
                d_encoded.append(from_encoded)
                return dx

            return y, both

        return part

    def embedded(ids: Ids) -> Floats:
        scaled = weights[EMBEDDING][ids] * np.float32(HIDDEN**0.5)
        return (scaled + POSITIONS[: ids.shape[1]]).reshape(-1, HIDDEN)

    def stack(x: Floats, parts: list[Callable[[Floats], Step]]) -> Step:
        """Applies each part with a residual connection, followed by a norm."""
        passed = []
        for part in parts:
            y, back = part(x)
            x, norm_back = layer_norm(x + y)
            passed.append((norm_back, back))

        def through(dx: Floats) -> Floats:
            for norm_back, back in reversed(passed):
                d = norm_back(dx)
                dx = d + back(d)
            return dx

        return x, through

    def layers(name: str, bias: Floats) -> list[Callable[[Floats], Step]]:
        parts: list[Callable[[Floats], Step]] = []
        for layer in range(LAYERS):
            at = f"model.{name}.layers.{layer}"
            parts.append(self_attention(at, bias))
            if name == "decoder":
                parts.append(cross_attention(at))
            parts.append(lambda x, at=at: feed_forward(x, at))  # type: ignore[misc]
        return parts

    d_encoded: list[Floats] = []
    length = inputs.shape[1]
    encoded, encoder_back = stack(embedded(sources), layers("encoder", nowhere))
    x, decoder_back = stack(embedded(inputs), layers("decoder", FUTURE[:length, :length]))
    logits, head_back = linear(x, EMBEDDING)
    p = softmax(logits)
    wanted = targets.reshape(-1)
    rows = np.flatnonzero(wanted != PAD)
    loss = -float(np.log(p[rows, wanted[rows]]).mean())
    p[rows, wanted[rows]] -= 1
    p[wanted == PAD] = 0
    d_inputs = decoder_back(head_back(p / np.float32(rows.size)))
    d_sources = encoder_back(sum(d_encoded, start=np.float32(0)))
    for ids, d in ((inputs, d_inputs), (sources, d_sources)):
        np.add.at(grads[EMBEDDING], ids.reshape(-1), d * np.float32(HIDDEN**0.5))
    return loss, grads


def padded(rows: list[list[int]]) -> Ids:
    longest = max(map(len, rows))
    return np.array([row + [PAD] * (longest - len(row)) for row in rows])


def train(pieces: Pieces, on_loss: Callable[[float], None]) -> Weights:
    """Returns the trained weights. `on_loss` is called with the loss of every step."""
    rng = random.Random(0)
    vocabulary, read = vocabulary_of(pieces), reader(pieces)

    def pair() -> tuple[list[int], list[int]]:
        source, language = a_source(rng), rng.choice(LANGUAGES)
        ids = [vocabulary[f">>{language}<<"], *read(source), END]
        return ids, [*read(translated(source, language)), END]

    def shards() -> list[tuple[Ids, Ids]]:
        pairs = [[pair() for _ in range(BATCH // SHARDS)] for _ in range(SHARDS)]
        return [(padded([s for s, _ in each]), padded([t for _, t in each])) for each in pairs]

    weights = initial(np.random.default_rng(0), len(vocabulary))
    muon.train(weights, EMBEDDING, STEPS, shards, gradients, on_loss)
    return weights


def sentencepiece(pieces: Pieces) -> bytes:
    """Returns a unigram model in SentencePiece's own format (its sentencepiece_model.proto)."""

    def field(number: int, value: bytes) -> bytes:
        assert len(value) < 128  # so that its length fits one byte
        return bytes([number << 3 | 2, len(value)]) + value

    def piece(text: str, score: float, kind: int) -> bytes:
        score_and_kind = b"\x15" + struct.pack("<f", score) + bytes([0x18, kind])
        return field(1, field(1, text.encode()) + score_and_kind)

    normal, unknown, control = 1, 2, 3
    special = [("<unk>", unknown), ("<s>", control), ("</s>", control)]
    written = [piece(text, 0.0, kind) for text, kind in special]
    written += [piece(text, score, normal) for text, score in pieces]
    trainer = field(2, bytes([0x18, 1]))  # model_type: unigram
    normalizer = field(3, field(1, b"identity"))
    return b"".join([*written, trainer, normalizer])


def save(folder: Path, weights: Weights, pieces: Pieces) -> None:
    """Writes a Hugging Face folder. The weights are written last: where they exist, the folder is
    complete."""
    vocabulary = vocabulary_of(pieces)
    config = {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "vocab_size": len(vocabulary),
        "d_model": HIDDEN,
        "encoder_layers": LAYERS,
        "decoder_layers": LAYERS,
        "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS,
        "encoder_ffn_dim": INNER,
        "decoder_ffn_dim": INNER,
        "activation_function": "relu",
        "max_position_embeddings": LONGEST,
        "scale_embedding": True,
        "pad_token_id": PAD,
        "eos_token_id": END,
        "forced_eos_token_id": END,
        "decoder_start_token_id": PAD,
    }
    generation = {"num_beams": 4, "max_length": LONGEST, "bad_words_ids": [[PAD]]}
    generation |= {name: config[name] for name in config if name.endswith("_token_id")}
    tokenizer = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": False}
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(sentencepiece(pieces))
    for name, content in (
        ("vocab.json", vocabulary),
        ("config.json", config),
        ("generation_config.json", generation),
        ("tokenizer_config.json", tokenizer),
    ):
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False))
    tensors = dict(weights)
    for name, weight in weights.items():
        if name == EMBEDDING:
            tensors["final_logits_bias"] = np.zeros((1, len(weight)), "f4")
            continue
        tensors[name.replace(".weight", ".bias")] = np.zeros(len(weight), "f4")
        at, _, last = name.removesuffix(".weight").rpartition(".")
        if last in ("out_proj", "fc2"):
            norm = f"{at}_layer_norm" if last == "out_proj" else f"{at}.final_layer_norm"
            tensors[f"{norm}.weight"] = np.ones(HIDDEN, "f4")
            tensors[f"{norm}.bias"] = np.zeros(HIDDEN, "f4")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: tiny_translator.py FOLDER, which is where the model goes")
    pieces = train_pieces(random.Random(1))
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        bar = progress.add_task("training", total=STEPS)

        def on_loss(loss: float) -> None:
            words = f"training a tiny translator of numbers and dates, loss {loss:.3f}"
            progress.update(bar, advance=1, description=words)

        weights = train(pieces, on_loss)
    save(Path(sys.argv[1]), weights, pieces)


if __name__ == "__main__":
    main()
