"""The workload of generation: decoders by their published shapes, and the minimum that a step of
each has to read and a prompt to compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BYTES = 2  # of an element in fp16


@dataclass(frozen=True)
class Shape:
    """A decoder: Llama's layers, or GPT-2's where `model_type` is gpt2."""

    name: str
    model_type: str  # llama or gpt2
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    positions: int

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def config(self) -> dict[str, Any]:
        """Returns the configuration with transformers' names."""
        if self.model_type == "gpt2":
            return {
                "n_embd": self.hidden,
                "n_layer": self.layers,
                "n_head": self.heads,
                "n_inner": self.intermediate,
                "vocab_size": self.vocabulary,
                "n_positions": self.positions,
            }
        return {
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.intermediate,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.positions,
            "tie_word_embeddings": False,
        }

    @property
    def matrices(self) -> int:
        """Returns the number of weights in a layer's matrices."""
        width, kv_width = self.hidden, self.kv_heads * self.head_dim
        inner = self.intermediate * (2 if self.model_type == "gpt2" else 3)
        return width * (2 * width + 2 * kv_width) + width * inner

    @property
    def step_weights(self) -> int:
        """Returns the number of weights that every step reads: all but the embeddings, of which it
        reads a few rows."""
        if self.model_type == "gpt2":
            vectors = 3 * self.hidden + self.hidden + self.intermediate + self.hidden
            norms = 4 * self.hidden
            final = 2 * self.hidden
        else:
            vectors, norms, final = 0, 2 * self.hidden, self.hidden
        of_layers = self.layers * (self.matrices + vectors + norms)
        return of_layers + final + self.vocabulary * self.hidden

    @property
    def kv_numbers_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim

    def step_bytes(self, batch: int, context: int, kv_bytes: int = BYTES) -> int:
        """Returns the bytes of a step: the weights once, and the keys and values of `context`
        tokens of each sequence, with `kv_bytes` per element."""
        kv = batch * context * self.kv_numbers_per_token * kv_bytes
        return self.step_weights * BYTES + kv

    def prompt_flops(self, lengths: list[int]) -> int:
        """Returns the FLOPs of the matrix products over real tokens: a token attends to itself and
        those before it, and only the last token of each prompt has logits."""
        pairs = sum(n * (n + 1) // 2 for n in lengths)
        attention = 4 * self.heads * self.head_dim * pairs
        layers = self.layers * (2 * self.matrices * sum(lengths) + attention)
        return layers + 2 * len(lengths) * self.vocabulary * self.hidden


def gpt(name: str, hidden: int, layers: int, heads: int, positions: int = 1024) -> Shape:
    return Shape(name, "gpt2", hidden, layers, heads, heads, 4 * hidden, 50257, positions)


SHAPES = {
    "llama-8b": Shape("Llama-3-8B", "llama", 4096, 32, 32, 8, 14336, 128256, 32768),
    "qwen-0.5b": Shape("Qwen2.5-0.5B's shape", "llama", 896, 24, 14, 2, 4864, 151936, 32768),
    "qwen-1.5b": Shape("Qwen2.5-1.5B's shape", "llama", 1536, 28, 12, 2, 8960, 151936, 32768),
    "gpt2": gpt("GPT-2 124M", 768, 12, 12),
    "gpt-1.3b": gpt("GPT 1.3B", 2048, 24, 16),
    "eet-1024": gpt("EET-GPT 1024", 1024, 24, 16),
    "eet-2048": gpt("EET-GPT 2048", 2048, 24, 32),
}


@dataclass(frozen=True)
class Case:
    """A step of `batch` sequences, each `context` tokens long including the new one."""

    model: str
    batch: int
    context: int

    @property
    def shape(self) -> Shape:
        return SHAPES[self.model]

    @property
    def name(self) -> str:
        return f"{self.batch} x {self.context}"

    @property
    def kv_bytes(self) -> int:
        return self.batch * self.context * self.shape.kv_numbers_per_token * BYTES


STEPS = [
    *(Case("llama-8b", batch, 1024) for batch in (1, 16, 64)),
    *(Case("llama-8b", batch, 192) for batch in (64, 256)),
    *(Case("gpt2", batch, 512) for batch in (1, 32)),
    Case("gpt2", 64, 192),
    *(Case("gpt-1.3b", batch, 768) for batch in (4, 16)),
]
PROMPTS = [Case("llama-8b", 4, 1024)]
CONTEXTS = [
    Case("llama-8b", batch, context)
    for batch in (1, 16)
    for context in (1024, 2048, 4096, 8192, 16384, 32768)
]
# EET's own benchmark: 1024 tokens at the end, of which these many were the prompt.
EET_TOTAL = 1024
EET_PROMPTS = tuple(range(128, 897, 128))
EET = [Case(model, batch, EET_TOTAL) for model in ("eet-1024", "eet-2048") for batch in (4, 16)]
PARTS = {"step": STEPS, "prompt": PROMPTS, "eet": EET, "context": CONTEXTS}


def cases(part: str, models: list[str], batches: list[int]) -> list[Case]:
    """Returns the selected cases of a part; an empty list selects all."""
    return [
        case
        for case in PARTS[part]
        if (not models or case.model in models) and (not batches or case.batch in batches)
    ]
