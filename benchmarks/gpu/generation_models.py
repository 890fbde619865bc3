"""Random decoders without a download: transformers' on the device, and ours from the same tensors,
which never pass through a file or the host."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from fusewire import kernels
from fusewire.models.config import Config
from fusewire.models.decoder import DecoderModel
from fusewire.models.registry import decoder
from fusewire.placement import Placement
from fusewire.weights import Checkpoint
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn

from benchmarks.gpu import float8_blocks, four_bits
from benchmarks.gpu.generation_workload import Case, Shape
from benchmarks.gpu.own import view
from benchmarks.gpu.random_weights import randomise


@dataclass(frozen=True)
class Place:
    """Where a benchmark runs; tests use the CPU."""

    device: str = "cuda"
    dtype: str = "float16"

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    def wait(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()

    def free_bytes(self) -> int:
        return torch.cuda.mem_get_info()[0] if self.device != "cpu" else 1 << 30


GPU = Place()


def transformers_model(shape: Shape, place: Place = GPU) -> Any:
    """Returns a model of this shape with random weights."""
    transformers.logging.set_verbosity_error()
    config = transformers.AutoConfig.for_model(shape.model_type, **shape.config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=place.torch_dtype, attn_implementation="sdpa"
        )
    model = model.to_empty(device=place.device).eval()
    model.tie_weights()
    randomise(model)
    _restore_frequencies(model, config)
    model.generation_config.eos_token_id = None
    return model


def _restore_frequencies(model: nn.Module, config: Any) -> None:
    """Computes the RoPE frequencies: buffers that were created on the meta device have no
    values."""
    for name, buffer in model.named_buffers():
        if "inv_freq" not in name:
            continue
        width = config.hidden_size // config.num_attention_heads
        steps = torch.arange(0, width, 2, device=buffer.device, dtype=torch.float32) / width
        theta = config.rope_parameters["rope_theta"]
        module = model.get_submodule(name.rpartition(".")[0])
        setattr(module, name.rpartition(".")[2], theta**-steps)


# Weight formats that no `quantize` converts 16-bit weights to.
STORED = {"int4": four_bits.linear, "fp8_blocks": float8_blocks.linear}


def own_model(
    model: Any, place: Place = GPU, quantize: str = "none", kv_cache_dtype: str = "auto"
) -> DecoderModel:
    """Returns our model with the weights of a transformers model, taken from its memory, or
    quantised from there; formats of STORED have the weights as in folders of that format."""
    config = model.config.to_dict() | {"architectures": [type(model).__name__]}
    blueprint = decoder(config).blueprint(Config(config))
    live = {name: _Live(tensor) for name, tensor in model.state_dict().items()}
    checkpoint = Checkpoint(live, "the model", blueprint.prefix, blueprint.aliases)  # type: ignore[arg-type]
    asked = "none" if quantize in STORED else quantize
    there = _Direct(place.device, place.dtype, asked, kv_cache_dtype=kv_cache_dtype)
    there.linear_as_stored = STORED.get(quantize)
    return DecoderModel(blueprint, checkpoint, there, config=config, folder=None)


class _Joined(Tensor):
    """A tensor with support for numpy's `concatenate`, which joins the parts of a matrix."""

    def __array_function__(self, function: Any, types: Any, arguments: Any, named: Any) -> Tensor:
        if function is not np.concatenate:
            return NotImplemented
        return torch.cat([part.as_subclass(Tensor) for part in arguments[0]]).as_subclass(_Joined)


class _Live:
    """A tensor of the model, with the interface of a checkpoint's tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.shape = tuple(tensor.shape)
        self.dtype = str(tensor.dtype)
        self.is_float = tensor.is_floating_point()
        self._tensor = tensor.detach()

    def equals(self, other: _Live) -> bool:
        return torch.equal(self._tensor, other._tensor)

    def numbers(self, name: str, dtype: str) -> Any:
        return self._tensor.as_subclass(_Joined)


class _Direct(Placement):
    """Takes torch tensors of its device and dtype without a copy; the matrices of layers in a
    format of STORED where one is selected."""

    linear_as_stored: Callable[[Tensor, Any, kernels.Stream], kernels.Linear] | None = None

    def reserve(self, count: int, tag: str, quantized_bytes: int = 0) -> None:
        """Does nothing: the weights are already on the device."""

    def floats(self, array: Any, name: str = "tensor") -> kernels.Tensor:
        return _ours(array) if isinstance(array, Tensor) else super().floats(array, name)

    def layer_linear(self, weight: Any, bias: Any, name: str) -> kernels.Linear:
        if self.linear_as_stored is None:
            return super().layer_linear(weight, bias, name)
        return self.linear_as_stored(weight.as_subclass(Tensor), bias, self.stream)

    def _packed(self, weight: Any, bias: Any, name: str, stored: str) -> kernels.Linear:
        parts = [None if each is None else _ours(each) for each in (weight, bias)]
        found = kernels.Linear(*parts, self.stream, format=stored)
        self.stream.synchronize()  # before torch reuses the memory of joined tensors
        return found


def _ours(tensor: Tensor) -> kernels.Tensor:
    return view(tensor.as_subclass(Tensor).detach().contiguous())


@dataclass(frozen=True)
class Past:
    """Random keys and values of a case, the same for all contenders, generated one layer at a
    time."""

    case: Case
    place: Place = GPU
    float8: bool = False  # rounded to e4m3, so that a float8 cache holds the same values

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Returns keys and values, [batch, kv_heads, context, head_dim] each; the last position is
        that of the new token, which a step writes."""
        shape, case = self.case.shape, self.case
        generator = torch.Generator(self.place.device).manual_seed(1 + index)
        size = (2, case.batch, shape.kv_heads, case.context, shape.head_dim)
        both = torch.empty(size, device=self.place.device, dtype=self.place.torch_dtype)
        both.normal_(generator=generator)
        if self.float8:
            both.copy_(both.to(torch.float8_e4m3fn))
        keys, values = both.unbind(0)
        return keys, values

    def fill(self, layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        for index, (keys, values) in enumerate(layers):
            for to, source in zip((keys, values), self.layer(index), strict=True):
                to.copy_(source)


def random_ids(shape: Shape, count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, shape.vocabulary, count).tolist()


def tokenizer_folder(folder: Path, vocabulary: int) -> Path:
    """Writes a tokenizer of this vocabulary size, so that tokens become text as in service: 256
    bytes and invented words."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[:vocabulary]
    words = {character: index for index, character in enumerate(alphabet)}
    words |= {f"Ġw{index}": index for index in range(len(words), vocabulary)}
    backend = Tokenizer(models.BPE(vocab=words, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({}), encoding="utf-8")
    return folder
