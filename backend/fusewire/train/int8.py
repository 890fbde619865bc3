"""Quantisation-aware training: layers compute with the int8 values that are served, and are saved
as these.

A product rounds its weight and the rows of x to int8 as in serving, with the same kernel. The
gradients are those of the product of the rounded matrices, as if rounding were the identity
(straight-through estimator; Jacob et al. 2018, Quantization and Training of Neural Networks).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from fusewire import kernels
from fusewire.errors import ConfigurationError
from fusewire.train.arguments import refuse_autocast
from fusewire.train.layers import TrainedLayers
from fusewire.train.torch_tensors import view

_LARGEST = 127
_OF_A_LAYER = re.compile(r"\.\d+\.")  # in a list of modules


class Int8Linear(nn.Linear):
    """A linear layer on the CPU whose weight and rows of x are rounded to int8."""

    @property
    def by_output(self) -> Tensor:
        """The weight [out_features, in_features]."""
        return self.weight

    def forward(self, input: Tensor) -> Tensor:
        refuse_autocast(type(self).__name__)
        product: Tensor = _Product.apply(input, self.by_output, self.bias)
        return product


class Int8Conv1D(Conv1D):
    """As Int8Linear, of GPT-2, whose weights are [in_features, out_features]."""

    @property
    def by_output(self) -> Tensor:
        """The weight [out_features, in_features]."""
        return self.weight.T

    def forward(self, x: Tensor) -> Tensor:
        refuse_autocast(type(self).__name__)
        product: Tensor = _Product.apply(x, self.by_output, self.bias)
        return product


_ROUNDED: dict[type[nn.Module], type[Int8Linear | Int8Conv1D]] = {
    nn.Linear: Int8Linear,
    Conv1D: Int8Conv1D,
}


def int8_layers(model: nn.Module, skip: Collection[str] = ()) -> nn.Module:
    """Replaces, in place, the `nn.Linear` modules of the model's layers by Int8Linear and the
    `Conv1D` modules (GPT-2) by Int8Conv1D, with the same parameters, except for the modules that
    `skip` names. The model is fp32 on the CPU. Returns it. Raises ConfigurationError where it has
    no such modules, where they are not fp32 on the CPU, where `skip` names another module, and for
    a model that `replace` has changed."""
    skip = {skip} if isinstance(skip, str) else set(skip)
    found = {
        name: module
        for name, module in model.named_modules()
        if type(module) in (*_ROUNDED.keys(), *_ROUNDED.values()) and _OF_A_LAYER.search(name)
    }
    owned = (module.__dict__.get("fusewire") for module in model.modules())
    if any(isinstance(each, TrainedLayers) for each in owned):
        raise ConfigurationError(
            "int8_layers: got a model whose layers `replace` trains, in fp32, wanted transformers' "
            "own; leave `replace` out"
        )
    for name, module in found.items():
        _check(module.weight, f"int8_layers: {name}")
    unknown = sorted(skip - found.keys())
    if unknown or not found:
        got = f"{unknown[0]!r} to skip" if unknown else f"a {type(model).__name__} without any"
        raise ConfigurationError(
            f"int8_layers: got {got}, wanted nn.Linear or Conv1D modules of layers; correct the "
            "names, or take a model that has them"
        )
    for name, module in found.items():  # of an earlier call too
        plain = nn.Linear if isinstance(module, nn.Linear) else Conv1D
        module.__class__ = plain if name in skip else _ROUNDED[plain]
    return model


def save_int8(model: Any, folder: Path | str) -> None:
    """Saves a transformers model as a folder in which Int8Linear and Int8Conv1D modules are stored
    as int8 [out_features, in_features] with a scale per output (compressed-tensors, W8A8): the
    served folder gives the model's results. The tokenizer and an image processor are not saved.
    Raises ConfigurationError where no module is one of these, where a parameter is not fp32 on the
    CPU or not finite, where one of several matrices that transformers stores as one is skipped, and
    where `folder` is a file."""
    folder = Path(folder)
    if folder.is_file():  # save_pretrained only logs this
        raise ConfigurationError(
            f"save_int8: got {folder.name}, which is a file, wanted a folder; give another name"
        )
    state = model.state_dict()
    for name, parameter in model.named_parameters():
        _check(parameter, f"save_int8: {name}")
        if not torch.isfinite(parameter).all():  # int8 could not represent NaN and Inf
            raise ConfigurationError(
                f"save_int8: got NaN or Inf in {name}, wanted finite numbers; train with a lower "
                "learning rate, or go back to a checkpoint"
            )
    found = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, Int8Linear | Int8Conv1D)
    }
    if not found:
        raise ConfigurationError(
            "save_int8: got a model without modules in int8, wanted one that int8_layers gave "
            "them; call it, or save_pretrained"
        )
    scales = {}
    for name, module in found.items():
        state[f"{name}.weight"], by_row = _integers(module.by_output.detach().contiguous())
        # A row of zeros has the scale 0; the format wants a positive one.
        scales[f"{name}.weight"] = torch.where(by_row > 0, by_row, 1.0)
    state |= {f"{name}_scale": each for name, each in _joined(model, scales).items()}
    model.save_pretrained(folder, state_dict=state)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    others = [
        name
        for name, module in model.named_modules()
        if isinstance(module, tuple(_ROUNDED)) and name not in found
    ]
    kinds = {
        plain.__name__
        for plain, rounded in _ROUNDED.items()
        if any(isinstance(module, rounded) for module in found.values())
    }
    config["quantization_config"] = _quantization(sorted(kinds), others)
    path.write_text(json.dumps(config, indent=2))


def _joined(model: Any, scales: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the scales of weights by the names of these, or where transformers stores several
    weights as one (the gate and up projection of DINOv2), by their stored names and joined too.
    Raises ConfigurationError where a part of one would be in int8."""
    zeros = {  # for those that are skipped
        f"{name}.weight": torch.zeros(module.weight.shape[isinstance(module, Conv1D)], 1)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and _OF_A_LAYER.search(name)
    }
    given = zeros | scales
    with TemporaryDirectory() as scratch:
        model.save_pretrained(scratch, state_dict=given)
        stored = load_file(Path(scratch) / "model.safetensors")
    if len(stored) == len(given):
        return scales
    for name, each in stored.items():
        if 0 < torch.count_nonzero(each) < len(each):
            raise ConfigurationError(
                f"save_int8: got a part of {name} in int8, wanted all or nothing of what "
                "transformers stores as one; skip the other modules that read the same input too"
            )
    return {name: each for name, each in stored.items() if each.all()}


