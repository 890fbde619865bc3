"""Weights of Hugging Face folders: safe file lookup, safetensors, strict checkpoints."""

from fusewire.weights.checkpoint import Checkpoint
from fusewire.weights.folder import (
    file_in,
    no_model_in,
    open_folder,
    read_json,
    read_json_list,
    weight_files,
)
from fusewire.weights.safetensors import StoredTensor, read_safetensors

__all__ = [
    "Checkpoint",
    "StoredTensor",
    "file_in",
    "no_model_in",
    "open_folder",
    "read_json",
    "read_json_list",
    "read_safetensors",
    "weight_files",
]
