"""Settings of all engines, and those of encoder engines; unknown keys are refused.

Every field is a `parameters` key of config.pbtxt and a command-line flag of the same name; its
`group` is the section of the help that lists it. Request parameters override those that
`fusewire.tasks.parameters` lists for the task.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

from fusewire.errors import ConfigurationError, sent

Pooling = Literal["cls", "mean", "max", "last"]
Aggregation = Literal["none", "simple", "first", "average", "max"]
ScoreFunction = Literal["none", "sigmoid", "softmax"]
Dtype = Literal["auto", "float32", "float16", "bfloat16"]
Quantize = Literal["none", "int8", "fp8"]

# Limits of a single request: without them one request could ask for an unbounded answer.
MOST_CANDIDATES = 1000  # per mask or question
MOST_REPLIES = 20_000  # candidates per request, over all its masks
LONGEST_PROMPT = 1 << 14  # characters before each text
_MOST_MS = 86_400_000.0  # a day
MOST_WINDOWS = 1000  # per request, beyond the first of each text


def names(text: str) -> frozenset[str]:
    """Returns the names in a setting that lists them separated by commas."""
    return frozenset(filter(None, map(str.strip, text.split(","))))


def check_max_length(wanted: int | None, positions: int) -> None:
    """Raises ConfigurationError where the setting exceeds the number of positions of the model."""
    if wanted is not None and wanted > positions:
        raise ConfigurationError(
            f"max_length: got {wanted}, wanted at most {positions}, the positions that the model "
            "has; lower or remove it"
        )


def closest(name: str, known: Iterable[str]) -> str:
    """Returns "did you mean NAME? " with the known name that is most similar, or "" if none is."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {found[0]}? " if found else ""


class WrongSetting(ConfigurationError):
    """The first violation that the validation of settings found."""

    def __init__(self, error: ValidationError, known: Iterable[str]) -> None:
        """`known`: the names of all settings."""
        # Report a misspelt name first: a missing value may be only its consequence.
        first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
        self.field = ".".join(str(part) for part in first["loc"])
        self.wanted = first["msg"].removeprefix("Input should be ").removeprefix("a valid ")
        got, remedy = f"got {sent(first['input'])}", "correct or remove it"
        if first["type"] == "extra_forbidden":
            known = list(known)
            got, self.wanted = "got an unknown setting", f"one of {', '.join(known)}"
            remedy = f"{closest(self.field, known)}{remedy}"
        elif first["type"] == "tuple_type":  # in files and JSON it is a list
            self.wanted = "list"
        elif first["type"] == "missing":
            got, self.wanted, remedy = "not set", "a value", "add it"
        super().__init__(f"{self.field}: {got}, wanted {self.wanted}; {remedy}")


