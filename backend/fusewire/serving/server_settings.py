"""The settings of one server process and its watchdog."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator
from pydantic.config import JsonDict

from fusewire.errors import ConfigurationError
from fusewire.serving import tritonserver_flags
from fusewire.settings import StrictSettings

LogLevel = Literal["error", "warning", "info", "verbose"]
LogFormat = Literal["text", "json"]

_SERVER: JsonDict = {"group": "server"}
_LOGGING: JsonDict = {"group": "logging"}
_SECRET: JsonDict = {
    "group": "security",
    "secret": True,
}  # never printed or passed on
_KEY = re.compile(r"[A-Za-z0-9_-]{16,256}")


class ServerSettings(StrictSettings):
    """One server process and its watchdog."""

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
        description="Port of the OpenAI endpoint (completions, chat, embeddings, reranking, "
        "transcription); 0: any free port. Default: no OpenAI endpoint.",
        json_schema_extra=_SERVER,
    )
    chat_template: Path | None = Field(
        default=None,
        description="Jinja file that renders chat messages at the OpenAI endpoint for every model, "
        "in place of the model folder's chat template.",
        json_schema_extra={"group": "generation"},
    )
    accept_token_ids: bool = Field(
        default=False,
        description="Accept lists of token ids as input of /v1/embeddings at the OpenAI endpoint. "
        "They must come from the model's own tokenizer: others give wrong vectors.",
        json_schema_extra={"group": "security"},
    )
    api_key_file: Path | None = Field(
        default=None,
        description="File with the API keys of the OpenAI endpoint, one per line. Every request "
        "but /health must send one of them as `Authorization: Bearer KEY`. Default: the key in "
        "FUSEWIRE_API_KEY, else no key is needed.",
        json_schema_extra={"group": "security"},
    )
    allowed_hosts: str | None = Field(
        default=None,
        description="Host names and addresses, separated by commas, by which the OpenAI endpoint "
        "may be called (headers Host and Origin); '*': any. Default: on loopback the names and "
        "addresses of this machine, otherwise any.",
        json_schema_extra={"group": "security"},
    )
    access_log: bool = Field(
        default=True,
        description="Log every request to the OpenAI endpoint (logger fusewire.access).",
        json_schema_extra=_LOGGING,
    )
    log_level: LogLevel = Field(
        default="warning",
        description="Lowest level of log lines that are written. Lines of `serve`, of its watchdog "
        "and of the access log are written at every level.",
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
        "or server counts as hung; a micro-batch may take longer on a slow machine.",
        json_schema_extra=_SERVER,
    )
    memory_limit_mib: int | None = Field(
        default=None,
        ge=256,
        description="Memory in MiB that the process of tritonserver itself may use, without its "
        "models' processes; beyond it the watchdog restarts it, as a single request can make it "
        "use tens of gigabytes. Default: half of the machine's memory, or of its cgroup's limit.",
        json_schema_extra={"group": "security"},
    )
    control_key: str | None = Field(
        default=None,
        description="Key of the APIs that load models, read logs and map shared memory: 16 to 256 "
        "letters, digits, '_' or '-'. Clients send it as the header fusewire-control-key, over "
        "gRPC as triton-grpc-protocol-fusewire-control-key. Set it by the environment variable, as "
        "every user of the machine can read command lines. Default: random, so that only the "
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
        description="Flags passed to tritonserver. On the command line: the arguments after `--`.",
        json_schema_extra=_SERVER,
    )

    @field_validator("control_key", mode="before")
    @classmethod
    def _key(cls, key: object) -> object:
        if key is not None and not (isinstance(key, str) and _KEY.fullmatch(key)):
            got = f"{len(key)} characters" if isinstance(key, str) else "a value that is not text"
            raise ConfigurationError(  # without the key
                f"control_key: got {got}, wanted 16 to 256, each a letter, a digit, '_' or '-'; "
                "make one: openssl rand -hex 32"
            )
        return key

    @field_validator("tritonserver_args")
    @classmethod
    def _handed_on(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        tritonserver_flags.check(words)
        return words
