"""Kinds of the library's errors become types in Python."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire import kernels


def test_out_of_memory_is_a_type_and_pythons_memory_error() -> None:
    allocator = kernels.CachingAllocator("cpu", cap_bytes=1 << 20)
    with pytest.raises(
        kernels.OutOfMemory, match=r"^cpu is out of memory\. Got a request of 2 MiB"
    ) as caught:
        allocator.allocate(2 << 20, "test")
    assert isinstance(caught.value, MemoryError)
    assert isinstance(caught.value, kernels.Error)


def test_a_wrong_argument_is_no_lack_of_memory() -> None:
    ids = kernels.Tensor.from_numpy(np.zeros((2, 2), np.int64))
    with pytest.raises(kernels.Error) as caught:
        kernels.softmax(ids, ids)
    assert type(caught.value) is kernels.Error


def test_a_devices_error_is_one_of_the_library() -> None:
    assert issubclass(kernels.DeviceError, kernels.Error)
    assert not issubclass(kernels.DeviceError, MemoryError)