def _check(parameter: Tensor, what: str) -> None:
    if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
        raise ConfigurationError(
            f"{what}: got {parameter.dtype} on {parameter.device}, wanted float32 on the CPU; "
            'convert it with model.float().to("cpu")'
        )


def _quantization(targets: list[str], ignored: list[str]) -> dict[str, Any]:
    """`targets`: classes of modules; `ignored`: names of those that are not quantised."""
    numbers = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {
        "targets": targets,
        "weights": numbers | {"strategy": "channel", "dynamic": False},
        "input_activations": numbers | {"strategy": "token", "dynamic": True},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ignored,
    }


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows = x.detach().reshape(-1, x.shape[-1]).contiguous()
        out = rows.new_empty(rows.shape[0], weight.shape[0])
        there = None if bias is None else view(bias)
        linear = kernels.Linear(view(weight.contiguous()), there, format="int8")
        if len(rows):
            kernels.linear(view(out), view(rows), linear, "none")
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None
        return out.reshape(*x.shape[:-1], len(weight))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        (dout,) = gradients
        x, weight = ctx.saved_tensors
        dx = dout @ _rounded(weight)
        flat = dout.reshape(-1, dout.shape[-1])
        dweight = flat.T @ _rounded(x.reshape(-1, x.shape[-1]))
        return dx, dweight, flat.sum(0) if ctx.biased else None


def _integers(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix as a packed weight holds it: int8 [rows, columns], and fp32 scales [rows, 1]."""
    scales = matrix.abs().amax(1, keepdim=True) / _LARGEST
    return torch.round(matrix / torch.where(scales > 0, scales, 1.0)).to(torch.int8), scales


def _rounded(matrix: Tensor) -> Tensor:
    integers, scales = _integers(matrix)
    return integers * scales
