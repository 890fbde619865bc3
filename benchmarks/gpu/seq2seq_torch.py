"""The fastest step of beam search that we know how to write in torch, for decoders of Marian and
BART: fused projections, the ops between GEMMs compiled, cross attention for all beams of a source
at once, attention by whichever of torch's kernels is fastest at the shape, candidates by row and
then by source, keys and values of the surviving beams gathered: one CUDA graph."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.activations import ACT2FN

from benchmarks.gpu.generation_bench import allowed_difference
from benchmarks.gpu.generation_models import Place
from benchmarks.gpu.generation_torch import Attend, Pair, by_products, fastest, joined
from benchmarks.gpu.seq2seq_workload import Case
from benchmarks.gpu.timing import Run, recorded

FAMILIES = ("marian", "bart")
Parts = tuple[Callable[..., Any], ...]  # qkv_of, between, after, best_of


class LayerWeights(NamedTuple):
    """The weights of one decoder layer, with the projections of the encoder's output to keys and
    values."""

    qkv: Pair
    attention_output: Pair
    attention_norm: Pair
    cross_q: Pair
    cross_kv: Pair
    cross_output: Pair
    cross_norm: Pair
    intermediate: Pair
    output: Pair
    output_norm: Pair

    @classmethod
    def of(cls, layer: Any) -> LayerWeights:
        own, cross = layer.self_attn, layer.encoder_attn
        return cls(
            joined(own.q_proj, own.k_proj, own.v_proj),
            _pair(own.out_proj),
            _pair(layer.self_attn_layer_norm),
            _pair(cross.q_proj),
            joined(cross.k_proj, cross.v_proj),
            _pair(cross.out_proj),
            _pair(layer.encoder_attn_layer_norm),
            _pair(layer.fc1),
            _pair(layer.fc2),
            _pair(layer.final_layer_norm),
        )


def _pair(part: Any) -> Pair:
    return part.weight, part.bias


def _added(x: Tensor, inner: Tensor, output: Pair, norm: Pair) -> Tensor:
    return F.layer_norm(x + F.linear(inner, *output), x.shape[-1:], *norm)


def qkv_of(x: Tensor, w: LayerWeights, heads: int) -> tuple[Tensor, Tensor]:
    """Computes x [rows, hidden] -> query [rows, heads, 1, head_dim], and keys and values [2, rows,
    ...]."""
    q, k, v = F.linear(x, *w.qkv).unflatten(-1, (3, heads, 1, -1)).unbind(1)
    return q, torch.stack([k, v])


def between(x: Tensor, context: Tensor, w: LayerWeights, beams: int) -> tuple[Tensor, Tensor]:
    """Computes the rest of self attention, and the query of cross attention by source, [batch,
    heads, beams, head_dim]."""
    heads = context.shape[1]
    x = _added(x, context.flatten(1), w.attention_output, w.attention_norm)
    q = F.linear(x, *w.cross_q).unflatten(-1, (heads, -1)).unflatten(0, (-1, beams))
    return x, q.transpose(1, 2)


def after(
    x: Tensor, context: Tensor, w: LayerWeights, activation: Callable[[Tensor], Tensor]
) -> Tensor:
    x = _added(x, context.transpose(1, 2).flatten(0, 1).flatten(1), w.cross_output, w.cross_norm)
    inner = activation(F.linear(x, *w.intermediate))
    return _added(x, inner, w.output, w.output_norm)


def best_of(logits: Tensor, scores: Tensor, beams: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the 2 * beams best candidates of each source: scores, tokens, and the rows that they
    continue."""
    log_sums = logits.float().logsumexp(-1, keepdim=True)
    found, tokens = logits.topk(2 * beams)
    total = (found.float() - log_sums + scores[:, None]).unflatten(0, (-1, beams)).flatten(1)
    total, place = total.topk(2 * beams)
    tokens = tokens.unflatten(0, (-1, beams)).flatten(1).gather(1, place)
    first = torch.arange(len(total), device=total.device)[:, None] * beams
    return total, tokens, first + place // (2 * beams)


def parts_of(place: Place) -> Parts:
    """Returns the parts of a model's step; on a GPU they are compiled at their first calls, for its
    first case and once for all others."""
    parts = qkv_of, between, after, best_of
    if place.device == "cpu":
        return parts
    torch.compiler.reset()
    return tuple(torch.compile(part) for part in parts)


