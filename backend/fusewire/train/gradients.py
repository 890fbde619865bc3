"""Backward passes whose gradients lie in the flat buffers, those of torch's own nodes too."""

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
    """For the backward that runs, of a parameter that others may have gradients of in the same
    pass: `add(to, accumulate)` writes its gradient to the parameter's slice of the flat buffer, or
    adds it, and the slice becomes `.grad`, where torch adds those of its own nodes.

    Returns what torch is given: None, or a gradient apart where the slice may not be written."""
    flat = flat_of(parameter)
    slot = None if flat is None else flat.slot_of(parameter)
    if flat is not None and slot is not None and slot.may_be_added_to(flat.gradients):
        to, accumulate = slot.view(flat.gradients), parameter.grad is not None
        add(to, accumulate)
        if not accumulate:
            parameter.grad = to
        return None
    apart = torch.empty_like(parameter)
    add(apart, False)
    return apart


@contextmanager
def held(flat: FlatParameters, parameters: Container[torch.Tensor] | None = None) -> Iterator[None]:
    """`.grad` of these parameters (None: of all that train) is their slice of `flat.gradients`
    meanwhile, to which backwards add, and None behind it."""
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
    """The gradients of a backward meanwhile are all in `flat.gradients`: zeros where it does not
    reach a parameter. `.grad` is None before and behind it."""
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
    """Calls `done` of each of these parameters when a backward meanwhile has its gradient."""
    handles = [slot.when_done(done) for slot in flat.slots if slot.parameter in parameters]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def leaves_of(loss: torch.Tensor) -> set[torch.Tensor]:
    """Those that its backward gives gradients to."""
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
