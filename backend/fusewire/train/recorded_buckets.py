"""What a Step has recorded: the forward and backward of each bucket of sizes, and the update."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import NamedTuple

import torch

from fusewire.train.bucket_inputs import BucketInputs
from fusewire.train.recorded_memory import RecordedMemory
from fusewire.train.recording import Recording

# Buckets that are kept, by least recent use: each needs memory of its own for its launches and
# inputs.
_MOST_RECORDED = 128


class Bucket(NamedTuple):
    """The inputs of one bucket of sizes, and the recording of a step with them. `share`: the weight
    of the batch's loss among all that are accumulated."""

    inputs: BucketInputs
    share: torch.Tensor
    step: Recording


class RecordedBuckets:
    """The recordings of a step, which share memory. `stream`: where they run; None on a CPU, where
    nothing is recorded. `update`: the optimizer's step, where it is a recording of its own.
    `before` is called right before each capture."""

    update: Recording

    def __init__(
        self, device: torch.device, stream: torch.cuda.Stream | None, before: Callable[[], None]
    ) -> None:
        self._device, self._stream, self._before = device, stream, before
        self._by_key: OrderedDict[Hashable, Bucket] = OrderedDict()
        self.memory = RecordedMemory(device)

    def __len__(self) -> int:
        return len(self._by_key)

    def values(self) -> list[Bucket]:
        return list(self._by_key.values())

    def clear(self) -> None:
        """Drops all recordings, as where gradients or moments have moved."""
        self._synchronize()
        self._by_key.clear()
        self.memory = RecordedMemory(self._device)

    def recording(self, compute: Callable[[], torch.Tensor]) -> Recording:
        return Recording(compute, self.memory, self._before)

    def find(self, key: Hashable, make: Callable[[], Bucket]) -> Bucket:
        """The bucket of this key, with room for its recording; `make` makes it the first time."""
        if key not in self._by_key:
            self._by_key[key] = make()
            if len(self._by_key) > _MOST_RECORDED:
                self._by_key.popitem(last=False)
        self._by_key.move_to_end(key)
        bucket = self._by_key[key]
        self._make_room(bucket)
        return bucket

    def _make_room(self, bucket: Bucket) -> None:
        """Forgets all recordings where the bucket is larger than they are, or where their memory
        moved: a recording finds room in the memory of a larger one that was made before it, so the
        others are recorded again after the bucket."""
        memory, step, sizes = self.memory, bucket.step, bucket.inputs.sizes
        grows = step.is_next_recorded and not memory.has_room_for(sizes)
        if self._stream is None or not (grows or memory.moved):
            return
        self._synchronize()
        for recording in (self.update, *(each.step for each in self._by_key.values())):
            recording.forget()
        memory.renew(sizes if step.is_next_recorded else {})
        torch.cuda.empty_cache()  # gives back what torch held for them

    def _synchronize(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()
