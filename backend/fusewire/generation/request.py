"""A request for generated text, as the generation engine takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from fusewire.generation.parameters import GenerationParameters
from fusewire.generation.prompt import AudioFeatures, Prompt


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt and how it is continued. A Prompt has been checked; a text, ids or audio are
    checked where they are submitted. `prompt_field`: what errors of the prompt name. `tells`:
    what the events are of: each of the tokens when it comes; of a single text, those that came
    since the last event once `Ticket.ask` wants to know, as it does of the first; a text when it
    has ended, if not before; or then its ids without the text. `tenant`: who shares the engine
    fairly with others. `rates_silence`: whether each window of audio says how probable silence is,
    if the parameters
    have a threshold for that, or those alone in which it counts."""

    prompt: str | Sequence[int] | Prompt | AudioFeatures
    parameters: GenerationParameters
    prompt_field: str = ""
    tells: Literal["tokens", "asked", "text", "ids"] = field(default="tokens", kw_only=True)
    tenant: str = field(default="", kw_only=True)
    rates_silence: bool = field(default=False, kw_only=True)
