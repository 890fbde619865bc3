"""What the model and the deployment allow a request for generated text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GenerationLimits:
    """The limits of one loaded model."""

    vocab_size: int
    max_length: int  # tokens of a sequence, prompt and answer together
    max_request_tokens: int  # generated tokens of one request, over all of its sequences
    max_sequences: int  # that run at once

    def longest_prompt(self, max_new_tokens: int | None) -> int:
        """In tokens: it leaves room for a new one, unless none is wanted."""
        return self.max_length - (max_new_tokens != 0)
