"""Settings of a model that generates."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fusewire.settings import Settings

KvCacheDtype = Literal["auto", "fp8"]


class GenerationSettings(Settings):
    """Settings of one generating deployment."""

    max_length: int | None = Field(
        default=None,
        ge=2,
        description="Maximum length of the prompt and the generated text together, in tokens; for "
        "encoder-decoder models, of each of them. Default: the model's number of positions.",
        json_schema_extra={"group": "model"},
    )
    max_batch_tokens: int = Field(
        default=2048,
        ge=1,
        le=1 << 20,
        description="Maximum number of tokens in a step: one per running sequence, the rest for "
        "chunks of prompts. A larger value shortens the time to first token and lengthens the "
        "time between tokens. For encoder-decoder models it also limits the length of a source.",
        json_schema_extra={"group": "batching"},
    )
    max_sequences: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="Maximum number of sequences generated at the same time. Default: 256 for "
        "decoders on a GPU, else 64, and at most max_batch_tokens.",
        json_schema_extra={"group": "generation"},
    )
    max_waiting: int = Field(
        default=256,
        ge=1,
        le=1 << 20,
        description="Maximum number of sequences in the queue, besides the max_sequences that run; "
        "further requests are rejected.",
        json_schema_extra={"group": "generation"},
    )
    kv_cache_mib: int | None = Field(
        default=None,
        ge=1,
        le=1 << 30,
        description="Memory of the KV cache in MiB. Default: enough for max_sequences, or 64 "
        "where that is not set, of max_length, at most 90 % of a GPU's free memory or 25 % of the "
        "machine's memory.",
        json_schema_extra={"group": "generation"},
    )
    kv_cache_dtype: KvCacheDtype = Field(
        default="auto",
        description="Data type of the KV cache. auto: that of the computation. fp8, on GPUs: "
        "float8 e4m3, half of the memory of 16 bits; the computation stays in 16 bits.",
        json_schema_extra={"group": "generation"},
    )
    prefix_caching: bool = Field(
        default=True,
        description="Reuse the KV pages of earlier prompts that begin with the same tokens.",
        json_schema_extra={"group": "generation"},
    )
    max_audio_seconds: int = Field(
        default=3600,
        ge=1,
        le=86400,
        description="transcribe: longest audio. An hour takes 115 to 185 MB of memory until it is "
        "transcribed, and several times as much while a process decodes it, two at a time. All "
        "audio that runs or waits is at most eight times as long together; more is rejected.",
        json_schema_extra={"group": "generation"},
    )
