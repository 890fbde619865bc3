"""The base of all loaded models: a blueprint's stack and one of its heads, with the weights of a
checkpoint, on one placement."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from fusewire import kernels
from fusewire.models.assemble import Weights
from fusewire.models.blueprint import Blueprint, Stack
from fusewire.models.stack import BuiltStack
from fusewire.placement import Placement
from fusewire.weights import Checkpoint


class Model(ABC):
    """Serves one caller at a time: calls share the workspace, so two threads must not be in one
    model at once (load the folder twice, or hold a lock)."""

    _arena_shrinks = True

    def __init__(
        self,
        blueprint: Blueprint,
        head: str | None,
        checkpoint: Checkpoint,
        place: Placement,
        *,
        config: dict[str, Any],
        folder: Path | None,
    ) -> None:
        """Reads what the stack and `head` (a key of blueprint.task_heads) need. Raises
        CheckpointError when the checkpoint lacks one of these tensors or has an unknown one,
        ConfigurationError for float16 if the model's hidden states overflow it."""
        tensors = blueprint.tensors(head)
        checkpoint.check(tensors, blueprint.unread)
        if blueprint.stack.overflows_float16:
            place = place.without_float16()
        self.place = place
        self.config = config
        self.folder = folder
        self.max_length = blueprint.max_length
        self.hidden_size = blueprint.hidden_size
        # Captured graphs hold addresses of the arena, which therefore must not shrink.
        shrinks = self._arena_shrinks and not place.stream.can_capture
        self._workspace = kernels.Workspace(
            kernels.default_allocator(place.device), shrink_after=1024 if shrinks else 2**31 - 1
        )
        shapes = {checkpoint.origin(name): shape for name, shape in tensors.items()}
        count = sum(map(math.prod, shapes.values()))
        place.reserve(count, "weights", checkpoint.quantized_bytes)
        weights = Weights(checkpoint, place)
        self._stack = BuiltStack(self._stack_of(blueprint), weights, place, self._workspace)
        self._load_head(blueprint, head, weights)
        checkpoint.release()  # packed weights are not read again

    def workspace_stats(self) -> dict[str, int]:
        """Returns the arena's counters, as the kernel library reports them."""
        return self._workspace.stats()

    def _stack_of(self, blueprint: Blueprint) -> Stack:
        """Returns the part of the blueprint's stack that runs over every token."""
        return blueprint.stack

    @abstractmethod
    def _load_head(self, blueprint: Blueprint, head: str | None, weights: Weights) -> None: ...
