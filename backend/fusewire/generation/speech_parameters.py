"""What only a model of speech can be asked for: what is heard and how it is written down, and which
texts are no good."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from fusewire.generation.seq2seq_parameters import LONGEST_LANGUAGE, MOST_PREFIX_TOKENS
from fusewire.text.written import Flag, Real, Text, Whole, flag_or

MOST_FALLBACKS = 16  # attempts at a window of sound
WORD = "word"  # timestamps of words


class SpeechParameters(BaseModel):
    """Parameters of models of speech, beside those of other encoder-decoder models."""

    language: Annotated[Text, Field(max_length=LONGEST_LANGUAGE)] | None = Field(
        default=None,
        description="Of a model of speech: the language that is spoken, by its code or its English "
        "name (`de`, `german`). Default: the folder's, else the one that the model hears.",
    )
    task: Literal["transcribe", "translate"] | None = Field(
        default=None,
        description="Of a model of speech: `transcribe` what is said, or `translate` it into "
        "English. Default: the folder's, else `transcribe`.",
    )
    return_timestamps: Annotated[bool | Literal["word"], flag_or(WORD)] = Field(
        default=False,
        description="Of a model of speech: find when each part of the text begins and ends, or, "
        '"word", each word of it too. Default: the folder\'s.',
    )
    condition_on_prev_tokens: Flag = Field(
        default=False,
        description="Of a model of speech, and sound of several windows: what was written before "
        "a window stands before its text, as far as half of the model's positions go. Default: "
        "the folder's.",
    )
    prompt_ids: Annotated[tuple[Whole, ...], Field(max_length=MOST_PREFIX_TOKENS)] = Field(
        default=(),
        description="Of a model of speech: tokens of a text that stands before that of each "
        "window, or, with condition_on_prev_tokens, before that of the first: names, spelling, "
        "style. The last ones count, as far as half of the model's positions go.",
    )
    fallback_temperatures: Annotated[
        tuple[Annotated[Real, Field(ge=0, le=100)], ...], Field(max_length=MOST_FALLBACKS)
    ] = Field(
        default=(),
        description="Of a model of speech: a window whose text is no good by a threshold is "
        "decoded again at the next of these temperatures, until one is good or none is left.",
    )
    compression_ratio_threshold: Real | None = Field(
        default=None,
        gt=0,
        description="Of a model of speech: a text is no good whose tokens zlib makes more than so "
        "many times shorter, as it repeats itself. Default: the folder's.",
    )
    logprob_threshold: Real | None = Field(
        default=None,
        le=0,
        description="Of a model of speech: a text is no good whose mean log-probability a token is "
        "below. Default: the folder's.",
    )
    no_speech_threshold: Real | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Of a model of speech: a window is silence, and has no text, where that of "
        "no speech is more probable and the text is no good by logprob_threshold. Default: the "
        "folder's.",
    )

    @property
    def times_words(self) -> bool:
        """Whether it is to be found when each token is said."""
        return self.return_timestamps == WORD
