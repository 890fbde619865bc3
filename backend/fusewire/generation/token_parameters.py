"""How the next token is chosen: sampling, penalties, and tokens that are not to come."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field

from fusewire.text.written import Flag, Real, Text, Whole, ids_as_keys, minus_one_as_zero

# Lists of ids, looked up at every step.
MOST_BIASES = 1024
MOST_SUPPRESSED = 1024
# Bad words: each is looked for at the end of the sequence at every step.
MOST_BAD_WORDS = 256
LONGEST_BAD_WORD = 64


class TokenParameters(BaseModel):
    """Parameters of one token after another."""

    do_sample: Flag = Field(
        default=False,
        description="Sample instead of taking the most likely token. Default: true if the request "
        "sets temperature, top_k, top_p, min_p or typical_p, otherwise the folder's, otherwise "
        "false (as in Hugging Face; vLLM samples). false: these five have no effect.",
    )
    temperature: Real = Field(
        default=1.0,
        ge=0,
        le=100,
        description="Divides the logits before sampling. 0: greedy, even with do_sample; others "
        "are at least 0.001. Speech models also take a list, as in transformers: the others become "
        "fallback_temperatures.",
    )
    top_k: Annotated[Whole, BeforeValidator(minus_one_as_zero)] = Field(
        default=0,
        ge=0,
        description="Sample from the k most likely tokens. 0, -1 or more than there are: from all "
        "(Hugging Face's default is 50).",
    )
    top_p: Real = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Sample from the smallest set of most likely tokens whose probabilities sum to "
        "top_p.",
    )
    min_p: Real = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Sample from tokens whose probability is at least min_p times that of the most "
        "likely token. 0: off.",
    )
    typical_p: Real = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Sample from the smallest set of most typical tokens whose probabilities sum "
        "to typical_p. 1: off.",
    )
    seed: Whole | None = Field(
        default=None,
        ge=-(2**63),
        lt=2**63,
        description="Makes sampling reproducible, whatever else runs, to the extent that logits "
        "are (on a GPU, batches of different sizes agree within rounding). The first of n "
        "sequences uses the seed itself, the others seeds derived from it and their index. "
        "Default: random.",
    )
    repetition_penalty: Real = Field(
        default=1.0,
        ge=0.01,
        le=100,
        description="Divides positive and multiplies negative logits of tokens that are in the "
        "prompt or the answer. 1: off.",
    )
    presence_penalty: Real = Field(
        default=0.0,
        ge=-2,
        le=2,
        description="Subtracted from the logits of tokens that were already generated.",
    )
    frequency_penalty: Real = Field(
        default=0.0,
        ge=-2,
        le=2,
        description="Subtracted from a token's logit once for each time it was generated.",
    )
    no_repeat_ngram_size: Whole = Field(
        default=0,
        ge=0,
        le=1024,
        description="No n-gram of this size occurs twice, including those of the prompt. 0: off.",
    )
    logit_bias: Annotated[
        dict[int, Annotated[Real, Field(ge=-100, le=100)]], BeforeValidator(ids_as_keys)
    ] = Field(
        default={},
        max_length=MOST_BIASES,
        description="Added to logits, by token id, before penalties and temperature.",
    )
    bad_words: Annotated[
        tuple[Annotated[Text, Field(max_length=LONGEST_BAD_WORD)], ...],
        Field(max_length=MOST_BAD_WORDS),
    ] = Field(
        default=(),
        description="Words that are never generated, with or without a space before them.",
    )
    bad_words_ids: Annotated[
        tuple[Annotated[tuple[Whole, ...], Field(min_length=1, max_length=LONGEST_BAD_WORD)], ...],
        Field(max_length=MOST_BAD_WORDS),
    ] = Field(
        default=(),
        description="As bad_words, but each word as a list of token ids. Default: the folder's.",
    )
    suppress_tokens: Annotated[tuple[Whole, ...], Field(max_length=MOST_SUPPRESSED)] = Field(
        default=(),
        description="Tokens that are never generated; unlike bad_words_ids this includes "
        "end-of-sequence tokens. Default: the folder's.",
    )
    begin_suppress_tokens: Annotated[tuple[Whole, ...], Field(max_length=MOST_SUPPRESSED)] = Field(
        default=(),
        description="As suppress_tokens, but only for the first token, or the one after "
        "forced_bos_token_id. Default: the folder's.",
    )

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken each time."""
        return not self.do_sample or self.temperature == 0
