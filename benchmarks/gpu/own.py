"""Our side: one forward of an encoder on the device, and ops captured for timing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from fusewire import from_torch, kernels
from fusewire.batch import Batch
from fusewire.models import EncoderModel
from fusewire.models.inputs import Inputs, packed_layout
from torch import Tensor, nn

from benchmarks.gpu.timing import Contender, Run


def encoder(
    model: nn.Module, device: str = "cuda", dtype: str = "float16", quantize: str = "none"
) -> EncoderModel:
    """Returns our model of a live fp32 module; forwards are captured where the device supports
    graphs."""
    found = from_torch(model, "hidden", device, dtype, quantize=quantize).model
    found.record_forwards()
    return found


def torch_stream(stream: kernels.Stream) -> torch.cuda.Stream | None:
    """Returns our stream as torch's, so that torch's events are ordered with it; None on the
    CPU."""
    return torch.cuda.ExternalStream(stream.handle) if stream.handle else None


class Fusewire:
    """An encoder with a batch loaded. `forward` is the device's work of `encode`, with inputs
    already there: the replay of its graph, or the launches where none was captured."""

    name = "fusewire"

    def __init__(self, model: EncoderModel, batch: Batch) -> None:
        self.model = model
        self.stream = torch_stream(model.place.stream)
        self.computed_tokens = 0
        self.replayed = False
        self.load(batch)

    def load(self, batch: Batch) -> None:
        model, place = self.model, self.model.place
        with place.tuning():
            for _ in range(2):  # a shape is captured when it comes again
                self._hidden = model.encode(batch)
        self.computed_tokens = model.computed_tokens
        graph = _recording(model, batch)
        self.replayed = graph is not None
        if graph is not None:
            self.forward: Run = lambda: graph.replay(place.stream)
            return
        arrays = model._arrays(batch, np.diff(batch.cu_seqlens))
        inputs = Inputs.upload(packed_layout(batch.tokens, batch.sequences), arrays, place)
        sequences = inputs.sequences(batch.cu_seqlens)
        hidden = self._hidden = place.empty(batch.tokens, model.hidden_size)
        self.forward = lambda: model._forward(inputs, sequences, hidden)

    def output(self) -> Tensor:
        return torch.from_numpy(self.model.place.numpy(self._hidden))


def _recording(model: EncoderModel, batch: Batch) -> kernels.Graph | None:
    if model._replays is None:
        return None
    bucket = model._replays.bucket(batch.tokens, batch.sequences, batch.max_seqlen)
    if bucket is None:
        return None
    found = model._replays.recorded.get(bucket)
    return None if found is None else found[1]


def view(tensor: Tensor) -> kernels.Tensor:
    """Returns our tensor over the same memory, after waiting for torch's work on it."""
    if tensor.is_cuda:
        torch.cuda.synchronize()
    return kernels.Tensor.from_dlpack(tensor)


def launches(name: str, stream: kernels.Stream, calls: Sequence[Run]) -> Contender:
    """Returns all `calls` as one captured graph: how they run in a model, without the host's
    time."""

    def work() -> None:
        for call in calls:
            call()

    stream.tuning = True
    work()  # allocates memory and chooses kernels, which is not possible during capture
    stream.tuning = False
    stream.synchronize()
    if not stream.can_capture:
        return Contender(name, work, None, len(calls))
    replay = partial(_replay, kernels.capture(stream, work), stream, work)
    return Contender(name, replay, torch_stream(stream), len(calls))


def _replay(graph: kernels.Graph, stream: kernels.Stream, work: Run) -> None:
    """Replays the graph. `work` keeps the tensors alive whose addresses the graph has."""
    graph.replay(stream)
