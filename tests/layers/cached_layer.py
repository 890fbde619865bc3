"""A random decoder layer over a paged cache, and its reference by causal attention in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from fusewire import kernels as k

from tests.layers.layer import Layer
from tests.ops import paged

CACHED_SPECS: dict[str, dict[str, Any]] = {
    "gpt2": {"pre_norm": True, "activation": "gelu_tanh"},
    "opt_post_norm": {"activation": "relu"},
    "llama": {
        "pre_norm": True,
        "norm": "rms_norm",
        "gated": True,
        "activation": "silu",
        "rotary": True,
        "heads": 4,
        "kv_heads": 2,
    },
    "neox_parallel": {"pre_norm": True, "parallel": True, "rotary": True, "rotary_dim": 8},
    "qwen3_head_norms": {
        "pre_norm": True,
        "norm": "rms_norm",
        "gated": True,
        "activation": "silu",
        "rotary": True,
        "heads": 4,
        "kv_heads": 1,
        "head_dim": 24,
        "head_norms": True,
    },
    "gemma2_sandwich": {
        "pre_norm": True,
        "norm": "rms_norm",
        "gated": True,
        "activation": "gelu_tanh",
        "rotary": True,
        "heads": 4,
        "kv_heads": 2,
        "post_norms": True,
        "soft_cap": 5.0,
        "scale": 0.3,
        "window": 9,
    },
    "t5_decoder": {"pre_norm": True, "norm": "rms_norm", "activation": "relu", "biased": True},
    "parallel_sandwich": {"pre_norm": True, "parallel": True, "post_norms": True, "window": 7},
}
GPU_CACHED_SPECS: dict[str, dict[str, Any]] = {
    "gpt2_124m": {
        "pre_norm": True,
        "activation": "gelu_tanh",
        "hidden": 768,
        "heads": 12,
        "intermediate": 3072,
    },
    "llama_wide": {
        **CACHED_SPECS["llama"],
        "hidden": 1024,
        "heads": 8,
        "kv_heads": 2,
        "intermediate": 2816,
    },
}
PAGE_SIZE = 8

# The new tokens of each sequence in each step; together they are `Layer.lengths` (1, 17, 40).
STEPS = {
    "whole": [(1, 17, 40)],
    "token_by_token": [
        (1, 1, 1),
        *((0, 1, 1),) * 16,
        *((0, 0, 1),) * 23,
    ],
    "chunks_beside_decoding": [(1, 0, 13), (0, 5, 1), (0, 11, 20), (0, 1, 6)],
}


class CachedLayer(Layer):
    def mask(self) -> dict[str, int]:
        """Returns the causal mask: a token itself, and those before it."""
        return ({"left": self.o["window"] - 1} if self.o.get("window") else {}) | {"right": 0}

    def context(self, qkv: torch.Tensor, there: Callable) -> torch.Tensor:
        shape = paged.prompts(
            *self.lengths,
            heads=self.o["heads"],
            kv_heads=self.kv_heads,
            dim=self.dim,
            soft_cap=self.o.get("soft_cap", 0.0),
            biased=bool(self.o.get("biased")),
            **self.mask(),
        )
        if "scale" in self.o:  # instead of the reference's own scale
            q = qkv[:, : self.width] * (self.o["scale"] * self.dim**0.5)
            qkv = torch.cat([q, qkv[:, self.width :]], -1)
        past = qkv[:0, self.width :]
        return paged.attend({"qkv": qkv, "past": past, "bias": there(self.bias)}, shape)

    def planes(self, pages: int, layers: int = 1) -> k.Tensor:
        """Returns a cache that was not written yet."""
        page = self.kv_heads * PAGE_SIZE * self.dim
        return self.place.floats(np.full((2 * layers, pages, page), np.nan, np.float32))

    def forward_cached(
        self, stack: k.Stack, x: np.ndarray, steps: list[tuple[int, ...]], layers: int = 1
    ) -> np.ndarray:
        """Returns the stack's output for all rows of x, computed step by step."""
        place, out = self.place, np.full_like(x, np.nan)
        counts = [-(-n // PAGE_SIZE) for n in self.lengths]
        pages = sum(counts) + 2
        order = np.random.default_rng(2).permutation(pages).astype(np.int32)
        planes = self.planes(pages, layers)
        workspace = k.Workspace(k.default_allocator(place.device))
        first_row, first_page = (np.cumsum([0, *each]) for each in (self.lengths, counts))
        done = np.zeros(len(self.lengths), np.int32)
        for step in steps:
            live = [i for i, n in enumerate(step) if n]
            table = np.full((len(live), max(counts)), -1, np.int32)
            for row, i in enumerate(live):
                table[row, : counts[i]] = order[first_page[i] : first_page[i + 1]]
            rows = np.concatenate(
                [first_row[i] + done[i] + np.arange(step[i], dtype=np.int32) for i in live]
            )
            done[live] += np.array([step[i] for i in live], np.int32)
            batch = k.PagedBatch(
                place.sequences(np.cumsum([0, *(step[i] for i in live)])),
                k.Tensor.from_numpy(done[live]),
                k.Tensor.from_numpy(table),
                PAGE_SIZE,
                place.stream,
            )
            new = place.floats(x[rows])
            positions = place.exact(self.positions[rows], np.int32)
            stack.forward_cached(new, batch, planes, workspace, positions, place.stream)
            out[rows] = place.numpy(new)
        return out
