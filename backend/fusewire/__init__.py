"""fusewire: Transformers straight from Hugging Face folders, without computing a padding token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "from_torch", "load", "use_torch_allocator"]

if TYPE_CHECKING:
    from fusewire.interop import from_torch, load
    from fusewire.torch_memory import use_torch_allocator


def __getattr__(name: str) -> Any:
    # Loaded on first use: importing the package must not need the compiled library.
    if name in ("load", "from_torch"):
        from fusewire import interop

        return getattr(interop, name)
    if name == "use_torch_allocator":
        from fusewire.torch_memory import use_torch_allocator

        return use_torch_allocator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
