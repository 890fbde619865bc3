"""fusewire: Transformers straight from Hugging Face folders, without computing padding tokens."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "Cancelled",
    "CheckpointError",
    "Classifier",
    "ComputeFailed",
    "ConfigurationError",
    "DeadlineExceeded",
    "Embedder",
    "FusewireError",
    "ImageClassifier",
    "ImageEmbedder",
    "IncompleteOutputs",
    "InvalidInput",
    "OutOfMemory",
    "Overloaded",
    "QueueFull",
    "Reranker",
    "SamplingParams",
    "Transcriber",
    "Unavailable",
    "Unsupported",
    "ZeroShotImageClassifier",
    "__version__",
    "from_torch",
    "load",
    "use_torch_allocator",
]

if TYPE_CHECKING:
    from fusewire.api.classifier import Classifier
    from fusewire.api.embedder import Embedder
    from fusewire.api.image_classifier import ImageClassifier
    from fusewire.api.image_embedder import ImageEmbedder
    from fusewire.api.llm import LLM
    from fusewire.api.outputs import IncompleteOutputs
    from fusewire.api.reranker import Reranker
    from fusewire.api.sampling_params import SamplingParams
    from fusewire.api.transcriber import Transcriber
    from fusewire.api.zero_shot_image_classifier import ZeroShotImageClassifier
    from fusewire.errors import (
        Cancelled,
        CheckpointError,
        ComputeFailed,
        ConfigurationError,
        DeadlineExceeded,
        FusewireError,
        InvalidInput,
        OutOfMemory,
        Overloaded,
        QueueFull,
        Unavailable,
        Unsupported,
    )
    from fusewire.interop import from_torch, load
    from fusewire.torch_memory import use_torch_allocator

# Loaded on first use: importing the package must not need the compiled library.
_MODULES = {
    "LLM": "api.llm",
    "Cancelled": "errors",
    "CheckpointError": "errors",
    "Classifier": "api.classifier",
    "ComputeFailed": "errors",
    "ConfigurationError": "errors",
    "DeadlineExceeded": "errors",
    "Embedder": "api.embedder",
    "FusewireError": "errors",
    "ImageClassifier": "api.image_classifier",
    "ImageEmbedder": "api.image_embedder",
    "IncompleteOutputs": "api.outputs",
    "InvalidInput": "errors",
    "OutOfMemory": "errors",
    "Overloaded": "errors",
    "QueueFull": "errors",
    "Reranker": "api.reranker",
    "SamplingParams": "api.sampling_params",
    "Transcriber": "api.transcriber",
    "Unavailable": "errors",
    "Unsupported": "errors",
    "ZeroShotImageClassifier": "api.zero_shot_image_classifier",
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
