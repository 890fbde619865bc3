"""How to generate: the parameters of one request, as Hugging Face and vLLM name them.

What a request says goes before the folder's generation_config.json. Where the two libraries differ,
the description of the field says what holds here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, Field, PrivateAttr, ValidationError

from fusewire.generation.answer_parameters import MOST_LOGPROBS, AnswerParameters
from fusewire.generation.beam_parameters import BeamParameters
from fusewire.generation.seq2seq_parameters import Seq2SeqParameters
from fusewire.generation.speech_parameters import SpeechParameters
from fusewire.generation.spelling import layer, names_given, refusal
from fusewire.generation.token_parameters import TokenParameters
from fusewire.text.written import Flag, Real, Whole

FIELD = "sampling_parameters"


class GenerationParameters(
    SpeechParameters, Seq2SeqParameters, BeamParameters, TokenParameters, AnswerParameters
):
    """Parameters of one request, complete. `model_fields_set`: those that the request named, for
    which alone it can be refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    _names: dict[str, str] = PrivateAttr(default_factory=dict)  # field -> as the request names it

    add_special_tokens: Flag = Field(
        default=True,
        description="Let the tokenizer add its special tokens to a text prompt. false: for a text "
        "that already contains them, such as the output of a chat template.",
    )
    prompt_logprobs: Whole | None = Field(
        default=None,
        ge=0,
        le=MOST_LOGPROBS,
        description="As logprobs, for each token of the prompt except the first. The whole prompt "
        "is computed, also the part that is in the prefix cache. Not for encoder-decoder models.",
    )
    priority: Whole = Field(
        default=0,
        ge=-1000,
        le=1000,
        description="Among waiting requests, lower numbers run first, as in vLLM.",
    )
    timeout_seconds: Real | None = Field(
        default=None,
        gt=0,
        le=86400,
        description="Time limit from arrival to the last token; a request that exceeds it fails. "
        "Default: none.",
    )

    def __init__(self, /, **values: Any) -> None:
        """From a request's values, aliases and nulls included. InvalidInput names the parameter,
        its value, what it may be and the remedy."""
        try:
            super().__init__(**layer(values))
        except ValidationError as error:
            raise refusal(error, values, list(type(self).model_fields)) from None
        self._names = names_given(values)

    @classmethod
    def completed(cls, given: Mapping[str, Any], values: Mapping[str, Any]) -> GenerationParameters:
        """What a request has `given`, completed to `values` of all fields, which are right."""
        parameters = cls.model_construct(set(layer(given)), **values)
        parameters._names = names_given(given)
        return parameters

    @property
    def max_tokens(self) -> int | None:
        """vLLM's name of max_new_tokens."""
        return self.max_new_tokens

    @property
    def min_tokens(self) -> int:
        """vLLM's name of min_new_tokens."""
        return self.min_new_tokens

    @property
    def sequences(self) -> int:
        """How many are generated: num_beams, best_of, or n."""
        return self.num_beams if self.searches else self.best_of or self.n

    @property
    def answers(self) -> int:
        """How many sequences the engine tells of: of beams the n best alone."""
        return self.n if self.searches else self.sequences

    def named(self, field: str) -> str:
        """A field by the name that the request used."""
        return self._names.get(field, field)
