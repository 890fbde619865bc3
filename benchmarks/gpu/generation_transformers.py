"""transformers with a static cache, its step compiled and captured by torch.compile: the rival that
its users have."""

from __future__ import annotations

import time
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from transformers import StaticCache

from benchmarks.gpu.generation_models import Past, Place


def earlier_tokens(model: Any, cache: Any) -> dict[str, Any]:
    """Returns a cache as the keyword argument of a forward, which transformers 5.24 renamed."""
    names = signature(model.forward).parameters
    return {"cache" if "cache" in names else "past_key_values": cache}


class Static:
    """Repeats the step at a case's last position."""

    name = "transformers, compiled"

    def __init__(
        self, model: Any, past: Past, ids: Tensor, place: Place, *, compiled: bool = True
    ) -> None:
        self.stream = torch.cuda.current_stream() if place.device != "cpu" else None
        case = past.case
        cache: Any = StaticCache(config=model.config, max_cache_len=case.context)
        for index, layer in enumerate(cache.layers):
            keys, values = past.layer(index)
            layer.lazy_initialization(keys, values)
            layer.keys.copy_(keys)
            layer.values.copy_(values)
            layer.cumulative_length.fill_(case.context - 1)
        positions = torch.full_like(ids, case.context - 1)
        earlier = earlier_tokens(model, cache)

        def step() -> tuple[Tensor, Tensor]:
            found = model(ids, position_ids=positions, use_cache=True, **earlier)
            for layer in cache.layers:
                layer.cumulative_length.sub_(1)
            logits = found.logits[:, -1]
            return logits, logits.argmax(-1)

        self._step = torch.compile(step, mode="reduce-overhead") if compiled else step

    def forward(self) -> None:
        self._logits, self._tokens = self._step()

    def output(self) -> Tensor:
        return self._logits.float()


class Prompt:
    """Computes prompts of one length without compiling them."""

    name = "transformers"

    def __init__(self, model: Any, ids: Tensor, place: Place) -> None:
        self.stream = torch.cuda.current_stream() if place.device != "cpu" else None
        self._model, self._ids = model, ids

    def forward(self) -> None:
        self._logits = self._model(self._ids, use_cache=False, logits_to_keep=1).logits[:, -1]

    def output(self) -> Tensor:
        return self._logits.float()


class Run:
    """Computes whole answers to prompts of one length: the prompt eagerly, then compiled steps."""

    name = "transformers, compiled"

    def __init__(
        self, model: Any, batch: int, total: int, place: Place, *, compiled: bool = True
    ) -> None:
        self._model, self._place = model, place
        self._cache: Any = StaticCache(config=model.config, max_cache_len=total)
        self._ids = torch.zeros(batch, 1, dtype=torch.int64, device=place.device)
        self._positions = torch.zeros_like(self._ids)
        self._earlier = earlier_tokens(model, self._cache)

        def step(ids: Tensor, positions: Tensor) -> Tensor:
            found = model(ids, position_ids=positions, use_cache=True, **self._earlier)
            return found.logits[:, -1:].argmax(-1)

        self._step = torch.compile(step, mode="reduce-overhead") if compiled else step

    def answer(self, prompts: Tensor, new: int) -> tuple[float, list[list[int]]]:
        """Returns the seconds from prompts [batch, tokens] to `new` tokens of each on the host, and
        the tokens."""
        self._place.wait()
        began = time.perf_counter()
        for layer in self._cache.layers:
            if layer.is_initialized:
                layer.cumulative_length.zero_()
        found = self._model(prompts, use_cache=True, logits_to_keep=1, **self._earlier)
        self._ids.copy_(found.logits[:, -1:].argmax(-1))
        self._positions.fill_(prompts.shape[1])
        answer = [self._ids.clone()]
        for _ in range(new - 1):
            torch.compiler.cudagraph_mark_step_begin()
            self._ids.copy_(self._step(self._ids, self._positions))
            self._positions.add_(1)
            answer.append(self._ids.clone())
        tokens = torch.cat(answer, 1).tolist()
        return time.perf_counter() - began, tokens
