"""Request parameters: which ones a task takes, their types, and how they override the settings.

A value has its own JSON type, or is that value written as a string. Nothing else is converted: 1 is
not true, 5.0 is not 5.
"""

from __future__ import annotations

from collections.abc import Mapping

from fusewire.errors import ConfigurationError, InvalidInput, sent
from fusewire.settings import EngineSettings, WrongSetting
from fusewire.text.written import written_flag, written_whole

# Parameters of requests. Operators may set these, and the fields that belong to no task (memory,
# threads).
REQUEST_PARAMETERS: dict[str, tuple[str, ...]] = {
    "embed": ("truncate", "max_length", "pooling", "normalize", "prompt", "prompt_name"),
    "hidden": ("truncate", "max_length"),
    "classify": ("truncate", "max_length", "function_to_apply"),
    "tag": ("truncate", "max_length", "aggregation_strategy"),
    "answer": ("max_length", "top_k", "doc_stride", "max_answer_len", "handle_impossible_answer"),
    "fill": ("truncate", "max_length", "top_k"),
}
# The same for folders of images.
IMAGE_PARAMETERS: dict[str, tuple[str, ...]] = {
    "embed": ("truncate", "normalize"),
    "label": ("function_to_apply", "hypothesis_template"),
}

_FLAGS = ("truncate", "normalize", "handle_impossible_answer")
_NUMBERS = ("max_length", "top_k", "doc_stride", "max_answer_len")
_EVERY_TASK = (
    "max_batch_tokens",
    "threads",
    "dtype",
    "quantize",
    "quantize_skip",
    "graphs",
    "slo_ms",
    "max_queue_ms",
)

Value = str | int | float | bool


def request_parameters(task: str, *, images: bool = False) -> tuple[str, ...]:
    """Returns the request parameters of a task for texts, or for `images`."""
    return (IMAGE_PARAMETERS if images else REQUEST_PARAMETERS)[task]


def task_settings(task: str, *, images: bool = False) -> tuple[str, ...]:
    """Returns the fields of EngineSettings that an encoder's task uses. For an unknown task these
    are the fields that every task uses."""
    return _EVERY_TASK + (IMAGE_PARAMETERS if images else REQUEST_PARAMETERS).get(task, ())


def check_settings(settings: EngineSettings, task: str, *, images: bool = False) -> None:
    """Raises ConfigurationError where an operator has set a field that this encoder's task does not
    use."""
    known = task_settings(task, images=images)
    for name, field in EngineSettings.model_fields.items():
        if name not in known and getattr(settings, name) != field.default:
            raise ConfigurationError(
                f"{name}: got {getattr(settings, name)!r} for the task {task}, wanted one of "
                f"{', '.join(known)}; remove it"
            )


def override(
    settings: EngineSettings,
    parameters: Mapping[str, Value],
    task: str,
    longest: int,
    *,
    images: bool = False,
) -> EngineSettings:
    """Returns the settings of one request. `longest`: the longest sequence of the deployment, which
    a request may only lower. Raises InvalidInput with the parameter, its value and the allowed
    values."""
    if not parameters:
        return settings
    values = settings.model_dump()
    known = request_parameters(task, images=images)
    for name, value in parameters.items():
        if name not in known:
            raise InvalidInput(
                name,
                sent(value),
                f"one of the parameters of {task} ({', '.join(known)})",
                "remove it",
            )
        values[name] = _typed(name, value)
    try:
        settings = EngineSettings(**values)
    except WrongSetting as wrong:
        got = sent(values[wrong.field])
        raise InvalidInput(wrong.field, got, wrong.wanted, "correct or remove it") from None
    if settings.max_length is not None and settings.max_length > longest:
        raise InvalidInput(
            "max_length",
            settings.max_length,
            f"at most {longest}, the longest this deployment serves",
            "lower or remove it",
        )
    return settings


def _typed(name: str, value: Value) -> Value:
    if name in _FLAGS:
        flag = written_flag(value)
        if isinstance(flag, bool):
            return flag
        wanted = "true or false"
    elif name in _NUMBERS:
        whole = written_whole(value)
        if isinstance(whole, int) and not isinstance(whole, bool):
            return whole
        wanted = "a whole number"
    else:
        if isinstance(value, str):
            return value
        wanted = "a word"
    raise InvalidInput(name, sent(value), wanted, "correct or remove it")
