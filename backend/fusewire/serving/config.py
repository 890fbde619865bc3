"""Every setting of serving, described once: config.pbtxt parameters, import options, server flags.

A field is a `parameters` key of config.pbtxt (ModelSettings, GeneratorSettings) and, in all four
classes, under the same name a command-line flag, an environment variable of `serve` and a key of
its YAML file; its `group` is the section of the help that lists it. Unknown names are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.config import JsonDict

from fusewire import devices
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.engine.settings import EngineSettings, WrongSetting
from fusewire.errors import ConfigurationError
from fusewire.serving import tritonserver_flags
from fusewire.tasks.contract import GENERATE

LogLevel = Literal["error", "warning", "info", "verbose"]
LogFormat = Literal["text", "json"]
Settings = TypeVar("Settings", bound=BaseModel)

# Any model name goes into paths, URLs and log lines; the rest of Unicode is not needed for that.
NAME_PATTERN = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"

_KEY = re.compile(r"[A-Za-z0-9_-]{16,256}")
_SERVER: JsonDict = {"group": "server"}
_MODEL: JsonDict = {"group": "model"}
_BATCHING: JsonDict = {"group": "batching"}
_LOGGING: JsonDict = {"group": "logging"}
_SECRET: JsonDict = {"group": "security", "secret": True}  # never printed or handed on

_TASK = (
    "embed, hidden, classify, tag, answer, fill or generate. Default: by `architectures` in the "
    "model's config.json."
)


class _Served(BaseModel):
    """What the `parameters` of any model's config.pbtxt have beside its engine's settings."""

    task: str = Field(description=_TASK, json_schema_extra=_MODEL)
    reloads: int = Field(
        default=0,
        ge=0,
        description="How often the watchdog has reloaded the model; set by the watchdog alone.",
        json_schema_extra=_MODEL,
    )

    def parameters(self) -> dict[str, str]:
        """As config.pbtxt holds them: the task, and what differs from its default."""
        fields = type(self).model_fields
        return {
            name: _text(value)
            for name, value in self
            if name == "task" or value != fields[name].default
        }


class ModelSettings(_Served, EngineSettings):
    """The `parameters` of one encoder's config.pbtxt."""

    def engine(self) -> EngineSettings:
        """The engine's share of these settings."""
        return EngineSettings(**{key: getattr(self, key) for key in EngineSettings.model_fields})


class GeneratorSettings(_Served, GenerationSettings):
    """The `parameters` of the config.pbtxt of one model that generates."""

    task: Literal["generate"] = Field(description=_TASK, json_schema_extra=_MODEL)

    def engine(self) -> GenerationSettings:
        """The engine's share of these settings."""
        names = GenerationSettings.model_fields
        return GenerationSettings(**{key: getattr(self, key) for key in names})


