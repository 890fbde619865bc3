"""Systems of `rivals` by weight format: ours, and others' int8.

All of them quantise activations dynamically: by token in ours and in CTranslate2, by tensor in ONNX
Runtime and OpenVINO. Each name begins with the system's package.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import rivals
from benchmarks.rivals_openvino import compiled

EXACT = "fusewire float32"


def openvino(folder: Path, threads: int) -> rivals.Run:
    """OpenVINO with the unfused graph that ONNX Runtime's tool quantised: its own tool for that,
    NNCF, is a separate package."""
    import openvino as ov
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic

    _, model = rivals.load_bert(folder, threads)
    ids = torch.randint(5, 100, (2, 7))
    both = {0: "batch", 1: "length"}
    names = ["input_ids", "attention_mask", "token_type_ids"]
    with tempfile.TemporaryDirectory() as work:
        plain, int8 = f"{work}/plain.onnx", f"{work}/int8.onnx"
        torch.onnx.export(
            rivals.plain_bert(torch, model),
            (ids, torch.ones_like(ids), torch.zeros_like(ids)),
            plain,
            input_names=names,
            output_names=["last_hidden_state"],
            dynamic_axes=dict.fromkeys([*names, "last_hidden_state"], both),
            opset_version=17,
            dynamo=False,
        )
        quantize_dynamic(plain, int8, per_channel=True, weight_type=QuantType.QInt8)
        return compiled(ov.Core().read_model(int8), threads)


SYSTEMS: dict[str, Callable[[Path, int], Any]] = {
    EXACT: rivals.fusewire,
    "fusewire bfloat16": partial(rivals.fusewire, dtype="bfloat16"),
    "fusewire int8": partial(rivals.fusewire, quantize="int8"),
    "ctranslate2 int8": partial(rivals.ctranslate2, compute_type="int8"),
    "onnxruntime int8": partial(rivals.onnxruntime, int8=True),
    "openvino int8": openvino,
}

# The packages that a system imports.
PACKAGES = {
    "ctranslate2 float32": ("ctranslate2",),
    "ctranslate2 int8": ("ctranslate2",),
    "onnxruntime int8": ("onnxruntime", "onnx"),
    "openvino int8": ("openvino", "onnxruntime", "onnx"),
}
