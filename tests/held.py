"""Memory that what a test makes takes."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

from fusewire import kernels

Made = TypeVar("Made")


def settled(device: str = "cpu") -> kernels.CachingAllocator:
    """The process's allocator, in which nothing of earlier tests is freed while another measures:
    what they left in reference cycles goes at any time, and goes now."""
    gc.collect()
    return kernels.default_allocator(device)


def held(make: Callable[[], Made], device: str = "cpu") -> tuple[Made, int]:
    """What is made, and the bytes that it holds."""
    allocator = settled(device)
    before = allocator.stats()["allocated_bytes"]
    made = make()
    return made, allocator.stats()["allocated_bytes"] - before
