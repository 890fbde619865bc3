"""A whole training step captured on a GPU: forward, backward, clipping and Adam in one launch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import distributed
from torch.autograd.graph import increment_version

from fusewire.errors import ConfigurationError, InvalidInput
from fusewire.train.adam import Adam
from fusewire.train.bucket_inputs import BucketInputs, key_of
from fusewire.train.flat import FlatParameters
from fusewire.train.gradients import collected, held, leaves_of
from fusewire.train.packed import prepared
from fusewire.train.recorded_buckets import Bucket, RecordedBuckets
from fusewire.train.recording import Recording, between_graphs
from fusewire.train.sending import Sending
from fusewire.train.sides import Batch, Sides, sides_of
from fusewire.train.step_checks import (
    check_dtype,
    check_loss,
    check_optimizer,
    check_parameters,
    parameters_of,
)
from fusewire.train.tape_memory import saving_in
from fusewire.train.targets import labels_of
from fusewire.train.torch_tensors import capturing


class Step:
    """A training step of a model that `replace` changed, with everything in it:

        step = fusewire.train.Step(model, optimizer, dtype=torch.bfloat16)
        for batch in loader:  # with attention_mask, or packed; best left on the CPU
            loss = step(batch)  # a tensor on the GPU, without a synchronisation
            schedule.step()

    On a GPU the step of a bucket of sizes (rows, length, tokens) runs eagerly the first time and is
    captured as one CUDA graph the second time; from then on it is a single launch. Batches are
    rounded up to their bucket, tokens by at most 1 in 16. `input_ids` must have 2 dimensions, rows
    and places; other tensors are as the model takes them. Padding is the config's `pad_token_id` in
    ids, -100 in labels and 0 elsewhere; `labels` that are floats are those of rows and not padded.
    Of a batch of PackingCollator, one row with `cu_seq_lens_q`, also heads and losses get tokens
    alone. The targets of encoder-decoder models, `labels` or `decoder_input_ids`, have a bucket of
    their own. Images (`pixel_values`) have one graph per batch shape, and question answering
    (`start_positions`), whose loss is over the places of a row, one per length.

    `step([batch, ...])` accumulates the gradients of several batches for one update. Their losses
    are weighted by `items(batch)`, the number of items that the batch's loss is the mean of: by
    default its labels other than -100 (in causal models those that are predicted; of
    ElectraForPreTraining all tokens). So the step equals that of all rows in one batch. Each batch
    is then one launch, and the update another; gradients are added in the buffer of `replace`,
    which is cleared before. After the first list, single batches and their updates are separate
    launches too.

    With a `process_group` in its Adam, the processes of the group, started by torchrun, take a step
    together, which equals that of all their rows. Each passes as many batches as it likes, one or
    more; losses are weighted in the same way. The gradients of the last batch are summed while its
    backward pass goes on, one segment of `replace` at a time, each process's part in that process;
    new values are sent while others are computed. Where something is sent, one graph ends and
    another begins: processes may capture, and have other sizes, independently. The loss is that of
    all.

    `optimizer`: an Adam, whose learning rates and decays may change between steps; `max_grad_norm`
    and betas may not. Parameters may be frozen and unfrozen: steps are captured anew then. It skips
    and counts a step whose gradients are not finite, or all 0, as those of labels that are all -100
    are. Dropout draws new numbers from torch's generators in every step. `loss(model, batch)`
    computes what is minimised, by default `model(**batch).loss`; it must not synchronise, and may
    call the model several times, with the rows and masks of the batch alone.
    `CrossEntropy().of_model` is one that never holds the logits of a whole batch, and computes none
    of padding.
    `dtype`: autocast's; float32 disables it. Parameters in bfloat16 need none. `scaler`: a
    torch.amp.GradScaler, for float16: its scale, which is updated as in torch, is on the device.
    After a step `.grad` is None, or zeros for parameters that `replace` did not see.

    On the CPU each step runs eagerly, in float32. Raises ConfigurationError for a model that was
    not replaced, a `dtype` that its device does not compute in, another optimizer and one of
    another model, for a call while another one runs, and for a model that got other parameters
    (`load_state_dict(assign=True)`); Unsupported for flattened pairs; InvalidInput for a batch
    without input_ids, targets or a loss (for lack of `labels`), for a model that the loss calls
    with other rows or masks, and for an empty list.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Adam,
        *,
        loss: Callable[[Any, Batch], torch.Tensor] | None = None,
        dtype: torch.dtype | None = None,
        scaler: torch.amp.GradScaler | None = None,
        items: Callable[[Batch], int] | None = None,
    ) -> None:
        modules: list[Any] = [each for each in model.modules() if hasattr(each, "fusewire")]
        self._flats: set[FlatParameters] = {each.fusewire.flat for each in modules}
        if not self._flats:
            raise ConfigurationError(
                f"model: got {type(model).__name__}, wanted one that fusewire.train.replace changed"
            )
        for each in modules:
            each.fusewire.modules.check()
        check_optimizer(model, optimizer)
        for flat in self._flats:
            flat.relink()  # the model may have moved to another device since it was replaced
        laid_out = {id(flat.parameter(name)) for flat in self._flats for name in flat.names}
        given = [p for group in optimizer.param_groups for p in group["params"]]
        self._others = [p for p in given if id(p) not in laid_out]
        self._model, self._optimizer, self._dtype = model, optimizer, dtype
        self._scaler = scaler or torch.amp.GradScaler(enabled=False)
        self._loss = loss or (lambda model, batch: model(**batch).loss)
        self._items = items or (lambda batch: labels_of(model, batch))
        self._pairs = len(modules) > 1  # an encoder and a decoder that reads it
        self._pad_id: int | None = getattr(modules[0].config, "pad_token_id", None)
        self._with_modes = [model, *modules]  # modules that eval() can be called on alone
        self._device = next(iter(self._flats)).values.device
        check_dtype(dtype, self._device)
        self._stream = None if self._device.type == "cpu" else torch.cuda.Stream(self._device)
        # Before a capture, so that the kernels' copies of weights are made in the graph.
        self._buckets = RecordedBuckets(self._device, self._stream, self._weights_were_written)
        self._group = optimizer.process_group
        if self._group is not None and self._others:
            raise ConfigurationError(
                f"optimizer: got {len(self._others)} parameters that are not the model's, wanted "
                "none where processes add up gradients; train them under DistributedDataParallel"
            )
        # In a single process True from the first list of batches on.
        self._accumulates = self._group is not None
        self._parameters = parameters_of(self._flats)
        self._busy = threading.Lock()
        self._trained: set[torch.Tensor] = set()
        self._sending: Sending | None = None  # made with the first gradients
        self._begin_recordings()
        self._layouts, self._frozen = optimizer.layouts, self._frozen_now()
        self.replays = 0
        for flat in self._flats:
            flat.forget_nodes()

    def __call__(self, batch: Batch | Sequence[Batch]) -> torch.Tensor:
        """Returns the loss of a batch, or of several as one, before the update, detached."""
        if not self._busy.acquire(blocking=False):
            raise ConfigurationError(
                "Step: got a call while another one runs, wanted one at a time; give each thread a "
                "model of its own"
            )
        try:
            return self._step(batch)
        finally:
            self._busy.release()

    def _step(self, batch: Batch | Sequence[Batch]) -> torch.Tensor:
        check_parameters(self._flats, self._parameters)
        several = isinstance(batch, Sequence)
        batches = list(batch) if isinstance(batch, Sequence) else [batch]
        if not batches:
            raise InvalidInput("batches", "none", "one or more", "leave empty lists out")
        sides = [
            sides_of(self._model, each, pairs=self._pairs, pad_id=self._pad_id) for each in batches
        ]
        counts = self._counts(batches)
        frozen = self._frozen_now()
        # load_state_dict changes the layouts, and so do other moments in the optimizer's state.
        self._optimizer.follow()
        if self._optimizer.layouts != self._layouts or frozen != self._frozen:
            self._begin_recordings()
        with self._on_stream(), self._writing_copies():
            self._optimizer.read_rates()
            if several and not self._accumulates:
                # Gradients are at other addresses than in the steps recorded so far.
                self._begin_recordings()
                self._accumulates = True
            if self._accumulates:
                loss = self._of_several(batches, sides, counts)
            else:
                loss = self._run(self._bucket(batches[0], sides[0]).step, updates=True)
        self._layouts, self._frozen = self._optimizer.layouts, frozen
        return loss

    def _frozen_now(self) -> list[bool]:
        """Of each parameter of the optimizer. A recording computes gradients of those that were not
        frozen when it was made."""
        groups = self._optimizer.param_groups
        return [not p.requires_grad for group in groups for p in group["params"]]

    def _begin_recordings(self) -> None:
        """Drops the existing recordings, whose gradients or moments have moved."""
        self._buckets.clear()
        self._buckets.update = self._buckets.recording(self._apply)
        self._sending = None

    def _of_several(
        self, batches: Sequence[Batch], sides: Sequence[Sides], counts: Sequence[int]
    ) -> torch.Tensor:
        """The loss of these batches and of those of other processes, before the update by all of
        them."""
        alone = len(batches) == 1
        if not alone:
            for flat in self._flats:
                flat.gradients.zero_()
        total = torch.full((), float(sum(counts)), device=self._device)
        if self._group is not None:
            distributed.all_reduce(total, group=self._group)
        loss = 0.0 / total  # NaN without labels, as a mean of nothing is
        for number, (batch, of_batch, count) in enumerate(zip(batches, sides, counts, strict=True)):
            sends = self._group is not None and number == len(batches) - 1
            bucket = self._bucket(batch, of_batch, writes=alone, sends=sends)
            if count:
                torch.div(count, total, out=bucket.share)
            else:  # as the others may be, so that `total` is 0 too
                bucket.share.zero_()
            loss = loss + self._run(bucket.step)
        if self._sending is not None:
            self._sending.wait()
        self._run(self._buckets.update, updates=True)
        if self._group is not None:
            distributed.all_reduce(loss, group=self._group)
        return loss

    def _counts(self, batches: Sequence[Batch]) -> list[int]:
        """For each batch, the number of items that its loss is the mean of."""
        if len(batches) == 1 and self._group is None:
            return [1]
        return [self._items(batch) for batch in batches]

    def _bucket(
        self, batch: Batch, sides: Sides, *, writes: bool = False, sends: bool = False
    ) -> Bucket:
        """The bucket of the batch, with the batch written to it. For batches that accumulate:
        whether its gradients are the first in the buffers, and whether they are the last, which
        processes sum."""
        modes = tuple(module.training for module in self._with_modes)

        def make() -> Bucket:
            inputs = BucketInputs(batch, sides, self._device, self._pad_id)
            share = torch.ones((), device=self._device)
            if self._accumulates:
                compute = partial(self._accumulate, inputs, share, writes, sends)
            else:
                compute = partial(self._whole, inputs)
            return Bucket(inputs, share, self._buckets.recording(compute))

        bucket = self._buckets.find((key_of(batch, sides), modes, writes, sends), make)
        bucket.inputs.write(batch, sides)
        return bucket

    def _run(self, recording: Recording, *, updates: bool = False) -> torch.Tensor:
        replayed = recording.is_next_replayed
        result = recording()
        if replayed:
            self.replays += 1
            if updates:  # torch does not count writes of a replay
                self._weights_were_written()
        return result

    def _whole(self, inputs: BucketInputs) -> torch.Tensor:
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._forward(inputs)
        self._scaler.scale(loss).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def _accumulate(
        self, inputs: BucketInputs, share: torch.Tensor, writes: bool, sends: bool
    ) -> torch.Tensor:
        """Writes or adds to the gradients in the buffers."""
        loss = self._forward(inputs)
        # The mean of a batch without labels is NaN, so its share must not be multiplied in.
        loss = torch.where(share > 0, loss * share, 0.0)
        reached = leaves_of(loss)
        if not capturing(self._device):
            self._find_trained(reached)
        with ExitStack() as stack:
            for flat in self._flats:
                stack.enter_context(collected(flat, reached) if writes else held(flat))
            if sends:
                stack.enter_context(self._sender().during_backward(reached))
            self._scaler.scale(loss).backward()
        return loss.detach()

    def _sender(self) -> Sending:
        if self._sending is None:
            self._sending = Sending(list(self._flats), self._optimizer.shards())
        return self._sending

    def _apply(self) -> torch.Tensor:
        """The update with these gradients."""
        with ExitStack() as stack:
            for flat in self._flats:
                stack.enter_context(held(flat, self._trained))
            self._scaler.step(self._optimizer)
            if self._group is not None and self._scaler.is_enabled():
                # Scales have to stay equal: an Inf in one process counts in all.
                for found in self._scaler._found_inf_per_device(self._optimizer).values():
                    most = distributed.ReduceOp.MAX
                    between_graphs(partial(distributed.all_reduce, found, most, self._group))
            self._scaler.update()
        for p in self._others:  # their gradients are added at the same address in every step
            if p.grad is not None:
                p.grad.zero_()
        return torch.empty(0, device=self._device)

    def _forward(self, inputs: BucketInputs) -> torch.Tensor:
        with prepared(inputs.packed), self._autocast(), saving_in(self._buckets.memory.blocks):
            loss = self._loss(self._model, inputs.batch)
        check_loss(loss)
        return loss

    def _find_trained(self, reached: set[torch.Tensor]) -> None:
        """Finds the parameters that the loss reaches. The others have zeros in the buffers, and
        Adam leaves them alone."""
        if not reached <= self._trained:
            self._trained |= reached
            self._buckets.update = self._buckets.recording(self._apply)

    @contextmanager
    def _writing_copies(self) -> Iterator[None]:
        """While the context is open, the optimizer writes what kernels read together with the
        parameters."""
        with ExitStack() as stack:
            for flat in self._flats:
                stack.enter_context(flat.copy_written_along(self._dtype or torch.float32))
            yield

    def _weights_were_written(self) -> None:
        """To be called after an update: counts the writes to parameters, and marks the copies that
        kernels read as current."""
        for flat in self._flats:
            flat.written()
        for flat in self._optimizer.copied:
            flat.copy_was_written()
        increment_version(self._others)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._dtype is None or self._dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self._device.type, self._dtype, cache_enabled=False)

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        """Runs on a stream of the step's own, as capture requires, ordered with torch's current
        one."""
        if self._stream is None:
            yield
            return
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)
