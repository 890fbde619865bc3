"""A request for generated text, as the generation engine takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusewire.generation.parameters import GenerationParameters
from fusewire.generation.prompt import Prompt


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt and how it is continued. A Prompt has been checked; a text or ids are checked
    where they are submitted. `prompt_field`: what errors of the prompt name."""

    prompt: str | Sequence[int] | Prompt
    parameters: GenerationParameters
    prompt_field: str = ""
