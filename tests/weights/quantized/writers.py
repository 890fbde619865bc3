"""Quantised layers written bit by bit, as their formats lay them out, with the weights that they
stand for; and whole folders of them.

Nothing here is shared with the reader: integers are packed one at a time, weights are computed one
at a time from the integers before these are packed, and FP8 is torch's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.reference import edit_config

INPUT_SCALE = 0.03  # of static activations
AWQ_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)  # of a word's columns


@dataclass
class Layer:
    """One quantised layer: its tensors by the last part of their names, and its weight."""

    tensors: dict[str, torch.Tensor]
    weight: np.ndarray  # fp32 [out_features, in_features]


@dataclass
class Format:
    """A way to quantise: a writer of layers, and what config.json says of them."""

    write: Callable[[np.ndarray], Layer]
    config: dict[str, Any]
    key: str = field(default="quantization_config")


@dataclass
class _Integers:
    """Codes from 0 on, and for each row and group the scale and the code of zero."""

    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray
    groups: np.ndarray

    def weight(self) -> np.ndarray:
        weight = np.empty(self.codes.shape, np.float32)
        for row in range(weight.shape[0]):
            for column in range(weight.shape[1]):
                group = self.groups[column]
                number = int(self.codes[row, column]) - int(self.zeros[row, group])
                weight[row, column] = np.float32(number) * np.float32(self.scales[row, group])
        return weight


def integers(weight: np.ndarray, bits: int, groups: np.ndarray, symmetric: bool) -> _Integers:
    """Rounded to the nearest of 2 ** bits numbers, group by group; scales are of fp16."""
    rows, most = weight.shape[0], (1 << bits) - 1
    count = int(groups.max()) + 1
    codes = np.zeros(weight.shape, np.int64)
    scales = np.zeros((rows, count), np.float16)
    zeros = np.zeros((rows, count), np.int64)
    for row in range(rows):
        for group in range(count):
            values = weight[row, groups == group]
            if symmetric:
                scale, zero = np.abs(values).max() / (most // 2), (most + 1) // 2
            else:
                low, high = min(values.min(), 0), max(values.max(), 0)
                scale = (high - low) / (most - 1)
                zero = round(float(-low / scale))
            scales[row, group] = scale
            zeros[row, group] = zero
            code = np.rint(values / np.float32(scales[row, group])) + zero
            codes[row, groups == group] = np.clip(code, 0, most)
    return _Integers(codes, scales, zeros, groups)


def packed(codes: np.ndarray, bits: int, axis: int, nibbles: tuple[int, ...] = ()) -> torch.Tensor:
    """Codes in words of 32 bits along an axis, one bit after the other."""
    if axis == 0:
        return packed(codes.T, bits, 1, nibbles).T.contiguous()
    count = 32 // bits
    places = nibbles or range(count)
    words = np.zeros((codes.shape[0], -(-codes.shape[1] // count)), np.uint32)
    for row in range(codes.shape[0]):
        for column in range(codes.shape[1]):
            for bit in range(bits):
                if int(codes[row, column]) >> bit & 1:
                    at = places[column % count] * bits + bit
                    words[row, column // count] |= np.uint32(1 << at)
    return torch.from_numpy(words.view(np.int32))


def _less(words: torch.Tensor, number: int) -> torch.Tensor:
    whole = [[(word - number) % (1 << 32) for word in row] for row in words.tolist()]
    return torch.tensor(whole).to(torch.int32)


def in_order(columns: int, size: int) -> np.ndarray:
    return np.array([column // size for column in range(columns)])


def shuffled(columns: int, size: int) -> np.ndarray:
    return np.random.default_rng(columns).permutation(in_order(columns, size))


def gptq(
    bits: int = 4,
    group_size: int = 16,
    *,
    symmetric: bool = True,
    act_order: bool = False,
    version: str = "gptq",
    method: str = "gptq",
) -> Format:
    # Version 1 has GPTQModel's words: one less in each code, borrowed from the next if it is 0.
    less = sum(1 << at for at in range(0, 32, bits)) if version == "gptq" else 0

    def write(weight: np.ndarray) -> Layer:
        size = weight.shape[1] if group_size == -1 else group_size
        groups = (shuffled if act_order else in_order)(weight.shape[1], size)
        whole = integers(weight, bits, groups, symmetric)
        tensors = {
            "qweight": packed(whole.codes.T, bits, 0),
            "qzeros": _less(packed(whole.zeros.T, bits, 1), less),
            "scales": torch.from_numpy(whole.scales.T.copy()),
            "g_idx": torch.from_numpy(groups.astype(np.int32)),
        }
        return Layer(tensors, whole.weight())

    config = {"quant_method": method, "bits": bits, "group_size": group_size, "sym": symmetric}
    if method == "auto-round":
        config["packing_format"] = "auto_round:auto_gptq"
    else:
        config |= {"desc_act": act_order, "checkpoint_format": version}
    return Format(write, config)


def awq(group_size: int = 8) -> Format:
    def write(weight: np.ndarray) -> Layer:
        whole = integers(weight, 4, in_order(weight.shape[1], group_size), symmetric=False)
        tensors = {
            "qweight": packed(whole.codes.T, 4, 1, AWQ_NIBBLES),
            "qzeros": packed(whole.zeros.T, 4, 1, AWQ_NIBBLES),
            "scales": torch.from_numpy(whole.scales.T.copy()),
        }
        return Layer(tensors, whole.weight())

    config = {"bits": 4, "group_size": group_size, "version": "gemm", "zero_point": True}
    return Format(write, {"quant_method": "awq", "modules_to_not_convert": None, **config})


def compressed_tensors(
    write: Callable[[np.ndarray], Layer], form: str, weights: dict[str, Any], **more: Any
) -> Format:
    group = {"weights": weights, "input_activations": None, "targets": ["Linear"]}
    config = {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
    }
    return Format(write, config | more)


def pack_quantized(
    bits: int = 4, group_size: int = 16, *, symmetric: bool = True, act_order: bool = False
) -> Format:
    def write(weight: np.ndarray) -> Layer:
        size = weight.shape[1] if group_size == -1 else group_size
        groups = (shuffled if act_order else in_order)(weight.shape[1], size)
        whole = integers(weight, bits, groups, symmetric)
        tensors = {
            "weight_packed": packed(whole.codes, bits, 1),
            "weight_scale": torch.from_numpy(whole.scales),
            "weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            tensors["weight_zero_point"] = packed(whole.zeros, bits, 0)
        if act_order:
            tensors["weight_g_idx"] = torch.from_numpy(groups.astype(np.int32))
        return Layer(tensors, whole.weight())

    strategy = {"strategy": "channel" if group_size == -1 else "group"}
    order = {"actorder": "group" if act_order else None}
    numbers = {"num_bits": bits, "type": "int", "symmetric": symmetric, "dynamic": False}
    size = {"group_size": None if group_size == -1 else group_size}
    return compressed_tensors(write, "pack-quantized", numbers | strategy | order | size)


def int_quantized(
    strategy: str = "channel", *, symmetric: bool = True, bits: int = 8, group_size: int = 16
) -> Format:
    def write(weight: np.ndarray) -> Layer:
        flat = weight.reshape(1, -1) if strategy == "tensor" else weight
        size = group_size if strategy == "group" else flat.shape[1]
        whole = integers(flat, bits, in_order(flat.shape[1], size), symmetric)
        codes = (whole.codes - (1 << bits - 1)).reshape(weight.shape).astype(np.int8)
        shape = (1,) if strategy == "tensor" else whole.scales.shape
        tensors = {
            "weight": torch.from_numpy(codes),
            "weight_scale": torch.from_numpy(whole.scales.reshape(shape)).bfloat16(),
        }
        whole.scales = tensors["weight_scale"].float().numpy().reshape(whole.scales.shape)
        if not symmetric:
            zeros = (whole.zeros - (1 << bits - 1)).astype(np.int8)
            tensors["weight_zero_point"] = torch.from_numpy(zeros.reshape(shape))
        return Layer(tensors, whole.weight().reshape(weight.shape))

    numbers = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": strategy}
    if strategy == "group":
        numbers["group_size"] = group_size
    return compressed_tensors(write, "int-quantized", numbers)


def float8(
    weight: np.ndarray, block: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """FP8 codes, a scale for each block, and the weight."""
    rows, columns = weight.shape
    codes = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    scales = torch.empty(-(-rows // block[0]), -(-columns // block[1]))
    for i, top in enumerate(range(0, rows, block[0])):
        for j, left in enumerate(range(0, columns, block[1])):
            at = (slice(top, top + block[0]), slice(left, left + block[1]))
            values = torch.from_numpy(weight[at].copy())
            scales[i, j] = values.abs().max() / 448
            codes[at] = (values / scales[i, j]).to(torch.float8_e4m3fn)
    dequantised, factors = codes.float().numpy(), scales.numpy()
    for row in range(rows):
        for column in range(columns):
            dequantised[row, column] *= factors[row // block[0], column // block[1]]
    return codes, scales, dequantised


def block_fp8(block: tuple[int, int] | None = (32, 16)) -> Format:
    def write(weight: np.ndarray) -> Layer:
        codes, scales, dequantised = float8(weight, block or weight.shape)
        scales = scales if block else scales.reshape(())
        return Layer({"weight": codes, "weight_scale_inv": scales}, dequantised)

    sizes = list(block) if block else None
    config = {"activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": sizes}
    return Format(write, {"quant_method": "fp8", **config})


def float_quantized(
    strategy: str = "channel",
    form: str = "float-quantized",
    block: tuple[int, int] = (32, 16),
) -> Format:
    def write(weight: np.ndarray) -> Layer:
        blocks = {"tensor": weight.shape, "channel": (1, weight.shape[1]), "block": block}
        codes, scales, dequantised = float8(weight, blocks[strategy])
        scales = scales.reshape(1) if strategy == "tensor" else scales
        return Layer({"weight": codes, "weight_scale": scales}, dequantised)

    numbers = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy}
    if strategy == "block":
        numbers["block_structure"] = list(block)
    return compressed_tensors(write, form, numbers)


def w8a8(strategy: str = "channel", kind: str = "int", /, **activations: Any) -> Format:
    """Weights in int8 or FP8, by their `kind`, and activations by the token when they are
    multiplied."""
    size = activations.get("group_size", 16)
    blocks = float_quantized(strategy, block=(size, size))
    form = int_quantized(strategy) if kind == "int" else blocks
    by_token = {"num_bits": 8, "type": kind, "symmetric": True, "strategy": "token"}
    group = form.config["config_groups"]["group_0"]
    group = group | {"input_activations": by_token | {"dynamic": True} | activations}
    return Format(form.write, form.config | {"config_groups": {"group_0": group}})


def with_input_scale(form: Format, name: str) -> Format:
    """With a scale for the activations of each layer."""

    def write(weight: np.ndarray) -> Layer:
        layer = form.write(weight)
        return Layer(layer.tensors | {name: torch.tensor(INPUT_SCALE)}, layer.weight)

    return Format(write, form.config, form.key)


def static_fp8(name: str = "activation_scale") -> Format:
    """quant_method fp8, one scale for the tensor and one for its activations, by the name that
    transformers gives it, or input_scale."""
    form = with_input_scale(block_fp8(None), name)
    return Format(form.write, form.config | {"activation_scheme": "static"})


def static_w8a8(strategy: str = "tensor") -> Format:
    """compressed-tensors' FP8 with one scale for all activations of a layer."""
    form = w8a8(strategy, "float", strategy="tensor", dynamic=False)
    return with_input_scale(form, "input_scale")