class Deployment(BaseModel):
    """How a model is run: the rest of its config.pbtxt."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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


class ServerSettings(BaseModel):
    """One server process and its watchdog."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field(
        default="127.0.0.1",
        description="IPv4 address or host name to listen on. Any other than loopback opens the "
        "server to the network: put a gateway with TLS and authentication in front.",
        json_schema_extra=_SERVER,
    )
    http_port: int = Field(
        default=8000,
        ge=0,
        le=65535,
        description="HTTP port; 0: any free port.",
        json_schema_extra=_SERVER,
    )
    grpc_port: int = Field(
        default=8001,
        ge=0,
        le=65535,
        description="gRPC port; 0: any free port.",
        json_schema_extra=_SERVER,
    )
    metrics_port: int = Field(
        default=8002,
        ge=0,
        le=65535,
        description="Prometheus metrics port; 0: any free port.",
        json_schema_extra=_SERVER,
    )
    openai_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Port of the OpenAI endpoint, for models that generate or embed; 0: any free "
        "port. Default: no OpenAI endpoint.",
        json_schema_extra=_SERVER,
    )
    log_level: LogLevel = Field(
        default="warning",
        description="Lowest level of log lines that are written.",
        json_schema_extra=_LOGGING,
    )
    log_format: LogFormat = Field(
        default="text",
        description="Log lines as text, or as one JSON object each.",
        json_schema_extra=_LOGGING,
    )
    start_timeout_s: float = Field(
        default=600,
        gt=0,
        description="Time limit in seconds for loading all models.",
        json_schema_extra=_SERVER,
    )
    exit_timeout_s: int = Field(
        default=10,
        ge=0,
        le=3600,
        description="Time in seconds that requests in flight have to finish on exit.",
        json_schema_extra=_SERVER,
    )
    watch_interval_s: float = Field(
        default=5,
        ge=0.1,
        description="Time in seconds between two test requests of the watchdog to a model.",
        json_schema_extra=_SERVER,
    )
    watch_timeout_s: float = Field(
        default=30,
        ge=1,
        description="Time in seconds without an answer and without progress after which a model "
        "or server counts as hung.",
        json_schema_extra=_SERVER,
    )
    restarts: int = Field(
        default=5,
        ge=0,
        description="Maximum number of restarts of a dead server within a minute; `serve` exits "
        "when it dies once more.",
        json_schema_extra=_SERVER,
    )
    control_key: str | None = Field(
        default=None,
        description="Key of the APIs that load models, read logs and map shared memory: 16 to 256 "
        "letters, digits, '_' or '-'. Clients send it as the header fusewire-control-key, over "
        "gRPC as triton-grpc-protocol-fusewire-control-key. Default: random, so that only the "
        "watchdog has it.",
        json_schema_extra=_SECRET,
    )
    tritonserver: Path | None = Field(
        default=None,
        description="Path of the tritonserver program. Default: "
        "/opt/tritonserver/bin/tritonserver, else the one in the nvidia-pytriton wheel.",
        json_schema_extra=_SERVER,
    )
    tritonserver_args: tuple[str, ...] = Field(
        default=(),
        description="Flags that are handed on to tritonserver. On the command line: the words "
        "behind `--`.",
        json_schema_extra=_SERVER,
    )

    @field_validator("control_key", mode="before")
    @classmethod
    def _key(cls, key: object) -> object:
        if key is not None and not (isinstance(key, str) and _KEY.fullmatch(key)):
            got = f"one of {len(key)} characters" if isinstance(key, str) else "a value of no text"
            raise ConfigurationError(  # without the key
                f"control_key: got {got}, wanted 16 to 256 letters, digits, '_' or '-'; make one: "
                "openssl rand -hex 32"
            )
        return key

    @field_validator("tritonserver_args")
    @classmethod
    def _handed_on(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        tritonserver_flags.check(words)
        return words


SERVE = (ServerSettings, Deployment, ModelSettings, GeneratorSettings)  # what `serve` can be told


def model_settings(values: Mapping[str, Any]) -> ModelSettings | GeneratorSettings:
    """The settings of a model for its task; ConfigurationError also for those of other tasks."""
    task = values.get("task")
    kinds: list[type[ModelSettings | GeneratorSettings]] = [ModelSettings, GeneratorSettings]
    own, other = reversed(kinds) if task == GENERATE else kinds
    for name in values:
        if name in other.model_fields and name not in own.model_fields:
            raise ConfigurationError(
                f"{name}: got {str(values[name])[:80]!r} for the task {task}, wanted one of "
                f"{', '.join(each for each in own.model_fields if each != 'reloads')}; remove it"
            )
    return validated(own, values)


def validated(settings: type[Settings], values: Mapping[str, Any]) -> Settings:
    """Settings from values; a ConfigurationError names the first bad field, its value and limit."""
    try:
        return settings.model_validate(dict(values))
    except ValidationError as error:
        raise WrongSetting(error, settings.model_fields) from None


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
