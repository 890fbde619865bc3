"""The fastest decoder step that we know how to write in torch: fused projections, the two halves of
a layer compiled, keys and values written in place, attention by whichever of torch's kernels is
fastest at the shape, no host work: one CUDA graph.

The same functions, op by op in fp32 with one layer's weights widened at a time, are the reference
for all contenders; in fp16 they give the error of that precision.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu.generation_models import Past, Place
from benchmarks.gpu.timing import Contender, Run, medians_ms, recorded

Pair = tuple[Tensor, Tensor | None]  # a weight [out, in] or that of a norm, and its bias
# (query, keys, values) -> the shape of the query
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Parts = tuple[Callable[..., Any], ...]  # before, after, logits_of


class LayerWeights(NamedTuple):
    """The weights of one layer, of Llama or of GPT-2; Llama's norms have no bias."""

    attention_norm: Pair
    qkv: Pair
    attention_output: Pair
    output_norm: Pair
    intermediate: Pair
    output: Pair

    @classmethod
    def of(cls, layer: Any) -> LayerWeights:
        if hasattr(layer, "self_attn"):
            own, mlp = layer.self_attn, layer.mlp
            return cls(
                (layer.input_layernorm.weight, None),
                joined(own.q_proj, own.k_proj, own.v_proj),
                (own.o_proj.weight, None),
                (layer.post_attention_layernorm.weight, None),
                joined(mlp.gate_proj, mlp.up_proj),
                (mlp.down_proj.weight, None),
            )
        own, mlp = layer.attn, layer.mlp
        products = [
            (part.weight.T.contiguous(), part.bias)
            for part in (own.c_attn, own.c_proj, mlp.c_fc, mlp.c_proj)
        ]
        norms = [(part.weight, part.bias) for part in (layer.ln_1, layer.ln_2)]
        return cls(norms[0], products[0], products[1], norms[1], products[2], products[3])

    def to(self, dtype: torch.dtype) -> LayerWeights:
        return LayerWeights(*(_to(pair, dtype) for pair in self))


def joined(*parts: Any) -> Pair:
    """Concatenates linear layers with the same input; all of them have a bias, or none."""
    biases = [part.bias for part in parts if part.bias is not None]
    return torch.cat([part.weight for part in parts]), torch.cat(biases) if biases else None


def _to(pair: Pair, dtype: torch.dtype) -> Pair:
    return pair[0].to(dtype), None if pair[1] is None else pair[1].to(dtype)


class Weights(NamedTuple):
    """The weights of a transformers model; concatenated matrices are copies."""

    layers: list[LayerWeights]
    word: Tensor
    position: Tensor | None
    final_norm: Pair
    head: Tensor
    eps: float
    heads: int
    kv_heads: int
    theta: float | None

    @classmethod
    def of(cls, model: Any) -> Weights:
        config, head = model.config, model.lm_head.weight
        heads = config.num_attention_heads
        if hasattr(model, "model"):
            base, eps = model.model, config.rms_norm_eps
            layers = [LayerWeights.of(layer) for layer in base.layers]
            kv_heads, theta = config.num_key_value_heads, config.rope_parameters["rope_theta"]
            final: Pair = base.norm.weight, None
            return cls(
                layers, base.embed_tokens.weight, None, final, head, eps, heads, kv_heads, theta
            )
        base, eps = model.transformer, config.layer_norm_epsilon
        layers = [LayerWeights.of(layer) for layer in base.h]
        final = base.ln_f.weight, base.ln_f.bias
        word, position = base.wte.weight, base.wpe.weight
        return cls(layers, word, position, final, head, eps, heads, heads, None)


def normed(x: Tensor, norm: Pair, eps: float) -> Tensor:
    if norm[1] is None:
        return F.rms_norm(x, x.shape[-1:], norm[0], eps)
    return F.layer_norm(x, x.shape[-1:], norm[0], norm[1], eps)


