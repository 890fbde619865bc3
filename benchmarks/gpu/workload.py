"""The workload of encoders: two sizes of BERT, and three grids of batches.

GRID is ByteTransformer's (arXiv 2210.03052): lengths uniform in 0.2 S..S. LightSeq's and EET's own
benchmarks (LIGHTSEQ, EET) have sequences of full length only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from fusewire.batch import Batch, Sequence

VOCABULARY = 30522
MOST_POSITIONS = 1024  # more than BERT's 512, for the longest case


@dataclass(frozen=True)
class Size:
    """A BERT, by its published shape."""

    name: str
    hidden: int
    layers: int
    heads: int

    @property
    def intermediate(self) -> int:
        return 4 * self.hidden

    def flops(self, lengths: list[int]) -> int:
        """Returns the FLOPs of the layers' matrix products over real tokens."""
        products = 2 * sum(lengths) * (4 * self.hidden**2 + 2 * self.hidden * self.intermediate)
        return self.layers * (products + sum(4 * n * n * self.hidden for n in lengths))


SIZES = {
    "base": Size("BERT-base", 768, 12, 12),
    "large": Size("BERT-large", 1024, 24, 16),
}


@dataclass(frozen=True)
class Case:
    """`sequences` of up to `length` tokens: all of full length, or uniform in 0.2 S..S."""

    size: str
    sequences: int
    length: int
    full: bool = False

    @property
    def name(self) -> str:
        return f"{self.sequences}x{self.length}" + (" full" if self.full else "")

    def lengths(self) -> list[int]:
        if self.full or self.sequences == 1:
            return [self.length] * self.sequences
        least = int(0.2 * self.length)
        found = np.random.default_rng(0).integers(least, self.length + 1, self.sequences)
        return [int(n) for n in found]

    def batch(self, seed: int) -> Batch:
        """Returns random ids; the lengths are always the same."""
        rng = np.random.default_rng(seed)
        return Batch.pack(
            [
                Sequence(rng.integers(0, VOCABULARY, n), np.zeros(n, np.int32))
                for n in self.lengths()
            ]
        )


_SHAPES = ((1, 32), (1, 128), (1, 512), (16, 64), (16, 128), (16, 256), (16, 512), (16, 1024))
GRID = [Case(size, b, s) for size in SIZES for b, s in (*_SHAPES, (64, 512))]
LIGHTSEQ = [Case("base", b, s, full=b > 1) for b in (1, 8, 32) for s in (8, 32, 128)]
EET = [Case("base", b, s, full=True) for b in (4, 10) for s in (64, 128, 256, 512, 1024)]
GRIDS = {"grid": GRID, "lightseq": LIGHTSEQ, "eet": EET}

# The cases in which the packed rival is also compiled, unless all are selected; and transformers,
# which is far slower.
COMPILED = {
    ("base", "1x32"),
    ("base", "1x128"),
    ("base", "1x512"),
    ("base", "16x128"),
    ("base", "16x512"),
    ("base", "16x1024"),
    ("large", "1x128"),
    ("large", "16x512"),
}
COMPILED_PADDED = {("base", "1x128"), ("base", "16x128"), ("base", "16x512"), ("large", "16x512")}
