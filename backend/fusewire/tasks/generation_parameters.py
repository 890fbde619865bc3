"""How to generate: the parameters of one request, as Hugging Face and vLLM name them.

What a request says goes before the folder's generation_config.json. Where the two libraries differ,
the description of the field says what holds here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator

from fusewire.errors import InvalidInput
from fusewire.tasks.bounded_json import read_object
from fusewire.tasks.generation_checks import (
    GenerationLimits,
    canonical,
    check,
    give_way,
    layer,
    refusal,
)
from fusewire.tasks.no_effect import without_no_effect
from fusewire.tasks.written import Flag, Real, Whole, written_whole

FIELD = "sampling_parameters"

# Sequences of one request: each takes pages and a row of every step.
MOST_SEQUENCES = 64
# Stop strings: an automaton's state a character, and as many characters held back in the stream.
MOST_STOPS = 16
LONGEST_STOP = 256
# Lists of ids, looked up at every step.
MOST_STOP_TOKENS = 128
MOST_BIASES = 1024
# Bad words: each is looked for at the end of the sequence at every step.
MOST_BAD_WORDS = 256
LONGEST_BAD_WORD = 64
# Alternatives a token: each costs a search of the vocabulary and a part of the reply.
MOST_LOGPROBS = 20

_ID = re.compile("0|[1-9][0-9]{0,18}")

Text = Annotated[str, Field(strict=True, min_length=1)]


class GenerationParameters(BaseModel):
    """Parameters of one request, complete. `model_fields_set`: those that the request named, for
    which alone it can be refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    _names: dict[str, str] = PrivateAttr(default_factory=dict)  # field -> as the request names it

    max_new_tokens: Whole | None = Field(
        default=None,
        ge=1,
        description="Most tokens generated for a sequence (also `max_tokens`). Default: as many as "
        "fit, unlike Hugging Face's total of 20 and vLLM's 16.",
    )
    min_new_tokens: Whole = Field(
        default=0,
        ge=0,
        description="Tokens before which nothing ends a sequence: no end-of-sequence token, stop "
        "token or stop string (also `min_tokens`). As vLLM; Hugging Face's holds back eos alone.",
    )
    do_sample: Flag = Field(
        default=False,
        description="Draw tokens instead of taking the likeliest. Absent: true where temperature, "
        "top_k, top_p, min_p or typical_p is given beside it, else as the folder says, else false "
        "(as Hugging Face; vLLM would sample). false: the five have no effect.",
    )
    temperature: Real = Field(
        default=1.0,
        ge=0,
        le=100,
        description="Divides the logits before drawing. 0: greedy, also beside do_sample.",
    )
    top_k: Whole = Field(
        default=0,
        ge=0,
        description="Draw from the k likeliest tokens alone. 0 or -1: from all, which is the "
        "default (Hugging Face's is 50).",
    )
    top_p: Real = Field(
        default=1.0, gt=0, le=1, description="Draw from the fewest likeliest tokens of this mass."
    )
    min_p: Real = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Draw from tokens at least this probable relative to the likeliest. 0: off.",
    )
    typical_p: Real = Field(
        default=1.0, gt=0, le=1, description="Mass of locally typical sampling. 1: off."
    )
    repetition_penalty: Real = Field(
        default=1.0,
        ge=0.01,
        le=100,
        description="Divides positive and multiplies negative logits of the tokens of prompt and "
        "answer. 1: off.",
    )
    presence_penalty: Real = Field(
        default=0.0, ge=-2, le=2, description="Subtracted from logits of tokens generated before."
    )
    frequency_penalty: Real = Field(
        default=0.0,
        ge=-2,
        le=2,
        description="Subtracted from a token's logit as often as it was generated.",
    )
    no_repeat_ngram_size: Whole = Field(
        default=0,
        ge=0,
        le=1024,
        description="No n tokens in a row come twice, the prompt's included. 0: off.",
    )
    logit_bias: dict[int, Annotated[Real, Field(ge=-100, le=100)]] = Field(
        default={},
        max_length=MOST_BIASES,
        description="Added to the logits of tokens by id, before penalties and temperature.",
    )
    bad_words: Annotated[
        tuple[Annotated[Text, Field(max_length=LONGEST_BAD_WORD)], ...],
        Field(max_length=MOST_BAD_WORDS),
    ] = Field(
        default=(),
        description="Words whose tokens are never generated in a row, as they are spelled behind "
        "a space and without one.",
    )
    stop: Annotated[
        tuple[Annotated[Text, Field(max_length=LONGEST_STOP)], ...], Field(max_length=MOST_STOPS)
    ] = Field(
        default=(),
        description="A string or several, whose first occurrence in the answer ends it. They are "
        "not part of the output. Special tokens are no text, unless skip_special_tokens is false: "
        "stop_token_ids ends at them.",
    )
    stop_token_ids: Annotated[tuple[Whole, ...], Field(max_length=MOST_STOP_TOKENS)] = Field(
        default=(), description="Tokens that end a sequence, beside the model's own."
    )
    ignore_eos: Flag = Field(
        default=False, description="Go on behind the model's end-of-sequence tokens."
    )
    add_special_tokens: Flag = Field(
        default=True,
        description="Put the tokenizer's special tokens around the prompt, if it is a text. false: "
        "it has them, as chat templates write them.",
    )
    skip_special_tokens: Flag = Field(
        default=True, description="Leave special tokens out of the text."
    )
    include_stop_str_in_output: Flag = Field(
        default=False, description="Leave the stop string that ended the answer in the output."
    )
    n: Whole = Field(
        default=1,
        ge=1,
        le=MOST_SEQUENCES,
        description="Answers to the prompt. More than 1 only where tokens are drawn.",
    )
    best_of: Whole | None = Field(
        default=None,
        ge=1,
        le=MOST_SEQUENCES,
        description="Sequences generated, of which the n likeliest are answered. Default: n.",
    )
    seed: Whole | None = Field(
        default=None,
        ge=-(2**63),
        lt=2**63,
        description="Makes draws repeatable, whatever else runs, as far as logits are (on a GPU in "
        "another batch they are equal within rounding): the first of n sequences draws by this "
        "seed, the others by seeds mixed from it and their index. Default: another each time.",
    )
    logprobs: Whole | None = Field(
        default=None,
        ge=0,
        le=MOST_LOGPROBS,
        description="Log-probabilities of so many likeliest tokens at each step, and of the token "
        "taken. 0: of that alone. Default: none.",
    )
    priority: Whole = Field(
        default=0,
        ge=-1000,
        le=1000,
        description="Of requests that wait, the lower goes first, as in vLLM.",
    )
    timeout_seconds: Real | None = Field(
        default=None,
        gt=0,
        le=86400,
        description="From arrival to the last token; then the request fails. Default: none.",
    )

    @field_validator("stop", mode="before")
    @classmethod
    def _one_is_a_list_of_one(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("top_k", mode="before")
    @classmethod
    def _all_is_off(cls, value: Any) -> Any:
        whole = written_whole(value)
        return 0 if type(whole) is int and whole == -1 else value

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _keys_are_ids(cls, value: Any) -> Any:
        """JSON's keys are strings. One spelling an id, so that none is given twice."""
        if not isinstance(value, dict):
            return value
        for key in value:
            if type(key) is not int and not (isinstance(key, str) and _ID.fullmatch(key)):
                raise ValueError(f"token ids as keys, not {str(key)[:40]!r}")
        return {int(key): bias for key, bias in value.items()}

    def __init__(self, /, **values: Any) -> None:
        """From what is asked, aliases and nulls included. InvalidInput names the parameter, its
        value, what it may be and the remedy."""
        try:
            super().__init__(**layer(values))
        except ValidationError as error:
            raise refusal(error, values, list(type(self).model_fields)) from None
        self._names = {canonical(name): name for name in values}

    @classmethod
    def of(
        cls,
        asked: Mapping[str, Any],
        limits: GenerationLimits,
        defaults: Mapping[str, Any] | None = None,
    ) -> GenerationParameters:
        """What is asked, checked and completed by `defaults`, as `generation_defaults` makes them:
        those that do not fit what is asked, or the limits, give way. InvalidInput."""
        given = without_no_effect(
            {name: value for name, value in asked.items() if value is not None}
        )
        named = layer(given)
        others = {"do_sample": False, **(defaults or {})}
        parameters = cls(**{k: v for k, v in others.items() if k not in named}, **given)
        fitting = {**dict(parameters), **give_way(parameters, limits, named)}
        parameters = cls.model_construct(set(named), **fitting)
        parameters._names = {canonical(name): name for name in given}
        check(parameters, limits)
        return parameters

    @classmethod
    def parse(
        cls, text: bytes, limits: GenerationLimits, defaults: Mapping[str, Any] | None = None
    ) -> GenerationParameters:
        """As `of`, from a request's JSON object; a null is a parameter not given."""
        return cls.of(read_object(FIELD, text), limits, defaults)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken each time."""
        return not self.do_sample or self.temperature == 0

    @property
    def sequences(self) -> int:
        """How many are generated: best_of, or n."""
        return self.best_of or self.n

    def named(self, field: str) -> str:
        """A field by the name that the request used."""
        return self._names.get(field, field)

    def new_tokens(self, prompt_tokens: int, limits: GenerationLimits) -> int:
        """Most tokens to generate for each sequence behind a prompt of that length; InvalidInput
        where what was asked does not fit."""
        room = limits.max_length - prompt_tokens
        if room < 1:
            raise InvalidInput(
                "text_input",
                f"{prompt_tokens} tokens",
                f"at most {limits.max_length - 1}, which leave room for one new token",
                "shorten the prompt",
            )
        for name in ("max_new_tokens", "min_new_tokens"):
            asked = getattr(self, name)
            if name in self.model_fields_set and asked is not None and asked > room:
                raise InvalidInput(
                    self.named(name),
                    asked,
                    f"at most {room}, the context length of {limits.max_length} less the "
                    f"{prompt_tokens} tokens of the prompt",
                    "lower it or shorten the prompt",
                )
        most = self.max_new_tokens or max(1, limits.max_request_tokens // self.sequences)
        return min(room, most)
