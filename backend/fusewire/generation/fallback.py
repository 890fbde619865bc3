"""Which texts of a window of audio are no good, and what is done about it: temperature fallback, as
Whisper has it (Radford et al., 2022, section 4.5) and transformers' `generate` after it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

from fusewire.generation.parameters import GenerationParameters

# From this temperature on a text is not what the next window's goes on from.
TOO_HOT = 0.5


@dataclass(frozen=True)
class Fallback:
    """Attempts at `temperatures`, in their order. None of a threshold: it does not count."""

    temperatures: Sequence[float]
    compression_ratio: float | None
    logprob: float | None
    no_speech: float | None

    def is_repetitive(self, token_ids: Sequence[int], vocab_size: int) -> bool:
        most = self.compression_ratio
        return most is not None and compression_ratio(token_ids, vocab_size) > most

    def is_unlikely(self, mean_logprob: float) -> bool:
        return self.logprob is not None and mean_logprob < self.logprob

    def is_silence(self, no_speech_probability: float) -> bool:
        return self.no_speech is not None and no_speech_probability > self.no_speech


def fallback_of(parameters: GenerationParameters) -> Fallback | None:
    """When a text is tried again; None where every text is taken as it is."""
    thresholds = parameters.compression_ratio_threshold, parameters.logprob_threshold
    if thresholds == (None, None):
        return None
    first = 0.0 if parameters.greedy else parameters.temperature
    temperatures = first, *parameters.fallback_temperatures
    return Fallback(temperatures, *thresholds, parameters.no_speech_threshold)


def at_temperature(parameters: GenerationParameters, temperature: float) -> GenerationParameters:
    """The parameters of one attempt: without beams where it samples."""
    sampled = {"do_sample": True, "num_beams": 1, "num_beam_groups": 1, "diversity_penalty": 0.0}
    return parameters.model_copy(
        update={"temperature": temperature, **(sampled if temperature > 0 else {})}
    )


def compression_ratio(token_ids: Sequence[int], vocab_size: int) -> float:
    """How many times shorter zlib makes the tokens, each as few bytes as the vocabulary takes."""
    width = int(log2(vocab_size) / 8) + 1
    written = b"".join(token.to_bytes(width, "little") for token in token_ids)
    return len(written) / len(zlib.compress(written))
