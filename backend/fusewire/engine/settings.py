"""What an operator may set, unknown keys refused: what every engine has, and an encoder's.

Every field is a `parameters` key of config.pbtxt and a command-line flag under the same name.
Request parameters override those that `fusewire.tasks.parameters` lists for the task.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fusewire.errors import ConfigurationError

Pooling = Literal["cls", "mean", "max", "last"]
Aggregation = Literal["none", "simple", "first", "average", "max"]
ScoreFunction = Literal["none", "sigmoid", "softmax"]
Dtype = Literal["auto", "float32", "float16", "bfloat16"]

# A request's share of the work, so that one request cannot ask for an answer without bound.
MOST_CANDIDATES = 1000  # of one mask or question
MOST_REPLIES = 20_000  # candidates of one request, over all its masks
LONGEST_PROMPT = 1 << 14  # characters before each text
MOST_WINDOWS = 1000  # of one request, beyond the first of each text


class WrongSetting(ConfigurationError):
    """The worst of the types' complaints about settings."""

    def __init__(self, error: ValidationError, known: Iterable[str]) -> None:
        """`known`: the settings that there are."""
        # A misspelt name first: what it leaves unset is only its consequence.
        first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
        self.field = ".".join(str(part) for part in first["loc"])
        self.wanted = first["msg"].removeprefix("Input should be ").removeprefix("a valid ")
        got, remedy = f"got {str(first['input'])[:80]!r}", "correct or remove it"
        if first["type"] == "extra_forbidden":
            got, self.wanted = "got an unknown setting", f"one of {', '.join(known)}"
        elif first["type"] == "missing":
            got, self.wanted, remedy = "not set", "a value", "add it"
        super().__init__(f"{self.field}: {got}, wanted {self.wanted}; {remedy}")


class Settings(BaseModel):
    """What every engine has; a default of None means: as the checkpoint says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    threads: int = Field(
        default=0, ge=0, le=1024, description="CPU threads of kernels and tokenizer; 0: every core."
    )
    dtype: Dtype = Field(
        default="auto",
        description="Precision of the computation: float32, float16, bfloat16; auto: float32 on "
        "the CPU, float16 on a GPU.",
    )
    graphs: bool = Field(
        default=True,
        description="Record forwards as CUDA graphs and replay them; no effect on the CPU.",
    )

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise WrongSetting(error, type(self).model_fields) from None


class EngineSettings(Settings):
    """Settings of one encoder deployment."""

    truncate: bool = Field(
        default=False,
        description="Cut texts that are too long for the model instead of refusing them.",
    )
    max_length: int | None = Field(
        default=None,
        ge=1,
        description="Longest sequence served, in tokens with special tokens; at most what the "
        "model has positions for. Default: sentence-transformers' max_seq_length for embed, else "
        "the tokenizer's model_max_length, else the model's positions.",
    )
    max_batch_tokens: int = Field(
        default=16384,
        ge=1,
        le=1 << 24,
        description="Tokens computed at once; bounds the memory of a micro-batch.",
    )
    pooling: Pooling | None = Field(
        default=None,
        description="embed: how token vectors become one. Default: the sentence-transformers "
        "files, else mean.",
    )
    normalize: bool | None = Field(
        default=None,
        description="embed: scale embeddings to length 1. Default: the sentence-transformers "
        "files, else not.",
    )
    prompt: str | None = Field(
        default=None,
        max_length=LONGEST_PROMPT,
        description="embed: what stands before each text, instead of a prompt by name.",
    )
    prompt_name: str | None = Field(
        default=None,
        max_length=64,
        description="embed: which of the prompts in config_sentence_transformers.json stands "
        "before each text. Default: its default_prompt_name, else none.",
    )
    function_to_apply: ScoreFunction | None = Field(
        default=None,
        description="classify: from logits to scores. Default: by the configuration's "
        "problem_type and number of labels, as transformers does.",
    )
    aggregation_strategy: Aggregation = Field(
        default="none", description="tag: how tokens are grouped to entities, as in transformers."
    )
    top_k: int | None = Field(
        default=None,
        ge=1,
        le=MOST_CANDIDATES,
        description="fill, answer: how many candidates are returned. Default: fill 5, answer 1.",
    )
    doc_stride: int | None = Field(
        default=None,
        ge=0,
        description="answer: tokens that neighbouring windows of a long context share. Default: "
        "half the window, at most 128.",
    )
    max_answer_len: int = Field(
        default=15, ge=1, le=512, description="answer: longest answer, in tokens."
    )
    handle_impossible_answer: bool = Field(
        default=False, description="answer: allow the empty answer for a question without one."
    )
