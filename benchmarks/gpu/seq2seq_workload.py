"""The workload of translation with beam search: encoder-decoders by their published shapes, and the
minimum that a step of their decoders has to read and to compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BYTES = 2  # of an element in fp16 or bf16


@dataclass(frozen=True)
class Shape:
    """An encoder-decoder whose encoder has as many layers as its decoder."""

    name: str
    family: str  # marian, bart or t5
    hidden: int
    layers: int
    heads: int
    intermediate: int
    vocabulary: int

    @property
    def config(self) -> dict[str, Any]:
        """Returns the configuration with transformers' names, for texts that never end by
        themselves."""
        ends: dict[str, Any] = {"eos_token_id": 2, "pad_token_id": 1, "decoder_start_token_id": 1}
        if self.family == "t5":
            return ends | {
                "vocab_size": self.vocabulary,
                "d_model": self.hidden,
                "d_kv": self.hidden // self.heads,
                "d_ff": self.intermediate,
                "num_layers": self.layers,
                "num_decoder_layers": self.layers,
                "num_heads": self.heads,
            }
        sides = {
            f"{side}_{what}": value
            for side in ("encoder", "decoder")
            for what, value in (
                ("layers", self.layers),
                ("ffn_dim", self.intermediate),
                ("attention_heads", self.heads),
            )
        }
        more = {"scale_embedding": True} if self.family == "marian" else {}
        return {
            **ends,
            **sides,
            **more,
            "vocab_size": self.vocabulary,
            "d_model": self.hidden,
            "max_position_embeddings": 1024,
            "forced_eos_token_id": None,
            "activation_function": "swish" if self.family == "marian" else "gelu",
        }

    @property
    def dtype(self) -> str:
        """The dtype on a GPU: T5's hidden states overflow float16."""
        return "bfloat16" if self.family == "t5" else "float16"

    @property
    def step_weights(self) -> int:
        """The number of weights in the matrices that every step reads: for each layer four of self
        attention, two of cross attention and two of the feed-forward; and the head."""
        of_layer = 6 * self.hidden**2 + 2 * self.hidden * self.intermediate
        return self.layers * of_layer + self.vocabulary * self.hidden

    @property
    def kv_bytes_per_token(self) -> int:
        """The bytes of keys and values of a target's token, and of a source's."""
        return 2 * self.layers * self.hidden * BYTES

    def step_bytes(self, case: Case) -> int:
        """Returns the bytes of a step: the weights once, the keys and values of each beam and, once
        for all its beams, of each source, and the logits, written and read once."""
        stored = case.rows * case.new // 2 + case.batch * case.source
        logits = 2 * case.rows * self.vocabulary * BYTES
        return BYTES * self.step_weights + stored * self.kv_bytes_per_token + logits

    def step_flops(self, case: Case) -> int:
        attention = 4 * self.layers * self.hidden * (case.new // 2 + case.source)
        return case.rows * (2 * self.step_weights + attention)


SHAPES = {
    "base": Shape("Transformer-base", "marian", 512, 6, 8, 2048, 32768),
    "big": Shape("Transformer-big", "marian", 1024, 6, 16, 4096, 32768),
    "bart-base": Shape("BART-base", "bart", 768, 6, 12, 3072, 50265),
    "bart-large": Shape("BART-large", "bart", 1024, 12, 16, 4096, 50265),
    "t5-base": Shape("T5-base", "t5", 768, 12, 12, 3072, 32128),
    "t5-large": Shape("T5-large", "t5", 1024, 24, 16, 4096, 32128),
}


@dataclass(frozen=True)
class Case:
    """`batch` sources of one length, each translated to `new` tokens with `beams` beams."""

    model: str
    batch: int
    beams: int
    source: int
    new: int

    @property
    def name(self) -> str:
        return f"{self.batch} x {self.source} -> {self.new}, {self.beams} beams"

    @property
    def rows(self) -> int:
        """The rows of a step."""
        return self.batch * self.beams

    def floor_ms(self, shape: Shape, facts: dict[str, Any]) -> float:
        """Returns the minimum time of a step in the middle of the text: the longer of moving its
        bytes and of computing its matrix products."""
        moving = shape.step_bytes(self) / facts["copy_tb_s"] * 1e-9
        return max(moving, shape.step_flops(self) / facts["matmul_tflops"] * 1e-9)


LENGTHS = (32, 64)
BATCHES = (1, 8, 32, 64, 128)
CASES = [
    *(Case(m, batch, 4, n, n) for m in ("base", "big") for n in LENGTHS for batch in BATCHES),
    # LightSeq's grid.
    *(Case("bart-base", batch, beams, 32, 32) for beams in (1, 4, 32) for batch in (1, 8, 32)),
    # Summaries of articles.
    *(Case("bart-large", batch, 4, 512, 64) for batch in (1, 8, 32)),
    *(Case(m, batch, 4, 64, 32) for m in ("t5-base", "t5-large") for batch in (1, 32, 128)),
]


def cases(
    models: list[str], batches: list[int], lengths: list[int], beams: list[int]
) -> list[Case]:
    """Returns the selected cases; an empty list selects all."""
    return [
        case
        for case in CASES
        if (not models or case.model in models)
        and (not batches or case.batch in batches)
        and (not lengths or case.new in lengths)
        and (not beams or case.beams in beams)
    ]
