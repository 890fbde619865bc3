"""fusewire: Transformers straight from Hugging Face folders, without computing a padding token."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "Classifier",
    "Embedder",
    "Reranker",
    "SamplingParams",
    "__version__",
    "from_torch",
    "load",
    "use_torch_allocator",
]

if TYPE_CHECKING:
    from fusewire.api.classifier import Classifier
    from fusewire.api.embedder import Embedder
    from fusewire.api.llm import LLM
    from fusewire.api.reranker import Reranker
    from fusewire.api.sampling_params import SamplingParams
    from fusewire.interop import from_torch, load
    from fusewire.torch_memory import use_torch_allocator

# Loaded on first use: importing the package must not need the compiled library.
_MODULES = {
    "LLM": "api.llm",
    "Classifier": "api.classifier",
    "Embedder": "api.embedder",
    "Reranker": "api.reranker",
    "SamplingParams": "api.sampling_params",
    "from_torch": "interop",
    "load": "interop",
    "use_torch_allocator": "torch_memory",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"fusewire.{_MODULES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
