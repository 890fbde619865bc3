"""What an operator may set for a model that generates."""

from __future__ import annotations

from pydantic import Field

from fusewire.engine.settings import Settings


class GenerationSettings(Settings):
    """Settings of one generating deployment."""

    max_length: int | None = Field(
        default=None,
        ge=2,
        description="Longest prompt and answer together, in tokens. Default: the positions that "
        "the model has.",
    )
    max_batch_tokens: int = Field(
        default=2048,
        ge=1,
        le=1 << 20,
        description="Tokens computed in one step: one of each running sequence, then pieces of "
        "prompts. More finish prompts sooner and make a step longer.",
    )
    max_sequences: int = Field(
        default=64, ge=1, le=4096, description="Sequences that run at the same time."
    )
    max_waiting: int = Field(
        default=256,
        ge=1,
        le=1 << 20,
        description="Sequences that wait for their turn, beyond the max_sequences that run; a "
        "request more is refused at once.",
    )
    kv_cache_mib: int | None = Field(
        default=None,
        ge=1,
        description="Memory for keys and values. Default: what max_sequences of max_length need, "
        "at most nine tenths of a GPU's free memory or a quarter of the machine's.",
    )
    prefix_caching: bool = Field(
        default=True, description="Keep the pages of prompts for later ones that begin the same."
    )
