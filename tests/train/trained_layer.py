"""A random layer (tests/layers/layer.py) that trains: its weights in a flat buffer, its gradients
as the library and as torch compute them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from fusewire import kernels as k
from fusewire.kernels import training as t
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.layers.layer import SPECS, Layer
from tests.tolerance import TRAINED_GRADIENT

TRAINED_SPECS: dict[str, dict[str, Any]] = {
    **SPECS,
    "transposed_weights": {"pre_norm": True, "transposed": True},
    "head_norms_rotary": {
        "pre_norm": True,
        "heads": 4,
        "kv_heads": 2,
        "rotary": True,
        "head_norms": True,
        "norm": "rms_norm",
        "gated": True,
        "activation": "silu",
    },
    "sandwich_one_plus": {
        "pre_norm": True,
        "heads": 4,
        "rotary": True,
        "head_norms": True,
        "norm": "rms_norm",
        "post_norms": True,
        "one_plus": True,
        "gated": True,
        "activation": "gelu_tanh",
        "soft_cap": 3.0,
    },
    "parallel": {"pre_norm": True, "parallel": True, "rotary": True},
    "parallel_sandwich": {
        "pre_norm": True,
        "parallel": True,
        "norm": "rms_norm",
        "post_norms": True,
    },
    "output_and_residual_norms": {"norm": "rms_norm", "post_norms": True},
}

RECOMPUTE = ("none", "norm", "activation", "layer")
DROPOUTS = {"attention": 0.2, "activation": 0.1, "residual": 0.3}
# Of layers whose memory is planned.
SHAPES = st.fixed_dictionaries(
    {
        "hidden": st.sampled_from([16, 32, 48]),
        "intermediate": st.sampled_from([16, 64, 100, 192]),
        "pre_norm": st.booleans(),
        "gated": st.booleans(),
    }
)

Floats = NDArray[np.float32]


class TrainedLayer(Layer):
    """`layers` copies of the layer that share its weights' values, not its memory, and a bias by
    distance if it has one; a backward leaves that one's gradient in `dbias`."""

    def __init__(
        self,
        options: dict[str, Any],
        lengths: tuple[int, ...] = (1, 17, 40),
        layers: int = 1,
        **dropouts: float,
    ) -> None:
        super().__init__(options, lengths=lengths)
        self.layers = layers
        self.dropouts = dropouts
        self.biases = [self.bias] if options.get("biased") else []
        self.dbias = np.zeros_like(self.bias)
        self._arrays: list[Floats] = []
        self._size = 0
        self.offsets: list[dict[str, int]] = []
        blocks = [self._trained_blocks() for _ in range(layers)]
        self.stack = t.Stack(blocks, parallel=bool(options.get("parallel")))
        self.values = np.concatenate([array.reshape(-1) for array in self._arrays])

    def _place(self, name: str, array: Floats) -> t.Parameter:
        self.offsets[-1][name] = self._size
        self._arrays.append(array)
        place = t.Parameter(self._size, list(array.shape))
        self._size += array.size
        return place

    def _trained_blocks(self) -> list[t.Block]:
        self.offsets.append({})
        where = "input_norm" if self.o.get("pre_norm") else "residual_norm"
        kind = self.o.get("norm", "layer_norm")
        return [
            t.Block(
                part,
                **{where: self._norm(f"{name}_norm", kind)},
                output_norm=self._norm(f"{name}_post_norm"),
                dropout=self.dropouts.get("residual", 0.0),
            )
            for name, part in self._sublayers()
        ]

    def _linear(self, name: str) -> t.Linear:
        weight, bias = self.linears[name]
        transposed = bool(self.o.get("transposed"))
        stored = np.ascontiguousarray(weight.T) if transposed else weight
        return t.Linear(
            self._place(f"{name}.weight", stored),
            self._place(f"{name}.bias", bias),
            transposed=transposed,
        )

    def _norm(self, name: str, kind: str = "rms_norm") -> t.Norm | None:
        if name not in self.norms:
            return None
        one_plus = bool(self.o.get("one_plus"))
        stored = self.norms[name] - np.float32(one_plus)
        return t.Norm(self._place(f"{name}.weight", stored), None, 1e-6, kind, one_plus)

    def _sublayers(self) -> list[tuple[str, t.Sublayer]]:
        """In order, with what the names of their blocks' norms begin with."""
        o = self.o
        attention = t.Attention(
            qkv=self._linear("qkv"),
            output=self._linear("attention_output"),
            heads=o["heads"],
            kv_heads=self.kv_heads,
            **self.mask(),
            soft_cap=o.get("soft_cap", 0.0),
            dropout=self.dropouts.get("attention", 0.0),
            q_norm=self._norm("q_norm"),
            k_norm=self._norm("k_norm"),
            rope=tuple(k.Tensor.from_numpy(table) for table in (self.cos, self.sin, -self.sin))
            if o.get("rotary")
            else None,
            position_bias=0 if o.get("biased") else None,
        )
        feed_forward = t.FeedForward(
            intermediate=self._linear("intermediate"),
            output=self._linear("output"),
            activation=o["activation"],
            gated=o.get("gated", False),
            dropout=self.dropouts.get("activation", 0.0),
        )
        return [("attention", attention), ("output", feed_forward)]

    def batch(self) -> k.SequenceBatch:
        offsets = np.cumsum([0, *self.lengths]).astype(np.int32)
        return k.SequenceBatch(k.Tensor.from_numpy(offsets))

    def forward_pass(
        self, x: Floats, values: Floats | None = None, **options: Any
    ) -> tuple[Floats, t.Activations | None]:
        out = np.full_like(x, np.nan)
        activations = self.stack.forward(
            k.Tensor.from_numpy(out),
            k.Tensor.from_numpy(x),
            k.Tensor.from_numpy(self.values if values is None else values),
            self.batch(),
            positions=k.Tensor.from_numpy(self.positions),
            biases=[k.Tensor.from_numpy(bias) for bias in self.biases],
            **options,
        )
        return out, activations

    def backward_pass(
        self,
        activations: t.Activations,
        gradient: Floats,
        gradients: Floats | None = None,
        **options: Any,
    ) -> tuple[Floats, Floats]:
        """Gradients of x and of all parameters."""
        dx = gradient.copy()
        self.dbias = np.zeros_like(self.bias)
        if gradients is None:
            gradients = np.full_like(self.values, np.nan)
        self.stack.backward(
            activations,
            k.Tensor.from_numpy(dx),
            k.Tensor.from_numpy(self.values),
            k.Tensor.from_numpy(gradients),
            **{"bias_gradients": [k.Tensor.from_numpy(self.dbias) for _ in self.biases]} | options,
        )
        return dx, gradients

    def gradients(self, x: Floats, gradient: Floats, **options: Any) -> tuple[Floats, Floats]:
        _, activations = self.forward_pass(x, **options)
        assert activations is not None
        return self.backward_pass(activations, gradient, version=options.get("version", 0))

    def truth(
        self, x: Floats, gradient: Floats, leaves: dict[int, torch.Tensor] | None = None
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """The same by torch's autograd in fp64; the parameters' are sums over all layers. Fills
        `leaves` with the tensor of each array, by the array's id."""
        leaves = {} if leaves is None else leaves

        def there(array: Floats) -> torch.Tensor:
            if array.dtype != np.float32:
                return torch.from_numpy(array)
            if id(array) not in leaves:
                leaves[id(array)] = torch.from_numpy(array).double().requires_grad_()
            return leaves[id(array)]

        start = torch.from_numpy(x).double().requires_grad_()
        h = start
        for _ in range(self.layers):
            h = self.in_torch(h, there)
        h.backward(torch.from_numpy(gradient).double())
        flat = np.full(self.values.size // self.layers, np.nan)
        for name, offset in self.offsets[0].items():
            part, kind = name.split(".")
            array = (
                self.norms[part]
                if part in self.norms
                else self.linears[part][0 if kind == "weight" else 1]
            )
            grad = leaves[id(array)].grad
            assert grad is not None
            if self.o.get("transposed") and kind == "weight" and part in self.linears:
                grad = grad.T
            flat[offset : offset + array.size] = grad.reshape(-1).numpy()
        assert start.grad is not None
        return start.grad.numpy(), flat


def off(got: NDArray[Any], truth: NDArray[Any]) -> float:
    """The norm of the difference over that of the truth."""
    return float(np.linalg.norm(got - truth) / np.linalg.norm(truth))


def expect_close(layer: TrainedLayer, got: NDArray[Any], truth: NDArray[Any]) -> None:
    """Each parameter's gradient by itself."""
    names = layer.offsets[0]
    ends = [*list(names.values())[1:], layer.values.size]
    for (name, begin), end in zip(names.items(), ends, strict=True):
        assert off(got[begin:end], truth[begin:end]) <= TRAINED_GRADIENT, name
