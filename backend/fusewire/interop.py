"""Called like the Hugging Face model, faster: padded tensors in, padded tensors out.

    model = fusewire.load("path/to/folder")            # or fusewire.from_torch(hf_model)
    output = model(**tokenizer(texts, padding=True, return_tensors="pt"))
    output.last_hidden_state, output.logits, ...

Padding is dropped before anything is computed and comes back as zeros. torch is imported only
when a torch module or tensor is handed in; transformers only by `parity`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire.engine.batch import Batch
from fusewire.errors import ConfigurationError, InvalidInput
from fusewire.models import EncoderModel, build_model, load_model, read_config, tasks_of
from fusewire.padded import ModelOutput, integers, is_torch, token_mask, unpack
from fusewire.placement import Placement

# Task -> the transformers class that answers it, for `parity`.
_AUTO_CLASSES = {
    "embed": "AutoModel",
    "hidden": "AutoModel",
    "classify": "AutoModelForSequenceClassification",
    "tag": "AutoModelForTokenClassification",
    "answer": "AutoModelForQuestionAnswering",
    "fill": "AutoModelForMaskedLM",
}


class Encoder:
    """An encoder with the call and the result names of its Hugging Face class.

    Serves one caller at a time. `config` is the dictionary of config.json, `model` the
    EncoderModel behind.
    """

    def __init__(self, model: EncoderModel, task: str) -> None:
        self.model = model
        self.task = task
        self.config = model.config

    def __call__(
        self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None
    ) -> ModelOutput:
        """Runs [batch, length] integer arrays or tensors; the result is of the same kind.

        `attention_mask` is 1 where there is a token, 0 where there is padding (on any side: the
        result is that of the sequence alone). Raises InvalidInput naming the argument at fault.
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
        """Result name -> (packed values, whether there is a row for each token)."""
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
    folder_or_model: Any, task: str | None = None, device: Any = "cpu", dtype: str = "auto"
) -> Encoder:
    """Loads a Hugging Face folder, or takes over a live transformers module (`from_torch`).

    `task` (hidden, classify, tag, answer, fill) defaults to what the folder's `architectures`
    were made for. `device` is cpu, cuda (the first GPU), cuda:<index>, auto (the first GPU where
    there is one, else the CPU) or a torch.device; `dtype` "auto" is float32 on the CPU and float16
    on a GPU. Raises CheckpointError for a folder that cannot be loaded, ConfigurationError for a
    device or dtype that is not to be had.
    """
    if not isinstance(folder_or_model, (str, Path)):
        return from_torch(folder_or_model, task, device, dtype)
    place = Placement(device, dtype)
    folder = Path(folder_or_model)
    task = task or tasks_of(read_config(folder))
    return Encoder(load_model(folder, task, place, pooler=True), task)


def from_torch(
    hf_model: Any, task: str | None = None, device: Any = "cpu", dtype: str = "auto"
) -> Encoder:
    """Takes over a live transformers module: its configuration and its weights as they are now.

    Embedding tables in fp32 on the CPU stay shared with the module, matrices are packed anew: call
    again after the module's weights change.
    """
    place = Placement(device, dtype)
    config: Any = getattr(hf_model, "config", None)
    if not hasattr(config, "to_dict") or not hasattr(hf_model, "state_dict"):
        raise ConfigurationError(
            f"model: got {type(hf_model).__name__}, wanted a transformers model or a folder; "
            "pass what from_pretrained returned"
        )
    values = config.to_dict()
    values["architectures"] = [type(hf_model).__name__]
    arrays = {name: _weight(tensor) for name, tensor in hf_model.state_dict().items()}
    task = task or tasks_of(values)
    return Encoder(build_model(values, arrays, task, place, pooler=True), task)


@dataclass(frozen=True)
class Parity:
    """How far fusewire and transformers differ on the same input."""

    architecture: str
    task: str
    dtype: str
    sequences: int
    tokens: int
    differences: Mapping[str, float]  # result name -> largest absolute difference

    @property
    def largest(self) -> float:
        return float(np.max(list(self.differences.values())))


def parity(
    folder: Path | str,
    task: str | None = None,
    device: Any = "cpu",
    dtype: str = "auto",
    *,
    sequences: int = 8,
    seed: int = 0,
) -> Parity:
    """Runs random ragged sequences (one token up to 512 or the model's limit) through fusewire on
    `device` as one batch and through transformers (CPU, eager attention, fp32) one by one.

    Needs torch and transformers; ConfigurationError where they are not installed.
    """
    try:
        import torch
        import transformers
    except ImportError as error:
        raise ConfigurationError(
            f"parity: got no module {error.name!r}, wanted torch and transformers to compare with; "
            "install both: `pip install '.[torch]'` in fusewire's folder"
        ) from None
    ours = load(folder, task, device, dtype)
    reference = getattr(transformers, _AUTO_CLASSES[ours.task]).from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32, local_files_only=True
    )
    reference.eval()
    ids, types, mask = _random_input(ours.model, sequences, seed)
    result = ours(ids, mask, types if ours.model.uses_token_types else None)
    differences = dict.fromkeys(result, 0.0)
    for row, length in enumerate(mask.sum(axis=1)):
        inputs = {"input_ids": torch.from_numpy(ids[row : row + 1, :length])}
        if ours.model.uses_token_types:
            inputs["token_type_ids"] = torch.from_numpy(types[row : row + 1, :length])
        with torch.no_grad():
            expected = reference(**inputs)
        for name, values in result.items():
            wanted = expected[name][0].numpy()
            got = values[row] if values[row].shape == wanted.shape else values[row][:length]
            # Not max(): a NaN on either side must come through.
            worst = np.maximum(differences[name], np.abs(got - wanted).max())
            differences[name] = float(worst)
    return Parity(
        type(reference).__name__,
        ours.task,
        ours.model.place.dtype,
        sequences,
        int(mask.sum()),
        differences,
    )


def _random_input(
    model: EncoderModel, sequences: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    random = np.random.default_rng(seed)
    longest = min(model.max_length, 512)
    lengths = random.integers(1, max(2, longest // 4), sequences)
    lengths[0] = 1
    lengths[-1] = longest
    mask = np.arange(longest) < lengths[:, None]
    ids = random.integers(0, model.vocab_size, mask.shape)
    types = random.integers(0, max(1, model.type_vocab_size), mask.shape)
    return ids, types, mask.astype(np.int64)


def _weight(tensor: Any) -> NDArray[Any]:
    tensor = tensor.detach().cpu()
    array: NDArray[Any] = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    return array
