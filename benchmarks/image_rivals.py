"""The systems that `benchmarks.images` compares: from pixel values on the host to logits on the
host.

A system is a function `(folder, device, threads) -> run`, and `run(pixels)` takes float32 [images,
3, height, width] and returns float32 [images, labels]. fp32 on the CPU, fp16 on a GPU. Each runs in
its own process, so imports stay inside the functions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Run = Callable[[np.ndarray], np.ndarray]

_DIVIDED = "divided"


def fusewire(folder: Path, device: str, threads: int) -> Run:
    from fusewire import kernels
    from fusewire.models import load_image_model
    from fusewire.placement import Placement

    kernels.set_num_threads(threads)
    model = load_image_model(folder, "label", Placement(device))
    model.record_forwards(1 << 16)  # about the tokens of 256 images

    def run(pixels: np.ndarray) -> np.ndarray:
        return model.results(model.encode(list(pixels)))

    return run


def torch_eager(folder: Path, device: str, threads: int) -> Run:
    """transformers with its defaults and SDPA."""
    return _torch(folder, device, threads, lambda model: model)


def torch_compiled(folder: Path, device: str, threads: int) -> Run:
    """Compiled for one shape; on a GPU as a CUDA graph, with cuDNN's attention where possible."""

    def compiled(model: Any) -> Any:
        import torch

        mode = "default" if device == "cpu" else "reduce-overhead"
        return torch.compile(model, mode=mode, dynamic=False)

    return _torch(folder, device, threads, compiled)


def onnxruntime(folder: Path, device: str, threads: int) -> Run:
    """Exported from torch and fused by ONNX Runtime's own Transformer optimizer."""
    import torch

    from benchmarks.rivals import fused_session

    _register_divided(torch)
    model = _load(folder, threads, attn_implementation=_DIVIDED)
    varies = {0: "batch"}
    session = fused_session(
        "vit",
        _logits(model),
        (_example(model.config),),
        {"pixel_values": varies},
        {"logits": varies},
        model.config,
        threads,
    )

    def run(pixels: np.ndarray) -> np.ndarray:
        return session.run(None, {"pixel_values": pixels})[0]

    return run


def openvino(folder: Path, device: str, threads: int) -> Run:
    """Converted from torch, one batch per request, in f32: the default is bf16 where the processor
    has it."""
    compiled = _openvino(folder, threads, "LATENCY")
    request = compiled.create_infer_request()

    def run(pixels: np.ndarray) -> np.ndarray:
        request.infer([pixels], share_inputs=True)
        return request.output_tensors[0].data.copy()

    return run


def openvino_async(folder: Path, device: str, threads: int) -> Run:
    """As `openvino`, with an asynchronous request for each image."""
    import openvino as ov

    queue = ov.AsyncInferQueue(_openvino(folder, threads, "THROUGHPUT"))
    found: dict[int, np.ndarray] = {}
    queue.set_callback(
        lambda done, place: found.update({place: done.output_tensors[0].data.copy()})
    )

    def run(pixels: np.ndarray) -> np.ndarray:
        for place, image in enumerate(pixels):
            queue.start_async([image[None]], place, share_inputs=True)
        queue.wait_all()
        return np.concatenate([found[place] for place in range(len(pixels))])

    return run


SYSTEMS: dict[str, Callable[[Path, str, int], Run]] = {
    "fusewire": fusewire,
    "torch-eager": torch_eager,
    "torch-compiled": torch_compiled,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
    "openvino-async": openvino_async,
}
ON_GPU = ("fusewire", "torch-eager", "torch-compiled")


def write_vit(folder: Path, **sizes: int) -> None:
    """Writes ViT's shape with seeded random weights and 1000 labels as a Hugging Face folder."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.ViTConfig(**sizes, num_labels=1000)
    transformers.ViTForImageClassification(config).eval().save_pretrained(folder)


def exact(folder: Path, threads: int) -> Run:
    """transformers in fp32 on the CPU, the reference of all systems."""
    return torch_eager(folder, "cpu", threads)


def _torch(folder: Path, device: str, threads: int, made: Callable[[Any], Any]) -> Run:
    import torch

    loaded = _load(folder, threads).to(device)
    dtype = torch.float32 if device == "cpu" else torch.float16
    model = made(loaded.to(dtype))

    def run(pixels: np.ndarray) -> np.ndarray:
        with torch.inference_mode(), _attention(torch, device):
            logits = model(torch.from_numpy(pixels).to(device, dtype)).logits
            return logits.float().cpu().numpy()

    return run


def _attention(torch: Any, device: str) -> Any:
    if device == "cpu":
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    first = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
    return sdpa_kernel(first, set_priority=True)


def _load(folder: Path, threads: int, **options: Any) -> Any:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(threads)
    with contextlib.suppress(RuntimeError):  # already set in a process that loads two
        torch.set_num_interop_threads(1)
    return transformers.ViTForImageClassification.from_pretrained(folder, **options).eval()


def _openvino(folder: Path, threads: int, hint: str) -> Any:
    import openvino as ov
    import torch

    model = _load(folder, threads)
    with torch.no_grad():
        converted = ov.convert_model(_logits(model), example_input=_example(model.config))
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": hint,
    }
    return ov.Core().compile_model(converted, "CPU", settings)


def _register_divided(torch: Any) -> None:
    """Registers attention as ONNX Runtime's optimizer recognises it: scores are divided, not
    multiplied."""
    import transformers

    def attention(module: Any, q: Any, k: Any, v: Any, mask: Any, **options: Any) -> Any:
        scores = q @ k.transpose(-1, -2) / float(q.shape[-1]) ** 0.5
        return (torch.softmax(scores, -1) @ v).transpose(1, 2), None

    transformers.AttentionInterface.register(_DIVIDED, attention)


def _logits(model: Any) -> Any:
    import torch

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, pixel_values: Any) -> Any:
            return self.model(pixel_values).logits

    return Logits().eval()


def _example(config: Any) -> Any:
    import torch

    return torch.randn(2, 3, config.image_size, config.image_size)