def before(
    x: Tensor, w: LayerWeights, angles: tuple[Tensor, Tensor] | None, heads: int, eps: float
) -> tuple[Tensor, Tensor]:
    """Computes x [batch, tokens, hidden] -> query [batch, heads, tokens, head_dim], and keys and
    values [2, batch, kv_heads, tokens, head_dim]."""
    hidden = x.shape[-1]
    qkv = F.linear(normed(x, w.attention_norm, eps), *w.qkv)
    qkv = qkv.unflatten(-1, (-1, hidden // heads)).transpose(1, 2)
    kv_heads = (qkv.shape[1] - heads) // 2
    q, k, v = qkv.split([heads, kv_heads, kv_heads], 1)
    if angles is not None:
        q, k = _turned(q, *angles), _turned(k, *angles)
    return q, torch.stack([k, v])


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def after(x: Tensor, context: Tensor, w: LayerWeights, eps: float) -> Tensor:
    """Computes the rest of a layer; `context` is the output of attention, in the shape of the
    query."""
    x = x + F.linear(context.transpose(1, 2).flatten(2), *w.attention_output)
    inner = F.linear(normed(x, w.output_norm, eps), *w.intermediate)
    if w.output_norm[1] is None:
        gate, up = inner.chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, *w.output)
    return x + F.linear(F.gelu(inner, approximate="tanh"), *w.output)


def logits_of(x: Tensor, norm: Pair, head: Tensor, eps: float) -> Tensor:
    return F.linear(normed(x, norm, eps), head)


def embedded(w: Weights, ids: Tensor, first: int, dtype: torch.dtype) -> Tensor:
    x = F.embedding(ids, w.word).to(dtype)
    return x if w.position is None else x + w.position[first : first + ids.shape[1]]


def angles_of(w: Weights, first: int, count: int) -> tuple[Tensor, Tensor] | None:
    """Returns cos and sin [count, head_dim / 2] in fp32."""
    if w.theta is None:
        return None
    width = w.word.shape[1] // w.heads
    device = w.word.device
    steps = torch.arange(0, width, 2, device=device, dtype=torch.float32) / width
    at = torch.arange(first, first + count, device=device, dtype=torch.float32)
    angles = at[:, None] * w.theta**-steps
    return angles.cos(), angles.sin()


def by_products(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Computes attention to all keys as two batched GEMMs, with the heads that share keys
    together."""
    kv_heads, count = k.shape[1], q.shape[2]
    shared = q.unflatten(1, (kv_heads, -1)).flatten(2, 3)  # [batch, kv_heads, queries, head_dim]
    scores = (shared * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    return (F.softmax(scores, -1) @ v).unflatten(2, (-1, count)).flatten(1, 2)


def by_sdpa(backend: SDPBackend, causal: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
        )


def attentions(causal: bool) -> dict[str, Attend]:
    found: dict[str, Attend] = {
        "flash": partial(by_sdpa, SDPBackend.FLASH_ATTENTION, causal),
        "cuDNN": partial(by_sdpa, SDPBackend.CUDNN_ATTENTION, causal),
    }
    return found if causal else found | {"products": by_products}


def fastest(causal: bool, q: Tensor, k: Tensor, v: Tensor) -> tuple[str, Attend]:
    """Returns the name and function of the fastest attention among those that support the shape."""
    sides, stream = [], torch.cuda.current_stream()
    for name, attend in attentions(causal).items():
        try:
            sides.append(Contender(name, recorded(partial(attend, q, k, v)), stream))
        except RuntimeError:
            continue
    ms = medians_ms(sides, rounds=3, turn_ms=2.0)
    name = min(ms, key=lambda side: ms[side])
    return name, attentions(causal)[name]


def plain_logits(w: Weights, past: Past, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns logits [batch, vocabulary] of each sequence's last token, computed in `dtype` op by
    op."""
    count = ids.shape[1]
    first = past.case.context - count
    x, angles = embedded(w, ids, first, dtype), angles_of(w, first, count)
    for index, layer in enumerate(w.layers):
        weights = layer.to(dtype)
        q, kv = before(x, weights, angles, w.heads, w.eps)
        if first:
            keys, values = (part.to(dtype) for part in past.layer(index))
            if past.float8:  # the stored keys and values of the new token are float8 too
                kv = [part.to(torch.float8_e4m3fn).to(dtype) for part in kv]
            keys[:, :, first:], values[:, :, first:] = kv[0], kv[1]
        else:
            keys, values = kv[0], kv[1]
        if first:
            context = by_products(q, keys, values)
        else:
            group = w.heads // w.kv_heads
            keys, values = (part.repeat_interleave(group, 1) for part in (keys, values))
            context = F.scaled_dot_product_attention(q, keys, values, is_causal=True)
        x = after(x, context, weights, w.eps)
    return logits_of(x[:, -1], _to(w.final_norm, dtype), w.head.to(dtype), w.eps).float()


def compiled_parts() -> Parts:
    """Returns the parts compiled, at their first calls and once for every batch size."""
    return tuple(torch.compile(part, dynamic=False) for part in (before, after, logits_of))


class Graph:
    """A step, or a prompt from its first token, of a case as a CUDA graph."""

    name = "torch, compiled, graph"

    def __init__(self, w: Weights, past: Past, ids: Tensor, parts: Parts, place: Place) -> None:
        """`ids` [batch, tokens]: the last of the case's `context` tokens."""
        case, count = past.case, ids.shape[1]
        first = case.context - count
        on_gpu = place.device != "cpu"
        self.stream = torch.cuda.current_stream() if on_gpu else None
        angles = angles_of(w, first, count)
        cache = _cache(past, w) if first else []
        self.attention = "flash"
        attend: Attend = F.scaled_dot_product_attention
        if on_gpu:
            self.attention, attend = self._choose(w, past, count)
        elif first == 0:
            attend = partial(by_sdpa, SDPBackend.MATH, True)
        else:
            attend = by_products

        def work() -> None:
            x = embedded(w, ids, first, w.word.dtype)
            for index, layer in enumerate(w.layers):
                q, kv = parts[0](x, layer, angles, w.heads, w.eps)
                if first:
                    cache[index][:, :, :, first:] = kv
                    kv = cache[index]
                x = parts[1](x, attend(q, kv[0], kv[1]), layer, w.eps)
            self.logits = parts[2](x[:, -1], w.final_norm, w.head, w.eps)
            self.tokens = self.logits.argmax(-1)

        self.forward: Run = recorded(work) if on_gpu else work

    def _choose(self, w: Weights, past: Past, count: int) -> tuple[str, Attend]:
        case = past.case
        keys, values = past.layer(0)
        width = case.shape.head_dim
        query = torch.randn(case.batch, w.heads, count, width, device=keys.device, dtype=keys.dtype)
        return fastest(count == case.context, query, keys, values)

    def output(self) -> Tensor:
        return self.logits.float()


def _cache(past: Past, w: Weights) -> list[Tensor]:
    """Returns [2, batch, kv_heads, context, head_dim] for each layer."""
    return [torch.stack(past.layer(index)) for index in range(len(w.layers))]
