"""Measures the memory that an object holds in the allocator."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

from fusewire import kernels

Made = TypeVar("Made")


def settled(device: str = "cpu") -> kernels.CachingAllocator:
    """The process's allocator, after a garbage collection: blocks that earlier tests left in
    reference cycles would otherwise be freed during a measurement."""
    gc.collect()
    return kernels.default_allocator(device)


def held(make: Callable[[], Made], device: str = "cpu") -> tuple[Made, int]:
    """The result of `make`, and the bytes that it holds."""
    allocator = settled(device)
    before = allocator.stats()["allocated_bytes"]
    made = make()
    return made, allocator.stats()["allocated_bytes"] - before
