"""How to generate: the parameters of one request, as Hugging Face and vLLM name them.

What a request says goes before the folder's generation_config.json. Where the two libraries differ,
the description of the field says what holds here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError

from fusewire.generation.spelling import layer, names_given, refusal
from fusewire.text.written import (
    Flag,
    Real,
    Whole,
    ids_as_keys,
    minus_one_as_zero,
    one_as_list,
    one_id_as_list,
    written_flag,
)

FIELD = "sampling_parameters"

# Sequences of one request: each takes pages and a row of every step.
MOST_SEQUENCES = 64
# Rows of every step; of each step twice as many candidates, or more.
MOST_BEAMS = 512
# So many times its beams a search keeps finished texts, which are sorted at every step.
MOST_PATIENCE = 16
# Powers of a length: neither 0 nor infinite at any length, in float64 where float32 has none.
LEAST_LENGTH_PENALTY = -5
MOST_LENGTH_PENALTY = 10
# Stop strings: an automaton's state a character, and as many characters held back in the stream.
MOST_STOPS = 16
LONGEST_STOP = 256
# Lists of ids, looked up at every step.
MOST_STOP_TOKENS = 128
MOST_BIASES = 1024
MOST_SUPPRESSED = 1024
# Bad words: each is looked for at the end of the sequence at every step.
MOST_BAD_WORDS = 256
LONGEST_BAD_WORD = 64
LONGEST_LANGUAGE = 64
# What a decoder begins with: it has at most the model's positions, which are checked later.
LONGEST_PREFIX = 16384  # characters
MOST_PREFIX_TOKENS = 4096
# Alternatives a token: each costs a search of the vocabulary and a part of the reply.
MOST_LOGPROBS = 20

MOST_FALLBACKS = 16  # attempts at a window of sound
WORD = "word"  # timestamps of words

Text = Annotated[str, Field(strict=True, min_length=1)]


def early_stopping_written(value: object) -> object:
    value = written_flag(value)
    if not isinstance(value, bool) and value != "never":
        raise ValueError('true, false or "never"')
    return value


def return_timestamps_written(value: object) -> object:
    value = written_flag(value)
    if not isinstance(value, bool) and value != WORD:
        raise ValueError('true, false or "word"')
    return value


class GenerationParameters(BaseModel):
    """Parameters of one request, complete. `model_fields_set`: those that the request named, for
    which alone it can be refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    _names: dict[str, str] = PrivateAttr(default_factory=dict)  # field -> as the request names it

    max_new_tokens: Whole | None = Field(
        default=None,
        ge=0,
        description="Most tokens generated for a sequence (also `max_tokens`). Default: as many as "
        "fit, unlike Hugging Face's total of 20 and vLLM's 16. 0: none, with prompt_logprobs.",
    )
    min_new_tokens: Whole = Field(
        default=0,
        ge=0,
        description="Minimum number of tokens before an end-of-sequence token, a stop token or a "
        "stop string can end a sequence, as in vLLM (also `min_tokens`). Hugging Face's "
        "holds back the end-of-sequence token alone.",
    )
    do_sample: Flag = Field(
        default=False,
        description="Sample instead of taking the likeliest token. Default: true if the request "
        "gives temperature, top_k, top_p, min_p or typical_p, else the folder's, else "
        "false (as Hugging Face; vLLM samples). false: these five have no effect.",
    )
    temperature: Real = Field(
        default=1.0,
        ge=0,
        le=100,
        description="Divides the logits before sampling. 0: greedy, even with do_sample. Of a "
        "model of speech also a list, as in transformers: the others are fallback_temperatures.",
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
    top_k: Annotated[Whole, BeforeValidator(minus_one_as_zero)] = Field(
        default=0,
        ge=0,
        description="Sample from the k likeliest tokens. 0 or -1: from all (Hugging Face's default "
        "is 50).",
    )
    top_p: Real = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Sample from the smallest set of likeliest tokens whose probabilities sum to "
        "top_p.",
    )
    min_p: Real = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Sample from tokens whose probability is at least min_p times that of the "
        "likeliest. 0: off.",
    )
    typical_p: Real = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Sample from the smallest set of most typical tokens whose probabilities sum "
        "to typical_p. 1: off.",
    )
    repetition_penalty: Real = Field(
        default=1.0,
        ge=0.01,
        le=100,
        description="Divides positive and multiplies negative logits of the tokens in prompt and "
        "answer. 1: off.",
    )
    presence_penalty: Real = Field(
        default=0.0,
        ge=-2,
        le=2,
        description="Subtracted from the logits of tokens that were generated before.",
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
        description="No n-gram of this size occurs twice, the prompt's included. 0: off.",
    )
    encoder_repetition_penalty: Real = Field(
        default=1.0,
        ge=0.01,
        le=100,
        description="Of an encoder-decoder model: multiplies positive and divides negative logits "
        "of the source's tokens, so that more of them are written. 1: off. Default: the folder's.",
    )
    encoder_no_repeat_ngram_size: Whole = Field(
        default=0,
        ge=0,
        le=1024,
        description="Of an encoder-decoder model: no n-gram of the source of this size is written. "
        "0: off. Default: the folder's.",
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
        description="As bad_words, each as its token ids. Default: the folder's.",
    )
    suppress_tokens: Annotated[tuple[Whole, ...], Field(max_length=MOST_SUPPRESSED)] = Field(
        default=(),
        description="Tokens that are never generated; unlike bad_words_ids those that end a text "
        "too. Default: the folder's.",
    )
    begin_suppress_tokens: Annotated[tuple[Whole, ...], Field(max_length=MOST_SUPPRESSED)] = Field(
        default=(),
        description="As suppress_tokens, of the first token alone, or of that behind "
        "forced_bos_token_id. Default: the folder's.",
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
        description="Tokens that end a sequence, besides the model's end-of-sequence tokens.",
    )
    ignore_eos: Flag = Field(
        default=False, description="Do not stop at the model's end-of-sequence tokens."
    )
    forced_bos_token_id: Whole | None = Field(
        default=None,
        ge=0,
        description="Of an encoder-decoder model: the first token generated, whatever the logits "
        "say, with log-probability 0; multilingual models take the target language so. Default: "
        "the folder's.",
    )
    forced_eos_token_id: (
        Annotated[
            tuple[Annotated[Whole, Field(ge=0)], ...],
            Field(min_length=1, max_length=MOST_STOP_TOKENS),
            BeforeValidator(one_id_as_list),
        ]
        | None
    ) = Field(
        default=None,
        description="Of an encoder-decoder model: the last token where max_new_tokens ends the "
        "text, whatever the logits say, with log-probability 0. Of a list: the lowest, or any of "
        "them with sampling. Default: the folder's.",
    )
    source_lang: Annotated[Text, Field(max_length=LONGEST_LANGUAGE)] | None = Field(
        default=None,
        description="Of a multilingual translation model: the language of the text, by the code "
        "that the model's tokenizer has for it (`eng_Latn`, `en_XX`, `en`). Default: the folder's.",
    )
    target_lang: Annotated[Text, Field(max_length=LONGEST_LANGUAGE)] | None = Field(
        default=None,
        description="Of a multilingual translation model: the language to translate into, in place "
        "of forced_bos_token_id.",
    )
    target_prefix: Annotated[Text, Field(max_length=LONGEST_PREFIX)] | None = Field(
        default=None,
        description="Of an encoder-decoder model: the beginning of the answer, behind the token "
        "that the decoder begins with and forced_bos_token_id. The answer's text goes on from it "
        "and has it in front.",
    )
    decoder_input_ids: Annotated[tuple[Whole, ...], Field(max_length=MOST_PREFIX_TOKENS)] = Field(
        default=(),
        description="As target_prefix, as the ids of all that the decoder begins with, as Hugging "
        "Face's: decoder_start_token_id is put in front where it is not the first, and "
        "forced_bos_token_id has no effect behind a longer beginning.",
    )
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
    return_timestamps: Annotated[
        bool | Literal["word"], BeforeValidator(return_timestamps_written)
    ] = Field(
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
    add_special_tokens: Flag = Field(
        default=True,
        description="Let the tokenizer add its special tokens to a text prompt. false: for a text "
        "that has them already, as chat templates write them.",
    )
    skip_special_tokens: Flag = Field(
        default=True, description="Leave special tokens out of the output."
    )
    include_stop_str_in_output: Flag = Field(
        default=False, description="Keep the stop string that ended the answer in the output."
    )
    num_beams: Whole = Field(
        default=1,
        ge=1,
        le=MOST_BEAMS,
        description="Beam search with so many beams, as Hugging Face's; 1: none. Default: the "
        "folder's, unless the request samples or names what does not go with beams. "
        "`use_beam_search: true`, as in vLLM: best_of or n of them.",
    )
    length_penalty: Real = Field(
        default=1.0,
        ge=LEAST_LENGTH_PENALTY,
        le=MOST_LENGTH_PENALTY,
        description="With beams: texts rank by the sum of their log-probabilities divided by their "
        "number of tokens to this power, the end-of-sequence token counted. 0: by the sum; above: "
        "longer texts gain. Default: the folder's.",
    )
    early_stopping: Annotated[bool | Literal["never"], BeforeValidator(early_stopping_written)] = (
        Field(
            default=False,
            description="With beams, when num_beams texts are found: true: end. false: end unless "
            'a beam at its present length could still be among the best. "never": unless it could '
            "at any length. Default: the folder's.",
        )
    )
    num_beam_groups: Whole = Field(
        default=1,
        ge=1,
        le=MOST_BEAMS,
        description="With beams: so many groups of num_beams / num_beam_groups search by "
        "themselves (diverse beam search), as in transformers 4.56. 1: none. Default: the "
        "folder's.",
    )
    diversity_penalty: Real = Field(
        default=0.0,
        ge=0,
        le=100,
        description="With num_beam_groups: subtracted from a token's log-probability for each "
        "beam of an earlier group that took it in the same step. Default: the folder's.",
    )
    patience: Real = Field(
        default=1.0,
        gt=0,
        le=MOST_PATIENCE,
        description="With beams: a search waits for round(num_beams * patience) finished texts "
        "where it else waits for num_beams, as CTranslate2's (Kasai et al., 2022); with groups for "
        "as many of each.",
    )
    renormalize_logits: Flag = Field(
        default=False,
        description="With beams: log-probabilities are normalised again after biases, bans and "
        "penalties. Default: the folder's.",
    )
    n: Whole = Field(
        default=1,
        ge=1,
        le=MOST_SEQUENCES,
        description="Number of sequences returned for the prompt (also `num_return_sequences`). "
        "Above 1 only with sampling, or with beams, of which it is the n best.",
    )
    best_of: Whole | None = Field(
        default=None,
        ge=1,
        le=MOST_SEQUENCES,
        description="Number of sequences generated, of which the n with the highest log-"
        "probability per token are returned. Default: n.",
    )
    seed: Whole | None = Field(
        default=None,
        ge=-(2**63),
        lt=2**63,
        description="Makes sampling repeatable, whatever else runs, as far as logits are (on a "
        "GPU, batches of different sizes agree within rounding). The first of n sequences "
        "uses the seed itself, the others seeds derived from it and their index. "
        "Default: random.",
    )
    logprobs: Whole | None = Field(
        default=None,
        ge=0,
        le=MOST_LOGPROBS,
        description="Return the log-probabilities of the k likeliest tokens at each step, and of "
        "the token taken. 0: of the token taken alone; with beams nothing else. Default: none.",
    )
    prompt_logprobs: Whole | None = Field(
        default=None,
        ge=0,
        le=MOST_LOGPROBS,
        description="As logprobs, of each token of the prompt but the first. Such a prompt is "
        "computed whole, whatever the prefix cache has. Not of encoder-decoder models.",
    )
    alignment: Flag = Field(
        default=False,
        description="Of an encoder-decoder model: return how much each token attends to those "
        "of the source, in the mean over the heads of the last layer.",
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
    def greedy(self) -> bool:
        """Whether the likeliest token is taken each time."""
        return not self.do_sample or self.temperature == 0

    @property
    def sequences(self) -> int:
        """How many are generated: num_beams, best_of, or n."""
        return self.num_beams if self.searches else self.best_of or self.n

    @property
    def searches(self) -> bool:
        """Whether by beam search."""
        return self.num_beams > 1

    @property
    def times_words(self) -> bool:
        """Whether it is to be found when each token is said."""
        return self.return_timestamps == WORD

    @property
    def answers(self) -> int:
        """How many sequences the engine tells of: of beams the n best alone."""
        return self.n if self.searches else self.sequences

    def named(self, field: str) -> str:
        """A field by the name that the request used."""
        return self._names.get(field, field)
