"""The input and output tensors of every task, as data. They are the public contract.

`config.pbtxt` is written from this table and requests are checked against it, so the two cannot
differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusewire.errors import ConfigurationError


@dataclass(frozen=True)
class TensorContract:
    """One tensor of a task. `dims` leave out the leading batch dimension; tensors of `generate`
    have none."""

    name: str
    dtype: str  # as written in config.pbtxt
    dims: tuple[int, ...]  # -1: any length
    optional: bool = False
    ragged: bool = False  # one execution may have requests of different lengths


def _ids(name: str) -> TensorContract:
    return TensorContract(name, "TYPE_INT64", (-1,), optional=True, ragged=True)


def _text(name: str) -> TensorContract:
    return TensorContract(name, "TYPE_STRING", (1,), optional=True, ragged=True)


# A request has text_input or input_ids. text_pair is in every contract, so that a task that does
# not support it can refuse it with its own message.
_INPUTS = (
    _text("text_input"),
    _text("text_pair"),
    _ids("input_ids"),
    _ids("attention_mask"),
    _ids("token_type_ids"),
)

# For a folder of images: a request has image or pixel_values, or a text for an embedder that
# compares texts with images. candidate_labels and text_input are listed for the same reason as
# text_pair.
_IMAGES = (
    _text("image"),
    TensorContract("pixel_values", "TYPE_FP32", (3, -1, -1), optional=True, ragged=True),
)
_IMAGE_INPUTS = {
    "label": (
        *_IMAGES,
        TensorContract("candidate_labels", "TYPE_STRING", (-1,), optional=True, ragged=True),
    ),
    "embed": (*_IMAGES, _text("text_input")),
}

_OUTPUTS: dict[str, tuple[TensorContract, ...]] = {
    "embed": (TensorContract("embedding", "TYPE_FP32", (-1,)),),
    "hidden": (TensorContract("last_hidden_state", "TYPE_FP32", (-1, -1)),),
    "classify": (
        TensorContract("scores", "TYPE_FP32", (-1,)),
        TensorContract("label", "TYPE_STRING", (1,)),
    ),
    "tag": (TensorContract("entities", "TYPE_STRING", (1,)),),
    "answer": (TensorContract("answer", "TYPE_STRING", (1,)),),
    "fill": (TensorContract("candidates", "TYPE_STRING", (1,)),),
}
_IMAGE_OUTPUTS = {"label": _OUTPUTS["classify"], "embed": _OUTPUTS["embed"]}

ENCODER_TASKS = tuple(_OUTPUTS)  # of folders of texts
IMAGE_TASKS = tuple(_IMAGE_INPUTS)
# All inputs of encoder and image tasks, in the order of the contracts.
ENCODER_INPUTS = tuple(dict.fromkeys([*_INPUTS, *_IMAGE_INPUTS["label"]]))

# The contract of vllm_backend, and token ids instead of a text. One prompt per request; any number
# of responses, each with n texts.
GENERATE = "generate"
# The same contract, for an encoder-decoder model with a text as its source.
SOURCE_TASKS = ("translate", "summarise")
# The same, with audio as the source.
TRANSCRIBE = "transcribe"
GENERATING = (GENERATE, *SOURCE_TASKS, TRANSCRIBE)
# The input `return_<name>` adds the output `<name>` to every response; sequences_scores only to the
# last response of a beam search.
RETURNED = (
    "finish_reason",
    "cumulative_logprob",
    "sequences_scores",
    "logprobs",
    "num_input_tokens",
    "num_cached_tokens",
    "num_output_tokens",
    "prompt_logprobs",
    "alignment",
)


# The same for transcription, which has no prompt_logprobs and no alignment.
TRANSCRIBE_RETURNED = (*RETURNED[:-2], "segments", "language", "duration")


def _one(name: str, dtype: str) -> TensorContract:
    return TensorContract(name, dtype, (1,), optional=True)


_GENERATE_INPUTS = (
    _one("text_input", "TYPE_STRING"),
    TensorContract("input_ids", "TYPE_INT64", (-1,), optional=True),
    _one("messages", "TYPE_STRING"),  # a JSON list, for the folder's chat template
    _one("stream", "TYPE_BOOL"),
    _one("sampling_parameters", "TYPE_STRING"),
    _one("exclude_input_in_output", "TYPE_BOOL"),
    *(_one(f"return_{name}", "TYPE_BOOL") for name in RETURNED),
)
_GENERATE_OUTPUTS = (
    TensorContract("text_output", "TYPE_STRING", (-1,)),
    TensorContract("finish_reason", "TYPE_STRING", (-1,)),
    TensorContract("cumulative_logprob", "TYPE_FP32", (-1,)),
    TensorContract("sequences_scores", "TYPE_FP32", (-1,)),
    TensorContract("logprobs", "TYPE_STRING", (-1,)),
    TensorContract("num_input_tokens", "TYPE_UINT32", (1,)),
    TensorContract("num_cached_tokens", "TYPE_UINT32", (1,)),
    TensorContract("num_output_tokens", "TYPE_UINT32", (-1,)),
    TensorContract("prompt_logprobs", "TYPE_STRING", (1,)),
    TensorContract("alignment", "TYPE_STRING", (-1,)),
)

_TRANSCRIBE_INPUTS = (
    _one("audio", "TYPE_STRING"),
    TensorContract("samples", "TYPE_FP32", (-1,), optional=True),
    _one("stream", "TYPE_BOOL"),
    _one("sampling_parameters", "TYPE_STRING"),
    *(_one(f"return_{name}", "TYPE_BOOL") for name in TRANSCRIBE_RETURNED),
)
_TRANSCRIBE_OUTPUTS = (
    *_GENERATE_OUTPUTS[:-2],
    TensorContract("segments", "TYPE_STRING", (-1,)),
    TensorContract("language", "TYPE_STRING", (1,)),
    TensorContract("duration", "TYPE_FP32", (1,)),  # seconds
)

TASKS = (*dict.fromkeys([*ENCODER_TASKS, *IMAGE_TASKS]), *GENERATING)


Contract = tuple[tuple[TensorContract, ...], tuple[TensorContract, ...]]


def contract(task: str, *, images: bool = False, decoder: bool = False) -> Contract:
    """Returns (inputs, outputs) of a task, for a folder of texts or of `images`. Raises
    ConfigurationError for an unknown task.

    A `decoder` has no `alignment` output, by which clients distinguish it from an encoder-decoder
    model. It has the inputs of both, so that it can refuse those it does not support with its own
    message.
    """
    if task == TRANSCRIBE:
        return _TRANSCRIBE_INPUTS, _TRANSCRIBE_OUTPUTS
    if task in GENERATING:
        return _GENERATE_INPUTS, _GENERATE_OUTPUTS[:-1] if decoder else _GENERATE_OUTPUTS
    if task not in TASKS:
        raise ConfigurationError(
            f"task: got {task!r}, wanted one of {', '.join(TASKS)}; "
            "name a task that the checkpoint has a head for"
        )
    if (images and task in IMAGE_TASKS) or task not in ENCODER_TASKS:
        return _IMAGE_INPUTS[task], _IMAGE_OUTPUTS[task]
    return _INPUTS, _OUTPUTS[task]