def fp8_of_blocks() -> Format:
    """compressed-tensors' FP8 in blocks, with activations in groups of as many inputs."""
    return w8a8("block", "float", strategy="group", group_size=128)


FORMATS: Mapping[str, Format] = {
    "gptq": gptq(),
    "gptq-asymmetric": gptq(symmetric=False),
    "gptq-act-order": gptq(act_order=True),
    "gptq-v2": gptq(symmetric=False, version="gptq_v2"),
    "gptq-2": gptq(2, 8),
    "gptq-8": gptq(8, -1),
    "auto-round": gptq(method="auto-round"),
    "awq": awq(),
    "auto-round-awq": Format(
        awq().write,
        {
            "quant_method": "auto-round",
            "packing_format": "auto_round:auto_awq",
            "bits": 4,
            "group_size": 8,
        },
    ),
    "pack": pack_quantized(),
    "pack-asymmetric": pack_quantized(symmetric=False),
    "pack-act-order": pack_quantized(act_order=True, symmetric=False),
    "pack-8": pack_quantized(8, -1),
    "pack-2": pack_quantized(2, 8),
    "int8": int_quantized(),
    "int8-asymmetric": int_quantized(symmetric=False),
    "int8-group": int_quantized("group", symmetric=False),
    "int8-tensor": int_quantized("tensor"),
    "int4-in-bytes": int_quantized(bits=4),
    "fp8": float_quantized(),
    "fp8-tensor": float_quantized("tensor", "naive-quantized"),
    "fp8-block": float_quantized("block"),
    "fp8-inverse": block_fp8(),
    "fp8-whole": block_fp8(None),
    "fp8-static": static_fp8("input_scale"),
    "fp8-static-channel": static_w8a8("channel"),
}