class Graph:
    """A step of a case in the middle of the texts."""

    name = "torch, compiled, graph"

    @torch.no_grad()
    def __init__(self, theirs: Any, case: Case, parts: Parts, place: Place) -> None:
        """`theirs`: a model of transformers, of FAMILIES."""
        decoder, heads = theirs.model.decoder, theirs.config.decoder_attention_heads
        layers = [LayerWeights.of(layer) for layer in decoder.layers]
        activation = ACT2FN[theirs.config.activation_function]
        self._theirs, self._first = theirs, case.new // 2
        ids = partial(torch.randint, 3, theirs.config.vocab_size, device=place.device)
        self._sources = ids((case.batch, case.source))
        self._texts = ids((case.rows, self._first + 1))
        self._beams = case.beams
        encoded = theirs.get_encoder()(self._sources).last_hidden_state
        crossed = [
            F.linear(encoded, *w.cross_kv).unflatten(-1, (2, heads, -1)).permute(2, 0, 3, 1, 4)
            for w in layers
        ]
        crossed = [each.contiguous() for each in crossed]
        past = self._decoded(theirs, encoded, self._texts[:, :-1]).past_key_values
        # [layers, 2, rows, heads, tokens, head_dim], with room for the step's token.
        cache = torch.stack(
            [
                F.pad(torch.stack([layer.keys, layer.values]), (0, 0, 0, 1))
                for layer in past.self_attention_cache.layers
            ]
        )
        gathered = torch.empty_like(cache)
        scores = torch.randn(case.rows, device=place.device)
        token = self._texts[:, -1]
        scale = math.sqrt(theirs.config.d_model) if theirs.config.scale_embedding else 1.0
        position = self._position(decoder)
        norm = getattr(decoder, "layernorm_embedding", None)
        on_gpu = place.device != "cpu"
        self.stream = torch.cuda.current_stream() if on_gpu else None
        attend: Attend = by_products
        attend_source: Attend = by_products
        if on_gpu:
            query = torch.randn_like(cache[0, 0, :, :, :1])
            attend = fastest(False, query, cache[0, 0], cache[0, 1])[1]
            query = torch.randn(
                case.batch, heads, case.beams, query.shape[-1], device="cuda", dtype=query.dtype
            )
            attend_source = fastest(False, query, crossed[0][0], crossed[0][1])[1]

        @torch.no_grad()
        def work() -> None:
            x = F.embedding(token, decoder.embed_tokens.weight) * scale + position
            x = x if norm is None else norm(x)
            for index, layer in enumerate(layers):
                q, kv = parts[0](x, layer, heads)
                cache[index][:, :, :, self._first :] = kv
                x, q = parts[1](x, attend(q, *cache[index]), layer, case.beams)
                x = parts[2](x, attend_source(q, *crossed[index]), layer, activation)
            self.logits = theirs.lm_head(x) + theirs.final_logits_bias
            self.best = parts[3](self.logits, scores, case.beams)
            rows = self.best[2][:, : case.beams].flatten()
            torch.index_select(cache, 2, rows, out=gathered)

        self.run: Run = recorded(work) if on_gpu else work

    def _position(self, decoder: Any) -> Tensor:
        """Returns the position embedding of the step's token, [hidden]."""
        table = decoder.embed_positions
        return table.weight[self._first + getattr(table, "offset", 0)]

    def _decoded(self, model: Any, encoded: Tensor, texts: Tensor) -> Any:
        states = encoded.repeat_interleave(self._beams, 0)
        return model.model.decoder(input_ids=texts, encoder_hidden_states=states, use_cache=True)

    @torch.no_grad()
    def off(self) -> tuple[float, float]:
        """Returns the difference of its logits from fp32 and the allowed difference: a multiple of
        that of transformers in the same dtype."""
        self.run()

        def logits(model: Any) -> Tensor:
            encoded = model.get_encoder()(self._sources).last_hidden_state
            hidden = self._decoded(model, encoded, self._texts).last_hidden_state[:, -1]
            return (model.lm_head(hidden) + model.final_logits_bias).float()

        exact = logits(copy.deepcopy(self._theirs).float())
        plain = float((logits(self._theirs) - exact).abs().max())
        allowed = allowed_difference(plain, float(exact.abs().max()), self._theirs.dtype)
        return float((self.logits.float() - exact).abs().max()), allowed
