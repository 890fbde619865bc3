"""A whole step of training recorded on a GPU: forward, backward, clipping, Adam in one launch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from fusewire.errors import ConfigurationError, InvalidInput, Unsupported
from fusewire.models.recordings import no_collection
from fusewire.train.adam import Adam
from fusewire.train.arguments import refuse_flattened
from fusewire.train.bucket import PackedBucket, bucket_of
from fusewire.train.flat import FlatParameters
from fusewire.train.kept import keeping
from fusewire.train.packed import prepared, tokens_of

# Of steps that are kept, least recently used out: each has memory of its own for its launches.
_MOST_RECORDED = 128
_IGNORED_LABEL = -100  # torch's, of places that are padding

Batch = Mapping[str, torch.Tensor]


class Step:
    """A step of training of a model that `replace` changed, with everything in it:

        step = fusewire.train.Step(model, optimizer, dtype=torch.bfloat16)
        for batch in loader:  # with attention_mask; best left on the CPU
            loss = step(batch)  # a tensor on the GPU, that nobody waits for
            schedule.step()

    On a GPU the step of a bucket of sizes (rows, length, tokens) is computed as it is the first
    time, and recorded as one CUDA graph the second: from then on it is one launch. Batches are
    rounded up to their bucket, tokens by 1 in 16 at most. Rows and places must be 2-dimensional
    `input_ids`, other tensors as the model takes them; padding is 0 and of labels -100.

    `optimizer`: an Adam, whose learning rates and decays may change between steps; `max_grad_norm`
    and betas may not. A step whose gradients are not finite is skipped and counted by it. Dropout
    draws anew in every step from torch's generators. `loss(model, batch)` computes
    what is minimised, by default `model(**batch).loss`; it must not wait for the device. `dtype`:
    autocast's, float32 without. Gradients are those of one batch, and `.grad` is None after a step.

    On the CPU each step is computed as it is. Raises ConfigurationError for a model that was not
    replaced and another optimizer, Unsupported for encoder-decoder models and flattened batches,
    InvalidInput for a batch without input_ids.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Adam,
        *,
        loss: Callable[[Any, Batch], torch.Tensor] | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        modules: list[Any] = [each for each in model.modules() if hasattr(each, "fusewire")]
        self._flats: set[FlatParameters] = {each.fusewire.flat for each in modules}
        if not self._flats:
            raise ConfigurationError(
                f"model: got {type(model).__name__}, wanted one that fusewire.train.replace changed"
            )
        if getattr(modules[0].config, "is_encoder_decoder", False):
            raise Unsupported(
                "Step",
                type(model).__name__,
                "an encoder or a decoder alone",
                "call backward() and optimizer.step() yourself",
            )
        if not isinstance(optimizer, Adam):
            raise ConfigurationError(
                f"optimizer: got {type(optimizer).__name__}, wanted fusewire.train.Adam, which "
                "waits for nothing; or write the step yourself"
            )
        if optimizer.process_group is not None:
            raise ConfigurationError(
                "optimizer: got an Adam with a process_group, wanted one of a single process; call "
                "backward() and optimizer.step() yourself"
            )
        self._model, self._optimizer, self._dtype = model, optimizer, dtype
        self._loss = loss or (lambda model, batch: model(**batch).loss)
        self._device = next(iter(self._flats)).values.device
        self._recorded: OrderedDict[Any, _Recorded] = OrderedDict()
        self._stream = None if self._device.type == "cpu" else torch.cuda.Stream(self._device)
        self._pool = None if self._stream is None else torch.cuda.graph_pool_handle()
        self.replays = 0
        for flat in self._flats:
            flat.forget_nodes()

    def __call__(self, batch: Batch) -> torch.Tensor:
        """The loss of a batch before the step that it makes, without its graph."""
        key, there, lengths = self._bucket(batch)
        with self._on_stream():
            recorded = self._recorded.get(key)
            if recorded is None:
                recorded = self._recorded[key] = _Recorded(key, batch, self._device)
                if len(self._recorded) > _MOST_RECORDED:
                    self._recorded.popitem(last=False)
            self._recorded.move_to_end(key)
            recorded.write(batch, there, lengths)
            self._optimizer.read_rates()
            return self._run(recorded)

    def _bucket(self, batch: Batch) -> tuple[Any, torch.Tensor, torch.Tensor]:
        ids = batch.get("input_ids")
        if ids is None or ids.ndim != 2 or min(ids.shape) < 1:
            raise InvalidInput(
                "input_ids",
                "none" if ids is None else f"shape {list(ids.shape)}",
                "[batch, length]",
                "write the step yourself for other inputs",
            )
        refuse_flattened(self._model, batch)
        rows, length = ids.shape
        mask = batch.get("attention_mask")
        if mask is None:
            if batch.get("position_ids") is not None:
                raise InvalidInput(
                    "position_ids",
                    "some without an attention_mask",
                    "a mask, or none of either",
                    "pass the mask: rows may hold several sequences without one",
                )
            mask = torch.ones(rows, length, dtype=torch.int64)
        there, lengths = tokens_of(mask, (rows, length))
        bucket = bucket_of(rows, length, int(lengths.sum()))
        others = tuple(
            (name, value.dtype, None if value.shape[:2] == ids.shape else value.shape)
            for name, value in sorted(batch.items())
        )
        pooled = bool(there[:, 0].all())  # heads refuse others, not in a replay
        return (bucket, others, pooled, self._model.training), there, lengths

    def _run(self, recorded: _Recorded) -> torch.Tensor:
        if self._stream is None or not recorded.seen:
            loss = self._compute(recorded)
            recorded.seen = True
            return loss
        if recorded.graph is None:
            self._record(recorded)
        assert recorded.graph is not None
        recorded.graph.replay()
        self.replays += 1
        for flat in self._flats:
            flat.written()
        return recorded.loss.clone()

    def _compute(self, recorded: _Recorded) -> torch.Tensor:
        self._optimizer.zero_grad(set_to_none=True)
        with prepared(recorded.packed), self._autocast():
            loss = self._loss(self._model, recorded.batch)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def _record(self, recorded: _Recorded) -> None:
        for flat in self._flats:
            flat.written()  # so that copies of weights are made in the graph
        graph = torch.cuda.CUDAGraph()
        with keeping() as recorded.memory, no_collection():
            graph.capture_begin(self._pool, capture_error_mode="relaxed")
            try:
                recorded.loss = self._compute(recorded)
            finally:
                graph.capture_end()
        recorded.graph = graph

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._dtype is None or self._dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self._device.type, self._dtype, cache_enabled=False)

    @contextmanager
    def _on_stream(self) -> Any:
        """On a stream of the step's own, as capture wants, in the order of torch's current one."""
        if self._stream is None:
            yield
            return
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)


class _Recorded:
    """The inputs of a bucket, where they stay, and the graph that reads them once there is one."""

    def __init__(self, key: Any, batch: Batch, device: torch.device) -> None:
        rows, length, tokens = key[0]
        self.packed = PackedBucket(rows, length, tokens, device)
        self.seen = False
        self.graph: torch.cuda.CUDAGraph | None = None
        self.loss = torch.empty(0)
        self.memory: list[Any] = []
        shape = batch["input_ids"].shape
        self.batch = {
            name: torch.empty(
                (rows, length, *value.shape[2:]) if value.shape[:2] == shape else value.shape,
                dtype=value.dtype,
                device=device,
            )
            for name, value in batch.items()
        }

    def write(self, batch: Batch, there: torch.Tensor, lengths: torch.Tensor) -> None:
        length = batch["input_ids"].shape[1]
        for name, value in batch.items():
            to = self.batch[name]
            if to.shape != value.shape:
                to[:, length:] = _IGNORED_LABEL if name == "labels" else 0
                to = to[:, :length]
            to.copy_(value, non_blocking=True)
        self.packed.write(there, lengths)