def write_layer(folder: Path, form: Format, weight: np.ndarray, name: str = "layer") -> Layer:
    """A folder with one layer."""
    folder.mkdir(parents=True, exist_ok=True)
    layer = form.write(weight)
    tensors = {f"{name}.{part}": tensor for part, tensor in layer.tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({form.key: form.config}))
    return layer


def quantise(
    folder: Path, model: Any, form: Format, plain: tuple[str, ...] = ("lm_head",), shards: int = 1
) -> None:
    """Quantises the linear layers of the folder's model, but those whose names end so, and gives
    `model` the weights that this makes of them."""
    kinds = (torch.nn.Linear, transformers.pytorch_utils.Conv1D)
    tensors = load_file(folder / "model.safetensors")
    for name, module in model.named_modules():
        if isinstance(module, kinds) and not name.endswith(plain):
            transposed = not isinstance(module, torch.nn.Linear)
            weight = module.weight.detach().numpy()
            layer = form.write(weight.T.copy() if transposed else weight)
            del tensors[f"{name}.weight"]
            tensors |= {f"{name}.{part}": tensor for part, tensor in layer.tensors.items()}
            dequantised = torch.from_numpy(layer.weight.T if transposed else layer.weight)
            with torch.no_grad():
                module.weight.copy_(dequantised)
    edit_config(folder, **{form.key: form.config})
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for index in range(shards):  # the parts of a layer lie in different files
        names = sorted(tensors)[index::shards]
        file = f"model-{index + 1:05}-of-{shards:05}.safetensors"
        save_file({name: tensors[name] for name in names}, folder / file)
        weight_map |= dict.fromkeys(names, file)
    index_file = folder / "model.safetensors.index.json"
    index_file.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
