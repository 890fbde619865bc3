"""Encoders that are called like the Hugging Face model: padded tensors in, padded tensors out.

    model = fusewire.load("path/to/folder")            # or fusewire.from_torch(hf_model)
    output = model(**tokenizer(texts, padding=True, return_tensors="pt"))
    output.last_hidden_state, output.logits, ...

Padding is removed before computing and restored as zeros. torch is imported only
when a torch module or tensor is passed in.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire.batch import Batch
from fusewire.errors import ConfigurationError, InvalidInput
from fusewire.hub import model_folder
from fusewire.models import (
    EncoderModel,
    build_model,
    load_model,
    read_config,
    tasks_of,
)
from fusewire.opening import check_kind
from fusewire.padded import ModelOutput, integers, is_torch, token_mask, unpack
from fusewire.placement import Placement


class Encoder:
    """An encoder that is called like its Hugging Face class and has the same names of results.

    Serves one caller at a time. `config` is the dictionary of config.json, `model` the EncoderModel
    that computes.
    """

    def __init__(self, model: EncoderModel, task: str) -> None:
        model.tune()
        self.model = model
        self.task = task
        self.config = model.config

    def __call__(
        self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None
    ) -> ModelOutput:
        """Runs [batch, length] integer arrays or tensors; the results are of the same kind.

        `attention_mask` is 1 for tokens and 0 for padding, on any side: the result of a sequence
        does not depend on its padding. Raises InvalidInput with the name of the wrong argument.
        """
        ids = integers("input_ids", input_ids)
        if ids.ndim != 2 or ids.size == 0:
            raise InvalidInput(
                "input_ids",
                f"shape {list(ids.shape)}",
                "[batch, length], not empty",
                "call the tokenizer with return_tensors and padding",
            )
        mask = token_mask(attention_mask, ids.shape)
        types = self._types(token_type_ids, ids.shape)
        lengths = mask.sum(axis=1)
        batch = Batch(
            input_ids=np.ascontiguousarray(ids[mask]),
            token_type_ids=np.ascontiguousarray(types[mask], np.int32),
            cu_seqlens=np.concatenate(([0], np.cumsum(lengths))).astype(np.int32),
            max_seqlen=int(lengths.max()),
        )
        results = self._run(batch)
        padded: dict[str, Any] = {
            name: unpack(value, mask) if by_token else value
            for name, (value, by_token) in results.items()
        }
        if is_torch(input_ids):
            import torch

            there = input_ids.device
            padded = {name: torch.from_numpy(value).to(there) for name, value in padded.items()}
        return ModelOutput(padded)

    def _run(self, batch: Batch) -> dict[str, tuple[NDArray[np.float32], bool]]:
        """Returns result name -> (packed values, whether they have one row per token)."""
        model = self.model
        hidden = model.encode(batch)
        if self.task in ("embed", "hidden"):
            results = {"last_hidden_state": (model.place.numpy(hidden), True)}
            if model.has_head:  # the pooler
                results["pooler_output"] = (model.logits(hidden, batch), False)
            return results
        if self.task == "fill":
            every = np.arange(batch.input_ids.size)
            return {"logits": (model.place.numpy(model.fill_logits(hidden, every)), True)}
        logits = model.logits(hidden, batch)
        if self.task == "answer":
            return {"start_logits": (logits[:, 0], True), "end_logits": (logits[:, 1], True)}
        if self.task == "tag":
            return {"logits": (logits, True)}
        return {"logits": (logits, False)}

    def _types(self, token_type_ids: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        if token_type_ids is None:
            return np.zeros(shape, np.int32)
        types = integers("token_type_ids", token_type_ids)
        if types.shape != shape:
            raise InvalidInput(
                "token_type_ids",
                f"shape {list(types.shape)}",
                f"{list(shape)} as input_ids",
                "pad both alike",
            )
        if not self.model.uses_token_types and types.any():
            raise InvalidInput(
                "token_type_ids", int(types.max()), "0 (this model has no types)", "leave it out"
            )
        return types


def load(
    folder_or_model: Any,
    task: str | None = None,
    device: Any = "cpu",
    dtype: str = "auto",
    *,
    quantize: str = "none",
    quantize_skip: Collection[str] = (),
    revision: str | None = None,
) -> Encoder:
    """Loads an encoder that is called like the Hugging Face model.

    Args:
        folder_or_model: A model folder, an id on Hugging Face, or a live transformers module
            (`from_torch`).
        task: `hidden`, `classify`, `tag`, `answer` or `fill`. Default: what the folder's
            `architectures` were made for.
        device: `cpu`, `cuda` (the first GPU), `cuda:<index>`, `auto` (the first GPU where there is
            one, else the CPU) or a torch.device.
        dtype: Precision of the computation; `auto` is float32 on the CPU and float16 on a GPU, or
            bfloat16 for models whose hidden states overflow float16 (T5). On the CPU `bfloat16` is
            the storage format of the matrices only, and the computation is in float32.
        quantize: Format of the weight matrices of the model's layers: `none` (that of `dtype`),
            `int8`, on Hopper GPUs `fp8`.
        quantize_skip: Names of matrices that are not quantised.
        revision: Branch, tag or commit of a Hugging Face id.

    Raises:
        CheckpointError: The folder cannot be loaded.
        ConfigurationError: There is no such device, dtype or format here.
    """
    if not isinstance(folder_or_model, (str, Path)):
        return from_torch(
            folder_or_model, task, device, dtype, quantize=quantize, quantize_skip=quantize_skip
        )
    place = Placement(device, dtype, quantize, quantize_skip)
    folder = model_folder(folder_or_model, revision=revision)
    config = read_config(folder)
    check_kind(config, ["Embedder"])  # an Embedder reads the same kinds of models
    task = _encoders(task or tasks_of(config))
    model = load_model(folder, task, place, pooler=True)
    place.check_skipped()
    return Encoder(model, task)


def from_torch(
    hf_model: Any,
    task: str | None = None,
    device: Any = "cpu",
    dtype: str = "auto",
    *,
    quantize: str = "none",
    quantize_skip: Collection[str] = (),
) -> Encoder:
    """Builds an encoder from a live transformers module: its configuration and its current weights.

    Embedding tables in fp32 on the CPU are shared with the module, matrices are packed into new
    memory: call this again after the module's weights have changed.
    """
    place = Placement(device, dtype, quantize, quantize_skip)
    config: Any = getattr(hf_model, "config", None)
    if not hasattr(config, "to_dict") or not hasattr(hf_model, "state_dict"):
        raise ConfigurationError(
            f"model: got {type(hf_model).__name__}, wanted a transformers model or a folder; "
            "pass what from_pretrained returned"
        )
    values = config.to_dict()
    values["architectures"] = [type(hf_model).__name__]
    arrays = {name: _weight(tensor) for name, tensor in hf_model.state_dict().items()}
    task = _encoders(task or tasks_of(values))
    model = build_model(values, arrays, task, place, pooler=True)
    place.check_skipped()
    return Encoder(model, task)


def _encoders(task: str) -> str:
    if opens := {"generate": "LLM", "transcribe": "Transcriber"}.get(task):
        raise ConfigurationError(
            f"task: got {task!r}, wanted that of an encoder; open the folder with "
            f"fusewire.{opens}, or name another task: embed and hidden are an encoder's alone"
        )
    return task


def _weight(tensor: Any) -> NDArray[Any]:
    tensor = tensor.detach().cpu()
    array: NDArray[Any] = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    return array
