"""A random layer: in the library's form, and written out in torch in any precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from fusewire import kernels as k
from fusewire.placement import Placement

from tests.ops.activations import ACTIVATIONS
from tests.ops.attention import Attention, attend, window
from tests.ops.rotary import rotate
from tests.places import TORCH_DTYPES, rounded
from tests.tolerance import Allowed, allowed_error

SPECS: dict[str, dict[str, Any]] = {
    "post_norm": {},
    "post_norm_odd": {"hidden": 60, "heads": 3, "intermediate": 77, "activation": "relu"},
    "wide_heads": {"head_dim": 40, "activation": "gelu_tanh"},
    "position_bias": {"biased": True},
    "pre_norm": {"pre_norm": True},
    "pre_norm_rotary_gated_window": {
        "pre_norm": True,
        "gated": True,
        "rotary": True,
        "window": 5,
        "first_norm": False,
    },
    "grouped_heads_soft_cap": {"heads": 4, "kv_heads": 2, "soft_cap": 3.0},
    "rms_norm_silu_gated": {
        "pre_norm": True,
        "gated": True,
        "norm": "rms_norm",
        "activation": "silu",
    },
}
# Specifications that only a GPU computes fast enough: layers of published models, and all their
# head sizes.
GPU_SPECS: dict[str, dict[str, Any]] = {
    "bert_base": {"hidden": 768, "heads": 12, "intermediate": 3072},
    "modernbert_base": {
        "hidden": 768,
        "heads": 12,
        "intermediate": 1152,
        "pre_norm": True,
        "gated": True,
        "rotary": True,
        "window": 64,
    },
    "head_dim_32": {"hidden": 384, "heads": 12, "intermediate": 1536},
    "head_dim_80": {"hidden": 320, "heads": 4, "intermediate": 640, "biased": True},
    "head_dim_96": {"hidden": 288, "heads": 3, "intermediate": 576},
    "head_dim_128": {"hidden": 512, "heads": 4, "intermediate": 1024, "window": 32},
}
DEFAULTS = {"hidden": 64, "heads": 2, "intermediate": 128, "activation": "gelu_erf"}
LENGTHS = (1, 17, 40)
GPU_LENGTHS = (1, 17, 300, 128, 77)


class Layer:
    """Random weights for one specification, in the library's form and in torch's."""

    def __init__(
        self,
        options: dict[str, Any],
        place: Placement | None = None,
        lengths: tuple[int, ...] = LENGTHS,
    ) -> None:
        o = {**DEFAULTS, **options}
        self.o = o
        self.place = place or Placement()
        self.lengths = lengths
        self.dim = o.get("head_dim") or o["hidden"] // o["heads"]
        self.width = self.dim * o["heads"]
        self.kv_heads = o.get("kv_heads") or o["heads"]
        self.rotary_dim = o.get("rotary_dim") or self.dim
        rng = np.random.default_rng(3)

        def matrix(out: int, into: int) -> tuple[np.ndarray, np.ndarray]:
            weight = rng.standard_normal((out, into), dtype=np.float32) / np.float32(into**0.5)
            bias = rng.standard_normal(out, dtype=np.float32) * np.float32(0.1)
            return rounded(weight, self.place.dtype), rounded(bias, self.place.dtype)

        hidden, inner = o["hidden"], o["intermediate"]
        self.linears = {
            "qkv": matrix(self.width + 2 * self.kv_heads * self.dim, hidden),
            "attention_output": matrix(hidden, self.width),
            "intermediate": matrix(inner * (2 if o.get("gated") else 1), hidden),
            "output": matrix(hidden, inner),
        }
        sizes = {"attention_norm": hidden, "output_norm": hidden}
        if o.get("post_norms"):
            sizes |= {"attention_post_norm": hidden, "output_post_norm": hidden}
        if o.get("head_norms"):
            sizes |= {"q_norm": self.dim, "k_norm": self.dim}
        self.norms = {
            name: rounded(matrix(size, 1)[1] * 5 + 1, self.place.dtype)
            for name, size in sizes.items()
        }
        if not o.get("first_norm", True):
            del self.norms["attention_norm"]
        span = max(lengths)
        self.bias = rng.standard_normal((o["heads"], 2 * span - 1), dtype=np.float32)
        angles = np.outer(np.arange(span), 10.0 ** -np.arange(self.rotary_dim // 2))
        self.cos, self.sin = np.cos(angles, dtype=np.float32), np.sin(angles, dtype=np.float32)
        self.positions = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])

    def built(self) -> k.Stack:
        """Returns a stack of this one layer."""
        return k.Stack([k.Layer(self.blocks(), parallel=self.o.get("parallel", False))])

    def blocks(self) -> list[k.Block]:
        o, place = self.o, self.place

        def linear(name: str) -> k.Linear:
            return place.linear(*self.linears[name])

        def norm(name: str, kind: str = "rms_norm") -> k.Norm | None:
            weight = self.norms.get(name)
            return None if weight is None else k.Norm(place.floats(weight), None, 1e-6, kind)

        attention = k.Attention(
            qkv=linear("qkv"),
            output=linear("attention_output"),
            heads=o["heads"],
            kv_heads=self.kv_heads,
            **self.mask(),
            scale=o.get("scale", 0.0),
            soft_cap=o.get("soft_cap", 0.0),
            q_norm=norm("q_norm"),
            k_norm=norm("k_norm"),
            rope=(place.exact(self.cos, np.float32), place.exact(self.sin, np.float32))
            if o.get("rotary")
            else None,
            position_bias=place.exact(self.bias, np.float32) if o.get("biased") else None,
        )
        feed_forward = k.FeedForward(
            intermediate=linear("intermediate"),
            output=linear("output"),
            activation=o["activation"],
            gated=o.get("gated", False),
        )
        where = "input_norm" if o.get("pre_norm") else "residual_norm"
        kind = o.get("norm", "layer_norm")
        return [
            k.Block(
                sublayer,
                output_norm=norm(f"{name}_post_norm"),
                **{where: norm(f"{name}_norm", kind)},
            )
            for name, sublayer in (("attention", attention), ("output", feed_forward))
        ]

    def input(self, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((sum(self.lengths), self.o["hidden"]), dtype=np.float32)
        return rounded(x, self.place.dtype)

    def reference(self, x: np.ndarray, dtype: torch.dtype) -> np.ndarray:
        """Returns the layer's output in torch, computed in `dtype` on the place's device."""

        def there(array: np.ndarray) -> torch.Tensor:
            tensor = torch.from_numpy(array).to(self.place.device)
            return tensor.to(dtype) if tensor.is_floating_point() else tensor

        return self.in_torch(there(x), there).double().cpu().numpy()

    def in_torch(self, x: torch.Tensor, there: Callable) -> torch.Tensor:
        """Returns the layer's output; `there` converts an array of inputs or weights to a
        tensor."""

        def norm(h: torch.Tensor, name: str) -> torch.Tensor:
            if name not in self.norms:
                return h
            weight = there(self.norms[name])
            if self.o.get("norm") == "rms_norm" or name not in ("attention_norm", "output_norm"):
                return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * weight
            return torch.nn.functional.layer_norm(h, h.shape[1:], weight, None, 1e-6)

        def head_norm(h: torch.Tensor, name: str) -> torch.Tensor:
            return norm(h.reshape(len(h), -1, self.dim), name).reshape(h.shape)

        def linear(h: torch.Tensor, name: str) -> torch.Tensor:
            weight, bias = (there(a) for a in self.linears[name])
            return torch.nn.functional.linear(h, weight, bias)

        def attention(h: torch.Tensor) -> torch.Tensor:
            qkv = linear(norm(h, "attention_norm") if pre_norm else h, "qkv")
            kv_width = self.kv_heads * self.dim
            q, key, value = qkv.split([self.width, kv_width, kv_width], -1)
            q, key = head_norm(q, "q_norm"), head_norm(key, "k_norm")
            qkv = torch.cat([q, key, value], -1)
            if self.o.get("rotary"):
                tables = {
                    "qkv": qkv,
                    "positions": there(self.positions),
                    "cos": there(self.cos),
                    "sin": there(self.sin),
                }
                heads = self.o["heads"]
                shape = (len(h), heads, self.kv_heads, self.dim, self.rotary_dim)
                qkv = rotate(tables, shape)
            return norm(linear(self.context(qkv, there), "attention_output"), "attention_post_norm")

        def feed_forward(h: torch.Tensor) -> torch.Tensor:
            h = linear(norm(h, "output_norm") if pre_norm else h, "intermediate")
            activation = ACTIVATIONS[self.o["activation"]]
            if self.o.get("gated"):
                a, b = h.chunk(2, -1)
                h = activation(a) * b
            else:
                h = activation(h)
            return norm(linear(h, "output"), "output_post_norm")

        h, pre_norm = x, self.o.get("pre_norm")
        if self.o.get("parallel"):
            h = h + attention(h) + feed_forward(h)
        elif pre_norm:
            h = self.between(h + attention(h), there)
            h = h + feed_forward(h)
        else:
            h = self.between(norm(h + attention(h), "attention_norm"), there)
            h = norm(h + feed_forward(h), "output_norm")
        return h

    def between(self, h: torch.Tensor, there: Callable) -> torch.Tensor:
        """Returns the input of the feed-forward from the output of attention's block. Subclasses
        may insert a block between them."""
        return h

    def allowed_error(self, x: np.ndarray) -> Allowed:
        truth = self.reference(x, torch.float64)
        same = self.reference(x, TORCH_DTYPES[self.place.dtype])
        terms = max(self.o["intermediate"], *self.lengths)
        return allowed_error(truth, same, self.place.dtype, terms)

    def mask(self) -> dict[str, int]:
        """Returns the mask: a token sees both sides."""
        return window(self.o["window"]) if self.o.get("window") else {}

    def context(self, qkv: torch.Tensor, there: Callable) -> torch.Tensor:
        """Returns attention's output for rows of q | k | v, in torch."""
        biased = bool(self.o.get("biased"))
        shape = Attention(
            self.lengths,
            self.o["heads"],
            self.dim,
            kv_heads=self.kv_heads,
            soft_cap=self.o.get("soft_cap", 0.0),
            biased=biased,
            **self.mask(),
        )
        q, kv = qkv[:, : self.width], qkv[:, self.width :]
        return attend({"q": q, "kv": kv, "bias": there(self.bias)}, shape)

    def forward(
        self,
        stack: k.Stack,
        x: k.Tensor,
        workspace: k.Workspace,
        batch: k.SequenceBatch | None = None,
    ) -> None:
        offsets = np.cumsum([0, *self.lengths]).astype(np.int32)
        place = self.place
        positions = np.zeros(x.shape[0], np.int32)  # a bucket's padding may have any positions
        positions[: self.positions.size] = self.positions
        stack.forward(
            x,
            batch or place.sequences(offsets),
            workspace,
            place.exact(positions, np.int32),
            place.stream,
        )
