"""`SamplingParams`: parameters of generation, with vLLM's class name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusewire.generation.no_effect import without_no_effect
from fusewire.generation.parameters import GenerationParameters


class SamplingParams(GenerationParameters):
    """Parameters of generation for a prompt, with the names that requests to the server use.

    Defaults are those of the model's generation_config.json; without it decoding is greedy and ends
    where the model ends the text, as in Hugging Face's `generate` (vLLM samples, and ends at 16
    tokens). Each of `temperature`, `top_k`, `top_p`, `min_p` and `typical_p` switches to sampling,
    `num_beams` to beam search. Each parameter is described at `GenerationParameters`.

    Raises:
        InvalidInput: A parameter is unknown or out of range; the message names it.
    """

    def __init__(
        self,
        *,
        n: int | None = None,
        best_of: int | None = None,
        num_beams: int | None = None,
        length_penalty: float | None = None,
        early_stopping: bool | str | None = None,
        num_beam_groups: int | None = None,
        diversity_penalty: float | None = None,
        max_tokens: int | None = None,
        min_tokens: int | None = None,
        max_new_tokens: int | None = None,
        min_new_tokens: int | None = None,
        do_sample: bool | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        typical_p: float | None = None,
        seed: int | None = None,
        repetition_penalty: float | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        no_repeat_ngram_size: int | None = None,
        encoder_no_repeat_ngram_size: int | None = None,
        logit_bias: Mapping[int, float] | None = None,
        bad_words: Sequence[str] | None = None,
        suppress_tokens: Sequence[int] | None = None,
        begin_suppress_tokens: Sequence[int] | None = None,
        stop: str | Sequence[str] | None = None,
        stop_token_ids: Sequence[int] | None = None,
        ignore_eos: bool | None = None,
        include_stop_str_in_output: bool | None = None,
        add_special_tokens: bool | None = None,
        skip_special_tokens: bool | None = None,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        priority: int | None = None,
        timeout_seconds: float | None = None,
        **others: Any,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in _NAMES}
        GenerationParameters.__init__(self, **without_no_effect(others), **given)


_NAMES = frozenset(SamplingParams.__init__.__kwdefaults__ or ())
