"""Every setting of serving, described once: config.pbtxt parameters, import options, server flags.

A field is a `parameters` key of config.pbtxt (ModelSettings, GeneratorSettings) and, in all four
classes, under the same name a command-line flag, an environment variable of `serve` and a key of
its YAML file; its `group` is the section of the help that lists it. Unknown names are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError, field_validator
from pydantic.config import JsonDict

from fusewire import devices
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.errors import ConfigurationError
from fusewire.serving.server_settings import ServerSettings
from fusewire.settings import EngineSettings, StrictSettings, WrongSetting, names
from fusewire.tasks.contract import GENERATING
from fusewire.tasks.parameters import task_settings

Settings = TypeVar("Settings", bound=BaseModel)

# Model names become part of paths, URLs and log lines, so they have plain characters only.
NAME_PATTERN = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"

_TENANT_PATTERN = r"[A-Za-z0-9._-]{1,64}"
_MOST_METRIC_TENANTS = 16

_MODEL: JsonDict = {"group": "model"}
_BATCHING: JsonDict = {"group": "batching"}

_TASK = (
    "embed, hidden, classify, tag, answer, fill, label, generate or transcribe; translate and "
    "summarise are generate of encoder-decoder models. Default: by `architectures` in the model's "
    "config.json."
)


class _Served(StrictSettings):
    """The `parameters` of any model's config.pbtxt that are not settings of its engine."""

    task: str = Field(description=_TASK, json_schema_extra=_MODEL)
    reloads: int = Field(
        default=0,
        ge=0,
        description="How often the watchdog has reloaded the model; set by the watchdog alone.",
        json_schema_extra=_MODEL,
    )
    metric_tenants: str = Field(
        default="",
        description="Tenants whose requests metrics count under their own names, with commas "
        f"between them, at most {_MOST_METRIC_TENANTS}; all others are counted as `other`, "
        "requests that name no tenant as `none`.",
        json_schema_extra=_MODEL,
    )

    @field_validator("metric_tenants")
    @classmethod
    def _few_and_plain(cls, tenants: str) -> str:
        named = names(tenants)
        for name in named:
            if not re.fullmatch(_TENANT_PATTERN, name) or name in ("none", "other"):
                raise ConfigurationError(
                    f"metric_tenants: got {name[:80]!r}, wanted names of 1 to 64 letters, digits, "
                    "'.', '_' or '-', none of them 'none' or 'other'; rename or remove it"
                )
        if len(named) > _MOST_METRIC_TENANTS:
            raise ConfigurationError(
                f"metric_tenants: got {len(named)} names, wanted at most {_MOST_METRIC_TENANTS}, "
                "as each has series of its own; name those that matter"
            )
        return tenants

    @property
    def metric_tenants_named(self) -> frozenset[str]:
        return names(self.metric_tenants)

    def parameters(self) -> dict[str, str]:
        """Returns the parameters for config.pbtxt: the task, and the settings that differ from
        their defaults."""
        fields = type(self).model_fields
        return {
            name: _text(value)
            for name, value in self
            if name == "task" or value != fields[name].default
        }


class ModelSettings(_Served, EngineSettings):
    """The `parameters` of an encoder's config.pbtxt."""

    def engine(self) -> EngineSettings:
        """Returns the settings of the engine."""
        return EngineSettings(**{key: getattr(self, key) for key in EngineSettings.model_fields})


class GeneratorSettings(_Served, GenerationSettings):
    """The `parameters` of a generative model's config.pbtxt."""

    task: Literal["generate", "translate", "summarise", "transcribe"] = Field(
        description=_TASK, json_schema_extra=_MODEL
    )

    def engine(self) -> GenerationSettings:
        """Returns the settings of the engine."""
        fields = GenerationSettings.model_fields
        return GenerationSettings(**{key: getattr(self, key) for key in fields})


class Deployment(StrictSettings):
    """How a model is run: the rest of its config.pbtxt."""

    instances: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Number of processes that serve the model on each of its devices; each holds "
        "the weights. With two on a GPU, one tokenises while the other computes.",
        json_schema_extra=_MODEL,
    )
    device: str = Field(
        default="auto",
        description="Where the model runs: cpu, cuda (the first GPU), cuda:N, or several as "
        "cuda:0,1. auto: the first GPU if machine and build support one, else the CPU.",
        json_schema_extra=_MODEL,
    )
    max_batch_size: int = Field(
        default=128,
        ge=1,
        le=4096,
        description="Maximum number of rows in a batch and in a request; memory is bounded by "
        "max_batch_tokens, not by this. Not for generate.",
        json_schema_extra=_BATCHING,
    )
    queue_delay_us: int = Field(
        default=200,
        ge=0,
        le=1_000_000,
        description="Maximum batching delay in microseconds: how long the first request waits "
        "for others while the model is idle. Not for generate, which batches continuously.",
        json_schema_extra=_BATCHING,
    )
    version: int = Field(
        default=1,
        ge=1,
        le=1 << 30,
        description="Number of the version folder to write.",
        json_schema_extra=_MODEL,
    )
    versions_served: int = Field(
        default=1,
        ge=1,
        le=64,
        description="How many of the latest versions are loaded.",
        json_schema_extra=_MODEL,
    )

    @field_validator("device")
    @classmethod
    def _known(cls, device: str) -> str:
        devices.gpus_of(device)
        return device


# Fields of Deployment that generative models do not have, as their steps take requests at any time.
BATCHING = ("max_batch_size", "queue_delay_us")
# The settings of `serve`, and those of them without a flag and an environment variable.
SERVE = (ServerSettings, Deployment, ModelSettings, GeneratorSettings)
SERVE_WITHOUT = ("reloads", "version", "versions_served", "tritonserver_args")


def model_settings(values: Mapping[str, Any]) -> ModelSettings | GeneratorSettings:
    """Returns the settings of a model for its task. Raises ConfigurationError also for settings of
    other tasks."""
    task = values.get("task")
    kinds: list[type[ModelSettings | GeneratorSettings]] = [ModelSettings, GeneratorSettings]
    own, other = reversed(kinds) if task in GENERATING else kinds
    for name in values:
        if name in other.model_fields and name not in own.model_fields:
            raise ConfigurationError(
                f"{name}: got {str(values[name])[:80]!r} for the task {task}, wanted one of "
                f"{', '.join(each for each in own.model_fields if each != 'reloads')}; remove it"
            )
    return validated(own, values)


def has_use_for(task: str, name: str, *, images: bool = False) -> bool:
    """Whether a model with this task, from a folder of texts or of images, uses this setting of
    ModelSettings, GeneratorSettings or Deployment."""
    if name in Deployment.model_fields:
        return task not in GENERATING or name not in BATCHING
    if task in GENERATING:
        return name in GeneratorSettings.model_fields
    return name in _Served.model_fields or name in task_settings(task, images=images)


def validated(settings: type[Settings], values: Mapping[str, Any]) -> Settings:
    """Returns settings from values. Raises ConfigurationError with the first invalid field, its
    value and limit."""
    try:
        return settings.model_validate(dict(values))
    except ValidationError as error:
        raise WrongSetting(error, settings.model_fields) from None


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
