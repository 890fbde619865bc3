"""Allocates torch's CUDA tensors from fusewire's allocator: one cache, one limit and one account
per device.

    import fusewire
    fusewire.use_torch_allocator()      # before torch's first CUDA tensor

The memory that torch holds is listed under the tag "torch" in `default_allocator("cuda").stats()`,
and memory that either frees can be reused by the other. torch's own statistics
(torch.cuda.memory_allocated and the like) know only its built-in allocator and fail.
"""

from __future__ import annotations

import ctypes
import inspect

from fusewire.errors import ConfigurationError
from fusewire.kernels import CachingAllocator, Error, cuda_built, default_allocator

# torch's hook -> our function. Without the hooks a block that another stream or a captured graph
# still uses would be reused too early.
_HOOKS = {
    "set_record_stream_fn": "fusewire_torch_record_stream",
    "set_reset_fn": "fusewire_torch_empty_cache",
    "set_begin_allocate_to_pool": "fusewire_torch_begin_pool",
    "set_end_allocate_to_pool_fn": "fusewire_torch_end_pool",
    "set_release_pool": "fusewire_torch_release_pool",
}

_installed = False


def use_torch_allocator() -> None:
    """Makes torch allocate its CUDA memory from fusewire, for the rest of the process.

    Raises ConfigurationError when torch has no CUDA or has already allocated CUDA memory itself, or
    when this build of fusewire or this machine has no CUDA.
    """
    global _installed
    if _installed:
        return
    try:
        import torch
    except ImportError:
        raise ConfigurationError("torch: not installed; install a CUDA build of torch") from None
    if not cuda_built():
        raise ConfigurationError(
            "use_torch_allocator: got a build without CUDA kernels, wanted one with them; build "
            "fusewire with FUSEWIRE_CUDA=ON"
        )
    try:
        default_allocator("cuda")  # says what is missing, if anything is
    except Error as error:
        raise ConfigurationError(str(error)) from None
    if not hasattr(torch._C, "_cuda_customAllocator"):
        raise ConfigurationError(
            f"torch: got {torch.__version__}, which is built without CUDA, wanted one with it; "
            "install a CUDA build of torch, or do without its allocator"
        )
    path = inspect.getfile(CachingAllocator)
    library = ctypes.CDLL(path)
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        path, "fusewire_torch_malloc", "fusewire_torch_free"
    )
    hooks = allocator.allocator()
    for hook, function in _HOOKS.items():
        if not hasattr(hooks, hook):
            raise ConfigurationError(
                f"torch: got {torch.__version__}, whose allocators lack {hook}, wanted 2.3 or "
                "later; update torch"
            )
        getattr(hooks, hook)(ctypes.cast(getattr(library, function), ctypes.c_void_p).value)
    try:
        torch.cuda.memory.change_current_allocator(allocator)
    except RuntimeError as error:
        raise ConfigurationError(
            "torch: CUDA memory is already initialised by torch's own allocator in this process; "
            "call fusewire.use_torch_allocator() before the first CUDA tensor"
        ) from error
    _installed = True
