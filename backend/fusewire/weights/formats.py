"""What a folder or a repository without safetensors contains instead, and how to get a model."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatch

from fusewire.errors import CheckpointError

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZER = "tokenizer.json"

_WANTED = f"wanted {CONFIG} with {WEIGHTS} or {INDEX}"
_RESAVE = (
    "transformers.CLASS.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER), where config.json "
    "names CLASS in `architectures`, and copy the tokenizer's files"
)

_MERGE = (
    "merge it into its base model first: peft.AutoPeftModelForCausalLM (or the class of its "
    "task).from_pretrained(FOLDER).merge_and_unload().save_pretrained(NEW_FOLDER)"
)
ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")

# Patterns of file names, what these files are, the remedy. The first match is reported.
_FORMATS = (
    (
        ("adapter_config.json",),
        "a LoRA adapter, not a whole model",
        _MERGE,
    ),
    (
        ("tf_model.h5", "tf_model.h5.index.json", "*.index"),
        "TensorFlow weights",
        "convert it with `fusewire import FOLDER`; of a model id, fetch the folder first",
    ),
    (
        ("*.gguf",),
        "the GGUF format of llama.cpp, which is not read",
        "use the model in the Transformers format that it was converted from",
    ),
    (
        ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt"),
        "not read: a pickle can run code when it is opened",
        f"convert it once where you trust its origin: {_RESAVE}",
    ),
    (
        ("*.onnx",),
        "an ONNX graph, which is not read",
        "use the model in the Transformers format that it was exported from",
    ),
    (
        ("*.h5", "*.msgpack", "*.ot"),
        "not read: weights of Keras, Flax or Rust",
        "convert it once with transformers 4, whose from_pretrained takes from_tf=True or "
        f"from_flax=True: {_RESAVE}",
    ),
    (("*.safetensors",), "not the name of a whole model's weights", f"save it again: {_RESAVE}"),
)
# A folder with one of these files is a model, if perhaps incomplete, and its subfolders are parts.
_OF_A_MODEL = {CONFIG, "modules.json", "model_index.json"}


def not_a_model(source: str, names: Collection[str]) -> CheckpointError:
    """Returns the error for a folder or repository that lacks config.json or safetensors weights.

    `names`: its files, those in subfolders with their paths.
    """
    if not names:
        return CheckpointError(
            f"{source}: got an empty folder, {_WANTED}; give a Hugging Face model folder"
        )
    if inside := _models_in({*names}):
        shown = ", ".join(inside[:3]) + (", …" if inside[3:] else "")
        got = f"a folder of model folders ({shown})"
        return CheckpointError(f"{source}: got {got}, {_WANTED}; give one of these")
    if not {WEIGHTS, INDEX} & {*names}:
        for patterns, what, remedy in _FORMATS:
            found = sorted(name for name in names for each in patterns if fnmatch(name, each))
            if found:
                return CheckpointError(f"{source}: got {found[0]} ({what}), {_WANTED}; {remedy}")
    lacking = CONFIG if CONFIG not in names else f"{WEIGHTS} or {INDEX}"
    return CheckpointError(
        f"{source}: no {lacking} in the folder; give a Hugging Face model folder"
    )


def adapter_beside(name: str, source: str) -> CheckpointError:
    """Returns the error for a folder with whole weights and an adapter, since the weights may or
    may not include it already."""
    return CheckpointError(
        f"{source}: got {name} (a LoRA adapter, which is not applied) beside whole weights, wanted "
        f"one of both; {_MERGE}, or remove it where the weights have it already"
    )


def _models_in(names: set[str]) -> list[str]:
    """Returns the subfolders that contain whole models, for a folder that is not a model."""
    if _OF_A_MODEL & names:
        return []
    folders = sorted({name.rpartition("/")[0] for name in names} - {""})
    return [
        each
        for each in folders
        if f"{each}/{CONFIG}" in names and {f"{each}/{WEIGHTS}", f"{each}/{INDEX}"} & names
    ]
