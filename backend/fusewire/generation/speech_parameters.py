"""What only a model of speech can be asked for: what is heard and how it is written down, and which
texts are no good."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from fusewire.generation.seq2seq_parameters import LONGEST_LANGUAGE, MOST_PREFIX_TOKENS
from fusewire.text.written import Flag, Real, Text, Whole, flag_or

MOST_FALLBACKS = 16  # attempts at a window of audio
WORD = "word"  # timestamps of words


class SpeechParameters(BaseModel):
    """Parameters of models of speech, beside those of other encoder-decoder models."""

    language: Annotated[Text, Field(max_length=LONGEST_LANGUAGE)] | None = Field(
        default=None,
        description="Speech models: language of the audio, as a code or an English name (`de`, "
        "`german`). Default: the folder's, otherwise detected.",
    )
    task: Literal["transcribe", "translate"] | None = Field(
        default=None,
        description="Speech models: `transcribe` the audio, or `translate` it into English. "
        "Default: the folder's, otherwise `transcribe`.",
    )
    return_timestamps: Annotated[bool | Literal["word"], flag_or(WORD)] = Field(
        default=False,
        description='Speech models: return the start and end time of each segment or, with "word", '
        "also of each word. Default: the folder's.",
    )
    condition_on_prev_tokens: Flag = Field(
        default=False,
        description="Speech models, audio of several windows: the text of earlier windows precedes "
        "that of a window, up to half of the model's positions. Default: the folder's.",
    )
    prompt_ids: Annotated[tuple[Whole, ...], Field(max_length=MOST_PREFIX_TOKENS)] = Field(
        default=(),
        description="Speech models: tokens of a text that precedes that of each window or, with "
        "condition_on_prev_tokens, of the first window, to suggest names, spelling and style. The "
        "last tokens are used, up to half of the model's positions.",
    )
    fallback_temperatures: Annotated[
        tuple[Annotated[Real, Field(ge=0, le=100)], ...], Field(max_length=MOST_FALLBACKS)
    ] = Field(
        default=(),
        description="Speech models: a window whose text fails a threshold is decoded again with "
        "the next of these temperatures, until its text passes or none is left.",
    )
    compression_ratio_threshold: Real | None = Field(
        default=None,
        gt=0,
        description="Speech models: a text fails if zlib compresses its tokens by more than this "
        "ratio, which indicates repetition. Default: the folder's.",
    )
    logprob_threshold: Real | None = Field(
        default=None,
        le=0,
        description="Speech models: a text fails if its mean log-probability per token is below "
        "this. Default: the folder's.",
    )
    no_speech_threshold: Real | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Speech models: a window counts as silence, and has no text, if the "
        "probability of no speech is above this and its text fails logprob_threshold. Default: "
        "the folder's.",
    )

    @property
    def times_words(self) -> bool:
        """Whether it is to be found when each token is said."""
        return self.return_timestamps == WORD
