"""The other encoders: transformers with its defaults, and an optimised version in torch.

Each has `load(batch)`, which copies the ids to where its forward reads them, `forward()`, which
launches one forward on the current stream, and `output()`, which returns the real tokens of the
last one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from fusewire.batch import Batch
from torch import Tensor, nn

from benchmarks.gpu.timing import Run, recorded
from benchmarks.gpu.workload import MOST_POSITIONS, Size

HALF = torch.float16


def bert(size: Size) -> nn.Module:
    """Returns the fp32 model with random weights that every contender starts from."""
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    config = transformers.BertConfig(  # type: ignore[call-arg]
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=size.intermediate,
        max_position_embeddings=MOST_POSITIONS,
        attn_implementation="sdpa",
    )
    with torch.device("cuda"):
        return transformers.BertModel(config, add_pooling_layer=False).eval()


def half(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).to(HALF)


class Padded:
    """transformers, padded to the longest sequence; without a mask where none is needed."""

    def __init__(self, model: nn.Module, batch: Batch, name: str = "transformers") -> None:
        self.name = name
        self.stream = torch.cuda.current_stream()
        self._model = model
        lengths = np.diff(batch.cu_seqlens)
        self._real = np.arange(batch.max_seqlen) < lengths[:, None]
        self._mask = torch.from_numpy(self._real.astype(np.int64)).cuda()
        self._ids = torch.zeros_like(self._mask)
        self.load(batch)

    def load(self, batch: Batch) -> None:
        ids = np.zeros(self._real.shape, np.int64)
        ids[self._real] = batch.input_ids
        self._ids.copy_(torch.from_numpy(ids))

    def forward(self) -> None:
        mask = None if self._real.all() else self._mask
        self._hidden = self._model(input_ids=self._ids, attention_mask=mask).last_hidden_state

    def output(self) -> Tensor:
        return self._hidden[torch.from_numpy(self._real).cuda()].float()


class LayerWeights(NamedTuple):
    """The weights of one layer, with attention's three projections concatenated."""

    qkv: tuple[Tensor, Tensor]
    attention_output: tuple[Tensor, Tensor]
    attention_norm: tuple[Tensor, Tensor]
    intermediate: tuple[Tensor, Tensor]
    output: tuple[Tensor, Tensor]
    output_norm: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, layer: Any) -> LayerWeights:
        own, output = layer.attention.self, layer.attention.output
        parts = (own.query, own.key, own.value)
        qkv = torch.cat([p.weight for p in parts]), torch.cat([p.bias for p in parts])
        others = (output.dense, output.LayerNorm, layer.intermediate.dense, layer.output.dense)
        pairs = [(m.weight, m.bias) for m in (*others, layer.output.LayerNorm)]
        return cls(qkv, *pairs)


def packed_embedding(
    tables: tuple[Tensor, Tensor, Tensor],
    norm: tuple[Tensor, Tensor],
    eps: float,
    ids: Tensor,
    positions: Tensor,
    types: Tensor,
) -> Tensor:
    word, position, token_type = tables
    x = F.embedding(ids, word) + F.embedding(types, token_type) + F.embedding(positions, position)
    return F.layer_norm(x, x.shape[-1:], *norm, eps)


def packed_layer(
    x: Tensor, weights: LayerWeights, offsets: Tensor, longest: int, heads: int, eps: float
) -> Tensor:
    """Computes a layer of x [tokens, hidden]; sequence s has the rows offsets[s] to offsets[s +
    1]."""
    q, k, v = F.linear(x, *weights.qkv).view(x.shape[0], 3, heads, -1).unbind(1)
    context = torch.ops.aten._flash_attention_forward(
        q, k, v, offsets, offsets, longest, longest, 0.0, False, False
    )[0]
    x = F.linear(context.flatten(1), *weights.attention_output) + x
    x = F.layer_norm(x, x.shape[-1:], *weights.attention_norm, eps)
    inner = F.gelu(F.linear(x, *weights.intermediate))
    x = F.linear(inner, *weights.output) + x
    return F.layer_norm(x, x.shape[-1:], *weights.output_norm, eps)


class Packed:
    """The fastest version in torch: packed tokens, FlashAttention-2 varlen, all of it one CUDA
    graph.

    Captured for exactly these lengths. Layers are compiled one by one: they are alike, so compiling
    the whole model would take 12 or 24 times as long and give the same code.
    """

    def __init__(self, model: Any, batch: Batch, *, compiled: bool) -> None:
        self.name = "packed, compiled, graph" if compiled else "packed, graph"
        self.stream = torch.cuda.current_stream()
        lengths = np.diff(batch.cu_seqlens)
        self._ids = torch.from_numpy(batch.input_ids).cuda()
        self._work = _packed_forward(model, compiled)
        positions = torch.cat([torch.arange(int(n)) for n in lengths]).cuda()
        arguments = (
            self._ids,
            positions,
            torch.zeros_like(positions),
            torch.from_numpy(batch.cu_seqlens).cuda(),
            batch.max_seqlen,
        )

        def work() -> None:
            self._hidden = self._work(*arguments)

        self.forward: Run = recorded(work)

    def load(self, batch: Batch) -> None:
        self._ids.copy_(torch.from_numpy(batch.input_ids))

    def output(self) -> Tensor:
        return self._hidden.float()


def _packed_forward(model: Any, compiled: bool) -> Callable[..., Tensor]:
    embed: Callable[..., Tensor] = packed_embedding
    layer: Callable[..., Tensor] = packed_layer
    if compiled:
        embed, layer = (torch.compile(part, dynamic=False) for part in (embed, layer))
    table = model.embeddings
    tables = tuple(
        part.weight
        for part in (
            table.word_embeddings,
            table.position_embeddings,
            table.token_type_embeddings,
        )
    )
    norm = table.LayerNorm.weight, table.LayerNorm.bias
    layers = [LayerWeights.of(each) for each in model.encoder.layer]
    heads, eps = model.config.num_attention_heads, model.config.layer_norm_eps

    def forward(
        ids: Tensor, positions: Tensor, types: Tensor, offsets: Tensor, longest: int
    ) -> Tensor:
        x = embed(tables, norm, eps, ids, positions, types)
        for weights in layers:
            x = layer(x, weights, offsets, longest, heads, eps)
        return x

    return forward


def compiled_padded(model: nn.Module, batch: Batch) -> Padded:
    compiled: Any = torch.compile(model, dynamic=False, mode="reduce-overhead")
    return Padded(compiled, batch, "transformers, compiled")
