"""Every setting of serving, described once: config.pbtxt parameters, import options, server flags.

A field is a `parameters` key of config.pbtxt (ModelSettings, GeneratorSettings) and a command-line
flag under the same name (all four classes); unknown names are refused everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fusewire import devices
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.engine.settings import EngineSettings, WrongSetting
from fusewire.errors import ConfigurationError
from fusewire.tasks.contract import GENERATE

LogLevel = Literal["error", "warning", "info", "verbose"]
Settings = TypeVar("Settings", bound=BaseModel)

# Any model name goes into paths, URLs and log lines; the rest of Unicode is not needed for that.
NAME_PATTERN = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"


_TASK = (
    "embed, hidden, classify, tag, answer, fill or generate. Default: what the checkpoint's "
    "`architectures` was made for."
)


class _Served(BaseModel):
    """What the `parameters` of any model's config.pbtxt have beside its engine's settings."""

    task: str = Field(description=_TASK)
    reloads: int = Field(
        default=0,
        ge=0,
        description="How often the watchdog has reloaded the model; set by it alone.",
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

    task: Literal["generate"] = Field(description=_TASK)

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
        description="Processes that serve the model on each of its devices; each holds the "
        "weights. On a GPU two let one tokenise while the other computes.",
    )
    device: str = Field(
        default="auto",
        description="Where the instances compute: cpu, cuda (the first GPU), cuda:N, or several as "
        "cuda:0,1; auto: the first GPU, where this machine and build have one, else the CPU.",
    )
    max_batch_size: int = Field(
        default=128,
        ge=1,
        le=4096,
        description="Rows of one execution, and the most rows of one request; the memory of an "
        "execution is bounded by max_batch_tokens, not by this. Not for generate.",
    )
    queue_delay_us: int = Field(
        default=200,
        ge=0,
        le=1_000_000,
        description="Longest wait for company when the model is idle, in microseconds. Not for "
        "generate, whose steps any request may join.",
    )
    version: int = Field(default=1, ge=1, le=1 << 30, description="Version folder that is written.")
    versions_served: int = Field(
        default=1, ge=1, le=64, description="How many of the latest versions the server loads."
    )

    @field_validator("device")
    @classmethod
    def _known(cls, device: str) -> str:
        devices.gpus_of(device)
        return device


class ServerSettings(BaseModel):
    """One server process and its watchdog."""

    @field_validator("control_key", mode="before")
    @classmethod
    def _hard_to_guess(cls, key: Any) -> Any:
        """Before its pattern is matched, whose error would show the key."""
        if isinstance(key, str) and not re.fullmatch(r"[A-Za-z0-9_-]{16,256}", key):
            raise ConfigurationError(
                f"control_key: got {len(key)} characters, wanted 16 to 256, each a letter, a "
                "digit, - or _; choose another, or leave it out for a random one"
            )
        return key

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field(
        default="127.0.0.1",
        description="IPv4 address or name to listen on. Another than loopback opens the "
        "server to the network: put a gateway with TLS and authentication in front.",
    )
    http_port: int = Field(default=8000, ge=0, le=65535, description="HTTP port; 0: any free one.")
    grpc_port: int = Field(default=8001, ge=0, le=65535, description="gRPC port; 0: any free one.")
    metrics_port: int = Field(
        default=8002, ge=0, le=65535, description="Metrics port; 0: any free one."
    )
    openai_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Port of OpenAI's interface to the models that generate or embed; 0: any free "
        "one. Default: it is not opened.",
    )
    chat_template: Path | None = Field(
        default=None,
        description="Jinja file by which OpenAI's endpoint renders the conversations of every "
        "model that generates, instead of the model folder's chat template.",
        json_schema_extra={"group": "model"},
    )
    accept_token_ids: bool = Field(
        default=False,
        description="Let OpenAI's /v1/embeddings take lists of token ids as input, which must be "
        "those of the model's own tokenizer; others give wrong vectors.",
        json_schema_extra={"group": "security"},
    )
    api_key_file: Path | None = Field(
        default=None,
        description="File with the API keys of OpenAI's endpoint, one a line, one of which every "
        "request to it but /health must send as `Authorization: Bearer KEY`. Default: the one in "
        "the environment variable FUSEWIRE_API_KEY, else none is asked for.",
        json_schema_extra={"group": "security"},
    )
    access_log: bool = Field(
        default=True,
        description="Log every request to OpenAI's endpoint (logger fusewire.access).",
        json_schema_extra={"group": "logging"},
    )
    log_level: LogLevel = Field(default="warning", description="What of the server's log is shown.")
    start_timeout_s: float = Field(
        default=600, gt=0, description="Seconds within which all models must have loaded."
    )
    exit_timeout_s: int = Field(
        default=10,
        ge=0,
        le=3600,
        description="Seconds that requests in flight have to finish on exit.",
    )
    watch_interval_s: float = Field(
        default=5,
        ge=0.1,
        description="Seconds between two test inferences of the watchdog, per model.",
    )
    watch_timeout_s: float = Field(
        default=30,
        ge=1,
        description="Seconds without an answer and without progress that mean: hung.",
    )
    restarts: int = Field(
        default=5, ge=0, description="Restarts of a dead server within a minute before giving up."
    )
    control_key: str | None = Field(
        default=None,
        pattern=r"[A-Za-z0-9_-]{16,256}",
        description="Key of the APIs that load models, read logs and map shared memory, sent as "
        "the header fusewire-control-key, over gRPC triton-grpc-protocol-fusewire-control-key. "
        "Default: random, so that only the watchdog has it. Environment: FUSEWIRE_CONTROL_KEY.",
    )
    tritonserver: Path | None = Field(
        default=None,
        description="The tritonserver program. Default: /opt/tritonserver/bin/tritonserver, else "
        "the one in the nvidia-pytriton wheel.",
    )


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
