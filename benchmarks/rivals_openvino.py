"""OpenVINO as a system of `rivals`, with the best settings for each load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def openvino(folder: Path, threads: int) -> Any:
    """Converted from torch, with OpenVINO's fused attention."""
    return compiled(converted(folder, threads), threads)


def compiled(model: Any, threads: int) -> Any:
    """Compiles a model of ids, mask and segments; returns its run function.

    One sequence: latency hint. Several: throughput hint and an asynchronous request for each, which
    computes no padding and was faster than a padded batch under either hint. The inference
    precision is f32, because the default is bf16 where the processor has it.
    """
    import openvino as ov

    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
    core = ov.Core()
    alone, many = (
        core.compile_model(model, "CPU", settings | {"PERFORMANCE_HINT": hint})
        for hint in ("LATENCY", "THROUGHPUT")
    )
    request, queue = alone.create_infer_request(), ov.AsyncInferQueue(many)
    found: dict[int, np.ndarray] = {}
    queue.set_callback(
        lambda done, place: found.update({place: done.output_tensors[0].data.copy()})
    )

    def run(sequences: list[np.ndarray]) -> Any:
        feeds = [
            [ids[None], np.ones_like(ids)[None], np.zeros_like(ids)[None]] for ids in sequences
        ]
        if len(feeds) == 1:
            request.infer(feeds[0], share_inputs=True)
            return request.output_tensors[0].data.copy()[0]
        for place, feed in enumerate(feeds):
            queue.start_async(feed, place, share_inputs=True)
        queue.wait_all()
        return np.concatenate([found[place][0] for place in range(len(feeds))])

    return run


def converted(folder: Path, threads: int) -> Any:
    """Converts transformers' BertModel, from ids, mask and segments to the last hidden state."""
    import openvino as ov

    from benchmarks.rivals import load_bert

    torch, model = load_bert(folder, threads)

    class LastHiddenState(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            return self.model(input_ids, attention_mask, token_type_ids).last_hidden_state

    ids = torch.randint(5, 100, (2, 7))
    example = ids, torch.ones_like(ids), torch.zeros_like(ids)
    with torch.no_grad():
        return ov.convert_model(LastHiddenState(), example_input=example)
