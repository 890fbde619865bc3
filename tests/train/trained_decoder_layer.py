"""A random layer with cross attention between attention and feed-forward, that trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from fusewire import kernels as k
from fusewire.kernels import training as t

from tests.ops.attention import Attention, attend
from tests.train.trained_layer import Floats, TrainedLayer

SOURCE_LENGTHS = (23, 1, 9)  # shorter and longer than the targets
SPECS: dict[str, dict[str, Any]] = {
    "post_norm": {},
    "pre_norm": {"pre_norm": True},
    "odd": {"hidden": 60, "heads": 3, "intermediate": 77, "activation": "relu"},
    "wide_heads": {"head_dim": 40},
    "rms_norm_gated": {"pre_norm": True, "gated": True, "norm": "rms_norm"},
}


def _random(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


class TrainedDecoderLayer(TrainedLayer):
    """Its source is a random matrix [source tokens, hidden], the same for all layers."""

    def __init__(
        self,
        options: dict[str, Any],
        source_lengths: tuple[int, ...] = SOURCE_LENGTHS,
        **more: Any,
    ) -> None:
        self.source_lengths = source_lengths
        super().__init__(options, **more)
        self.source = _random(9, sum(source_lengths), self.o["hidden"])

    def _sublayers(self) -> list[tuple[str, t.Sublayer]]:
        hidden = self.o["hidden"]
        for seed, (name, rows, cols) in enumerate(
            (
                ("q", self.width, hidden),
                ("kv", 2 * self.width, hidden),
                ("cross_output", hidden, self.width),
            )
        ):
            weight = _random(seed, rows, cols) / np.float32(cols**0.5)
            self.linears.setdefault(name, (weight, _random(seed, rows) * np.float32(0.1)))
        self.norms.setdefault("cross_norm", 1 + _random(8, hidden) / 2)
        attention, feed_forward = super()._sublayers()
        crossing = t.CrossAttention(
            q=self._linear("q"),
            kv=self._linear("kv"),
            output=self._linear("cross_output"),
            heads=self.o["heads"],
            dropout=self.dropouts.get("attention", 0.0),
        )
        return [attention, ("cross", crossing), feed_forward]

    def between(self, h: torch.Tensor, there: Callable) -> torch.Tensor:
        def linear(x: torch.Tensor, name: str) -> torch.Tensor:
            return torch.nn.functional.linear(x, *(there(array) for array in self.linears[name]))

        def norm(x: torch.Tensor) -> torch.Tensor:
            weight = there(self.norms["cross_norm"])
            if self.o.get("norm") == "rms_norm":
                return torch.nn.functional.rms_norm(x, x.shape[1:], weight, 1e-6)
            return torch.nn.functional.layer_norm(x, x.shape[1:], weight, None, 1e-6)

        pre_norm = self.o.get("pre_norm")
        tensors = {
            "q": linear(norm(h) if pre_norm else h, "q"),
            "kv": linear(there(self.source), "kv"),
            "bias": there(self.bias),
        }
        shape = Attention(self.lengths, self.o["heads"], self.dim, key_lengths=self.source_lengths)
        h = h + linear(attend(tensors, shape), "cross_output")
        return h if pre_norm else norm(h)

    def source_batch(self) -> k.SequenceBatch:
        offsets = np.cumsum([0, *self.source_lengths]).astype(np.int32)
        return k.SequenceBatch(k.Tensor.from_numpy(offsets))

    def forward_pass(
        self, x: Floats, values: Floats | None = None, **options: Any
    ) -> tuple[Floats, t.Activations | None]:
        source = (k.Tensor.from_numpy(self.source), self.source_batch())
        return super().forward_pass(x, values, **{"source": source, **options})

    def all_gradients(
        self, x: Floats, gradient: Floats, dsource: Floats | None = None, **options: Any
    ) -> tuple[Floats, Floats, Floats]:
        """Gradients of x, of all parameters and of the source, which is added to `dsource`."""
        _, activations = self.forward_pass(x, **options)
        assert activations is not None
        if dsource is None:
            dsource = np.zeros_like(self.source)
        dx, gradients = self.backward_pass(
            activations,
            gradient,
            source_gradient=k.Tensor.from_numpy(dsource),
            version=options.get("version", 0),
        )
        return dx, gradients, dsource