class StrictSettings(BaseModel):
    """Settings that refuse unknown names, booleans for numbers, and numbers that are not finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_flag_for_a_number(cls, value: object, info: ValidationInfo) -> object:
        annotation = cls.model_fields[str(info.field_name)].annotation
        kinds = get_args(annotation) or (annotation,)
        if isinstance(value, bool) and bool not in kinds and {int, float} & {*kinds}:
            raise PydanticKnownError("int_type" if int in kinds else "float_type")
        return value


class Settings(StrictSettings):
    """Settings of every engine; a default of None means: as the checkpoint says."""

    threads: int = Field(
        default=0,
        ge=0,
        le=256,
        description="CPU threads of kernels and tokenizer; 0: one per core, 256 at most.",
        json_schema_extra={"group": "model"},
    )
    dtype: Dtype = Field(
        default="auto",
        description="Data type of weights and computation. auto: float32 on the CPU, float16 on a "
        "GPU, or bfloat16 for models whose hidden states overflow float16 (T5). On the CPU "
        "bfloat16 is the storage format of the matrices only, and the computation is in float32.",
        json_schema_extra={"group": "model"},
    )
    quantize: Quantize = Field(
        default="none",
        description="Format of the weight matrices of the model's layers. int8: on the CPU also of "
        "token embeddings and language-model heads, a quarter of float32's memory; on GPUs half "
        "of float16's. fp8, on Hopper GPUs: float8 e4m3, half of float16's memory.",
        json_schema_extra={"group": "model"},
    )
    quantize_skip: str = Field(
        default="",
        max_length=1 << 20,
        description="Matrices that stay in dtype, or in the folder's 4 bits, by the names that "
        "`fusewire import --quantize` prints, separated by commas. `fusewire import` sets it by "
        "measurement.",
        json_schema_extra={"group": "model"},
    )
    graphs: bool = Field(
        default=True,
        description="Capture CUDA graphs of forward passes and replay them. No effect on the CPU.",
        json_schema_extra={"group": "model"},
    )
    slo_ms: float | None = Field(
        default=None,
        gt=0,
        le=_MOST_MS,
        description="Latency objective in milliseconds: the deadline, from its arrival, of a "
        "request without one. Default: no deadline.",
        json_schema_extra={"group": "batching"},
    )
    max_queue_ms: float | None = Field(
        default=None,
        gt=0,
        le=_MOST_MS,
        description="Longest predicted wait in milliseconds: a request that would wait longer is "
        "rejected at once. Default: no limit.",
        json_schema_extra={"group": "batching"},
    )

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise WrongSetting(error, type(self).model_fields) from None

    @field_validator("quantize_skip", mode="before")
    @classmethod
    def _list_of_names(cls, given: Any) -> Any:
        """Accepts a list of names, as Python code passes it."""
        listed = isinstance(given, (list, tuple, set, frozenset))
        texts = listed and all(isinstance(each, str) for each in given)
        return ",".join(given) if texts else given

    @property
    def quantize_skipped(self) -> frozenset[str]:
        return names(self.quantize_skip)


class EngineSettings(Settings):
    """Settings of one encoder deployment."""

    truncate: bool = Field(
        default=False,
        description="Truncate texts longer than max_length instead of rejecting them.",
        json_schema_extra={"group": "model"},
    )
    max_length: int | None = Field(
        default=None,
        ge=1,
        description="Maximum sequence length in tokens, special tokens included; at most the "
        "model's number of positions. Default: for embed max_seq_length of the "
        "sentence-transformers files, else the tokenizer's model_max_length, else the model's "
        "number of positions.",
        json_schema_extra={"group": "model"},
    )
    max_batch_tokens: int = Field(
        default=16384,
        ge=1,
        le=1 << 24,
        description="Maximum number of tokens in a micro-batch; bounds its memory.",
        json_schema_extra={"group": "batching"},
    )
    pooling: Pooling | None = Field(
        default=None,
        description="embed: how token vectors are pooled into one. Default: as the "
        "sentence-transformers files say, else mean.",
        json_schema_extra={"group": "model"},
    )
    normalize: bool | None = Field(
        default=None,
        description="embed: scale embeddings to length 1 (L2). Default: as the "
        "sentence-transformers files say, else false.",
        json_schema_extra={"group": "model"},
    )
    prompt: str | None = Field(
        default=None,
        max_length=LONGEST_PROMPT,
        description="embed: text put before each text, in place of a prompt by name.",
        json_schema_extra={"group": "model"},
    )
    prompt_name: str | None = Field(
        default=None,
        max_length=64,
        description="embed: name of the prompt in config_sentence_transformers.json to put before "
        "each text. Default: its default_prompt_name, else none.",
        json_schema_extra={"group": "model"},
    )
    function_to_apply: ScoreFunction | None = Field(
        default=None,
        description="classify, label: the function from logits to scores. Default: chosen from "
        "the problem_type and the number of labels in config.json, as in transformers.",
        json_schema_extra={"group": "model"},
    )
    hypothesis_template: str | None = Field(
        default=None,
        max_length=1024,
        description="label: the sentence that each of a request's candidate_labels is put into, in "
        "the place of {}. Default: 'This is a photo of {}.'",
        json_schema_extra={"group": "model"},
    )
    aggregation_strategy: Aggregation = Field(
        default="none",
        description="tag: how tokens are grouped into entities, as in transformers.",
        json_schema_extra={"group": "model"},
    )
    top_k: int | None = Field(
        default=None,
        ge=1,
        le=MOST_CANDIDATES,
        description="fill, answer: number of candidates returned. Default: fill 5, answer 1.",
        json_schema_extra={"group": "model"},
    )
    doc_stride: int | None = Field(
        default=None,
        ge=0,
        description="answer: overlap in tokens between neighbouring windows of a long context. "
        "Default: half the window, at most 128.",
        json_schema_extra={"group": "model"},
    )
    max_answer_len: int = Field(
        default=15,
        ge=1,
        le=512,
        description="answer: maximum length of an answer in tokens.",
        json_schema_extra={"group": "model"},
    )
    handle_impossible_answer: bool = Field(
        default=False,
        description="answer: allow the empty answer to a question that the context does not "
        "answer.",
        json_schema_extra={"group": "model"},
    )
