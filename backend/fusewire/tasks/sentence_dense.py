"""sentence-transformers' Dense modules: linear layers over pooled vectors (LaBSE, distiluse)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fusewire.errors import CheckpointError
from fusewire.models.stored_weights import Dense, tensors_of
from fusewire.weights import Checkpoint, StoredTensor, file_in, read_json, read_safetensors
from fusewire.weights.formats import WEIGHTS

# torch's class -> activation of the kernels.
ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": "none",
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu_erf",
}
_TANH = "torch.nn.modules.activation.Tanh"
_LINEAR = ".linear"
_VECTORS = "sentence_embedding"  # token embeddings are not supported


def read_dense(folder: Path, path: str) -> Dense:
    """Returns the module of the sub-folder `path` after checking the header of its weights. Raises
    CheckpointError."""
    name = f"{path}/config.json"
    config = read_json(folder, name)
    if config is None:
        raise CheckpointError(f"{name}: missing, yet modules.json names it; download it too")
    for key in ("in_features", "out_features"):
        size = config.get(key)
        if type(size) is not int or size < 1:
            raise CheckpointError(
                f"{name}: {key}: got {str(size)[:80]}, wanted a whole number of at least 1; "
                "download the file again"
            )
    for key, default, supported in (
        ("activation_function", _TANH, tuple(ACTIVATIONS)),
        ("bias", True, (True, False)),
        ("use_residual", False, (False,)),
        ("module_input_name", _VECTORS, (_VECTORS,)),
        ("module_output_name", None, (_VECTORS, None)),
    ):
        if (got := config.get(key, default)) not in supported:
            raise CheckpointError(
                f"{name}: {key}: got {str(got)[:80]!r}, wanted {' or '.join(map(str, supported))}; "
                "this Dense module is not supported (serve the task hidden, and finish the "
                "embedding at the client)"
            )
    dense = Dense(
        (path + _LINEAR,),
        config["in_features"],
        config["out_features"],
        config.get("bias", True),
        ACTIVATIONS[config.get("activation_function", _TANH)],
    )
    dense_weights(folder, (dense,))
    return dense


def weight_file(dense: Dense) -> str:
    """Returns the name of the file with the module's weights, relative to the model's folder."""
    return f"{dense.names[0].removesuffix(_LINEAR)}/{WEIGHTS}"


def dense_weights(folder: Path, chain: Sequence[Dense]) -> Checkpoint:
    """Returns the weights of all modules, mapped into memory, with their shapes checked. Raises
    CheckpointError."""
    tensors: dict[str, StoredTensor] = {}
    for dense in chain:
        name = weight_file(dense)
        path = file_in(folder, name)
        if path is None:
            raise CheckpointError(
                f"{name}: missing, wanted the weights of the Dense module; download it too, or "
                "save the model again with sentence-transformers, as safetensors"
            )
        prefix = dense.names[0].removesuffix("linear")
        tensors |= {prefix + each: tensor for each, tensor in read_safetensors(path, name).items()}
    checkpoint = Checkpoint(tensors, ", ".join(map(weight_file, chain)))
    checkpoint.check(tensors_of(tuple(chain)), ())
    return checkpoint
