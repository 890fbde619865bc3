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
        description="Encoder-decoder models: multiplies positive and divides negative logits of "
        "the tokens in the source, so that they become more likely. 1: off. Default: the "
        "folder's.",
    )
    encoder_no_repeat_ngram_size: Whole = Field(
        default=0,
        ge=0,
        le=1024,
        description="Encoder-decoder models: no n-gram of this size from the source is generated. "
        "0: off. Default: the folder's.",
    )
    forced_bos_token_id: Whole | None = Field(
        default=None,
        ge=0,
        description="Encoder-decoder models: the first generated token, whatever the logits are, "
        "with log-probability 0. Multilingual models use it for the target language. Default: the "
        "folder's.",
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
        description="Encoder-decoder models: the last token of a sequence that reaches "
        "max_new_tokens, whatever the logits are, with log-probability 0. If it is a list: the "
        "lowest, or with sampling any of them. Default: the folder's.",
    )
    source_lang: Annotated[Text, Field(max_length=LONGEST_LANGUAGE)] | None = Field(
        default=None,
        description="Multilingual translation models: language of the text, as a code of the "
        "model's tokenizer (`eng_Latn`, `en_XX`, `en`). Default: the folder's.",
    )
    target_lang: Annotated[Text, Field(max_length=LONGEST_LANGUAGE)] | None = Field(
        default=None,
        description="Multilingual translation models: language to translate into; replaces "
        "forced_bos_token_id.",
    )
    target_prefix: Annotated[Text, Field(max_length=LONGEST_PREFIX)] | None = Field(
        default=None,
        description="Encoder-decoder models: the beginning of the answer, which follows the "
        "decoder's start token and forced_bos_token_id. The answer continues it and includes it.",
    )
    decoder_input_ids: Annotated[tuple[Whole, ...], Field(max_length=MOST_PREFIX_TOKENS)] = Field(
        default=(),
        description="As target_prefix, but as all ids that the decoder starts from, as in Hugging "
        "Face: decoder_start_token_id is prepended if it is not the first, and "
        "forced_bos_token_id has no effect after more than that.",
    )
    alignment: Flag = Field(
        default=False,
        description="Encoder-decoder models: return how much each token attends to those of the "
        "source, averaged over the heads of the last layer.",
    )
