"""How long an answer is, where it ends, how many there are, and what is told of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field

from fusewire.text.written import Flag, Text, Whole, one_as_list

# Sequences of one request: each takes pages and a row of every step.
MOST_SEQUENCES = 64
# Stop strings: an automaton's state a character, and as many characters held back in the stream.
MOST_STOPS = 16
LONGEST_STOP = 256
MOST_STOP_TOKENS = 128  # looked up at every step
# Alternatives a token: each costs a search of the vocabulary and a part of the reply.
MOST_LOGPROBS = 20


class AnswerParameters(BaseModel):
    """Parameters of the text that is returned."""

    max_new_tokens: Whole | None = Field(
        default=None,
        ge=0,
        description="Maximum number of tokens to generate per sequence (also `max_tokens`). "
        "Default: as many as fit, unlike Hugging Face's total of 20 and vLLM's 16. 0: none, with "
        "prompt_logprobs.",
    )
    min_new_tokens: Whole = Field(
        default=0,
        ge=0,
        description="Minimum number of tokens before an end-of-sequence token, a stop token or a "
        "stop string can end a sequence, as in vLLM (also `min_tokens`). In Hugging Face it "
        "affects only the end-of-sequence token.",
    )
    stop: Annotated[
        tuple[Annotated[Text, Field(max_length=LONGEST_STOP)], ...],
        Field(max_length=MOST_STOPS),
        BeforeValidator(one_as_list),
    ] = Field(
        default=(),
        description="A string or a list of strings; the first occurrence in the answer ends it and "
        "is not part of the output. Special tokens match only if skip_special_tokens is "
        "false; use stop_token_ids for them.",
    )
    stop_token_ids: Annotated[tuple[Whole, ...], Field(max_length=MOST_STOP_TOKENS)] = Field(
        default=(),
        description="Tokens that end a sequence, in addition to the model's end-of-sequence "
        "tokens.",
    )
    ignore_eos: Flag = Field(
        default=False, description="Do not stop at the model's end-of-sequence tokens."
    )
    include_stop_str_in_output: Flag = Field(
        default=False, description="Keep the stop string that ended the answer in the output."
    )
    skip_special_tokens: Flag = Field(
        default=True, description="Remove special tokens from the output."
    )
    n: Whole = Field(
        default=1,
        ge=1,
        le=MOST_SEQUENCES,
        description="Number of sequences to return for the prompt (also `num_return_sequences`). "
        "More than 1 needs sampling or beam search, which returns the n best.",
    )
    best_of: Whole | None = Field(
        default=None,
        ge=1,
        le=MOST_SEQUENCES,
        description="Number of sequences to generate, of which the n with the highest mean "
        "log-probability per token are returned. Default: n.",
    )
    logprobs: Whole | None = Field(
        default=None,
        ge=0,
        le=MOST_LOGPROBS,
        description="Return the log-probabilities of the k most likely tokens at each step, and of "
        "the generated token. 0: of the generated token only; beam search takes no other value. "
        "Default: none.",
    )
