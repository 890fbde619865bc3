"""transformers with keys and values rounded to float8 e4m3 when they are cached: the error of a
float8 cache alone."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

LARGEST = 448.0


class Float8Cache(DynamicCache):
    """`k_scale`, `v_scale`: keys and values are divided by these before they are rounded."""

    def __init__(self, k_scale: float = 1.0, v_scale: float = 1.0) -> None:
        super().__init__()
        self._scales = k_scale, v_scale

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        k_scale, v_scale = self._scales
        keys, values = _rounded(key_states, k_scale), _rounded(value_states, v_scale)
        return super().update(keys, values, *args, **kwargs)


def _rounded(numbers: torch.Tensor, scale: float) -> torch.Tensor:
    codes = (numbers.float() / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return (codes.float() * scale).to(numbers.dtype)


def _earlier(reference: Any, cache: Any) -> dict[str, Any]:
    """Returns the cache as the keyword argument of a forward, which transformers 5.24 renamed."""
    names = signature(reference.forward).parameters
    return {"cache" if "cache" in names else "past_key_values": cache}


def float8_logits(
    reference: Any, sequences: Sequence[Sequence[int]], scales: tuple[float, float] = (1.0, 1.0)
) -> list[NDArray[np.float32]]:
    """Returns [length, vocabulary] for each sequence, computed alone."""
    answers = []
    for ids in sequences:
        with torch.no_grad():
            output = reference(
                torch.tensor([ids], device=reference.device),
                use_cache=True,
                **_earlier(reference, Float8Cache(*scales)),
            )
        answers.append(output.logits[0].float().cpu().numpy())
    return answers


def float8_teacher_forced_logits(
    reference: Any, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> list[NDArray[np.float32]]:
    """Returns [length, vocabulary] for each target of an encoder-decoder model, computed alone."""
    answers = []
    for source, target in zip(sources, targets, strict=True):
        with torch.no_grad():
            output = reference(
                input_ids=torch.tensor([source], device=reference.device),
                decoder_input_ids=torch.tensor([target], device=reference.device),
                use_cache=True,
                **_earlier(reference, EncoderDecoderCache(Float8Cache(), Float8Cache())),
            )
        answers.append(output.logits[0].float().cpu().numpy())
    return answers
