"""Backward passes whose gradients are written to the flat buffers, also those of torch's own
nodes."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fusewire.train.flat import FlatParameters, flat_of
from fusewire.train.slot import Slot


def add_gradient(
    parameter: torch.Tensor, add: Callable[[torch.Tensor, bool], None]
) -> torch.Tensor | None:
    """Called in a backward pass for a parameter that other nodes of the same pass may have
    gradients of: `add(to, accumulate)` writes the gradient to the parameter's slice of the flat
    buffer or adds it, and the slice becomes `.grad`, to which torch adds the gradients of its own
    nodes.

    Returns what the Function has to return to torch: None, or a separate gradient where the slice
    may not be written.
    """
    flat = flat_of(parameter)
    slot = None if flat is None else flat.slot_of(parameter)
    if flat is not None and slot is not None and slot.may_be_added_to(flat.gradients):
        to, accumulate = slot.view(flat.gradients), parameter.grad is not None
        add(to, accumulate)
        if not accumulate:
            parameter.grad = to
        return None
    apart = torch.empty_like(parameter, dtype=torch.float32)
    add(apart, False)
    return apart


@contextmanager
def held(flat: FlatParameters, parameters: Container[torch.Tensor] | None = None) -> Iterator[None]:
    """While the context is open, `.grad` of these parameters (None: of all that are trained) is
    their slice of `flat.gradients`, to which backward passes add. Afterwards it is None."""
    slots = [
        slot
        for slot in flat.slots
        if slot.parameter.requires_grad and (parameters is None or slot.parameter in parameters)
    ]
    for slot in slots:
        slot.parameter.grad = slot.view(flat.gradients)
    try:
        yield
    finally:
        for slot in slots:
            slot.parameter.grad = None


@contextmanager
def collected(flat: FlatParameters, reached: Container[torch.Tensor]) -> Iterator[None]:
    """Collects all gradients of a backward pass in `flat.gradients`, with zeros for a parameter
    that it does not reach. `.grad` is None before and after."""
    for slot in flat.slots:
        if slot.parameter.requires_grad and slot.parameter not in reached:
            slot.view(flat.gradients).zero_()

    def collect(slot: Slot) -> None:
        gradient = slot.parameter.grad
        if gradient is None:
            slot.view(flat.gradients).zero_()
        elif not slot.is_in(flat.gradients, gradient):
            slot.view(flat.gradients).copy_(gradient)
            slot.parameter.grad = slot.view(flat.gradients)

    try:
        with watched(flat, reached, collect):
            yield
    finally:
        for slot in flat.slots:
            slot.parameter.grad = None


@contextmanager
def watched(
    flat: FlatParameters, parameters: Container[torch.Tensor], done: Callable[[Slot], None]
) -> Iterator[None]:
    """Calls `done` for each of these parameters when a backward pass in the context has computed
    its gradient."""
    handles = [slot.when_done(done) for slot in flat.slots if slot.parameter in parameters]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def leaves_of(loss: torch.Tensor) -> set[torch.Tensor]:
    """The parameters that the backward pass of the loss gives gradients to."""
    found: set[torch.Tensor] = set()
    nodes: list[Any] = [loss.grad_fn]
    seen: set[Any] = set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(node.variable)
        nodes += [following for following, _ in node.next_functions]
    return found
