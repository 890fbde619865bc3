"""What only a model with an encoder can be asked for: of the source, and of how its text begins and
ends."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field

from fusewire.text.written import Flag, Real, Text, Whole, one_id_as_list

LONGEST_LANGUAGE = 64
# What a decoder begins with: it has at most the model's positions, which are checked later.
LONGEST_PREFIX = 16384  # characters
MOST_PREFIX_TOKENS = 4096
# Looked up at every step.
MOST_FORCED_TOKENS = 128


class Seq2SeqParameters(BaseModel):
    """Parameters of encoder-decoder models."""

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
            Field(min_length=1, max_length=MOST_FORCED_TOKENS),
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
        description="Of an encoder-decoder model: the beginning of the answer, after the token "
        "that the decoder begins with and forced_bos_token_id. The answer's text goes on from it "
        "and has it in front.",
    )
    decoder_input_ids: Annotated[tuple[Whole, ...], Field(max_length=MOST_PREFIX_TOKENS)] = Field(
        default=(),
        description="As target_prefix, as the ids of all that the decoder begins with, as Hugging "
        "Face's: decoder_start_token_id is put in front where it is not the first, and "
        "forced_bos_token_id has no effect after a longer beginning.",
    )
    alignment: Flag = Field(
        default=False,
        description="Of an encoder-decoder model: return how much each token attends to those "
        "of the source, in the mean over the heads of the last layer.",
    )
