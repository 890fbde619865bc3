"""What the model and the deployment allow a request for generated text."""

from __future__ import annotations

from dataclasses import dataclass

from fusewire.generation.speech import SpeechTokens


@dataclass(frozen=True)
class SourceLimits:
    """Limits of the text that the encoder of an encoder-decoder model reads."""

    vocab_size: int
    max_length: int  # tokens
    reason: str  # what `max_length` is


@dataclass(frozen=True)
class GenerationLimits:
    """The limits of one loaded model. Of an encoder-decoder model a request's prompt is the source,
    and the sequences that are generated begin with a token that is not the request's."""

    vocab_size: int
    max_length: int  # tokens of a sequence, prompt and answer together
    max_request_tokens: int  # generated tokens of one request, over all of its sequences
    max_sequences: int  # that run at once
    source: SourceLimits | None = None  # of an encoder-decoder model
    speech: SpeechTokens | None = None  # of one whose sources are audio
    max_audio_seconds: int = 0  # of such a source

    def longest_prompt(self, max_new_tokens: int | None) -> int:
        """The longest prompt in tokens: it leaves room for a new token, unless none is wanted."""
        if self.source is not None:
            return self.source.max_length
        return self.max_length - (max_new_tokens != 0)

    @property
    def prompt_vocab_size(self) -> int:
        return self.vocab_size if self.source is None else self.source.vocab_size

    def begun(self, prompt_tokens: int, decoder_tokens: int = 1) -> int:
        """Tokens of a sequence before the first that is generated."""
        return prompt_tokens if self.source is None else decoder_tokens
