"""Parameters of requests to one model, as their JSON says them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from fusewire.generation.checks import read_parameters
from fusewire.generation.limits import GenerationLimits
from fusewire.generation.parameters import GenerationParameters

# How many different parameters are kept as read, and up to which length.
MOST_KEPT = 64
LONGEST_KEPT = 4096  # characters


class ParameterReader:
    """`read_parameters`, once for requests that say the same, as most clients do with all of
    theirs. From any thread."""

    def __init__(self, limits: GenerationLimits, defaults: Mapping[str, Any] | None = None) -> None:
        """`limits`, `defaults`: those of one model."""
        self.limits = limits
        self._defaults = defaults
        self._kept = lru_cache(MOST_KEPT)(self._read)

    def read(self, values: Mapping[str, Any]) -> GenerationParameters:
        """The parameters that JSON values give. InvalidInput."""
        text = json.dumps(values)
        return (self._kept if len(text) <= LONGEST_KEPT else self._read)(text)

    def _read(self, text: str) -> GenerationParameters:
        return read_parameters(json.loads(text), self.limits, self._defaults)
