"""Batches of one bucket of sizes in tensors whose addresses do not change: the input of a recorded
step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from fusewire.train.bucket import PackedBucket
from fusewire.train.packed import FLATTENING, SOURCE, TARGET
from fusewire.train.sent_tensors import Kind, SentTensors
from fusewire.train.sides import Batch, Sides, buckets_of
from fusewire.train.targets import NO_LABEL
from fusewire.train.torch_tensors import staged


def key_of(batch: Batch, sides: Sides) -> Any:
    """A key that is equal for batches that run on the same tensors with the same kernels."""
    others = tuple(
        (name, value.dtype, side, value.shape[2:] if side is not None else value.shape)
        for name, value, side in _sorted(batch, sides)
    )
    # Heads check this themselves, but not in a replay.
    pooled = not sides or bool(sides[SOURCE].there[:, 0].all())
    return buckets_of(sides), others, pooled


class BucketInputs:
    """`batch`: tensors of a bucket's sizes on a device; `packed`: their tokens, by side. `pad_id`:
    the id that ids are padded with, by which some heads find the last token of a row."""

    def __init__(
        self, batch: Batch, sides: Sides, device: torch.device, pad_id: int | None = None
    ) -> None:
        fills = {"labels": NO_LABEL, "input_ids": pad_id, f"{TARGET}input_ids": pad_id}
        self._fills = {name: fill for name, fill in fills.items() if fill is not None}
        buckets = dict(zip(sides, buckets_of(sides), strict=True))
        kinds: dict[str, Kind] = {}
        for side, bucket in buckets.items():
            packed = PackedBucket.kinds(bucket)
            kinds |= {_packed(side, name): kind for name, kind in packed.items()}
        of_sides = {name: side for name, _, side in _sorted(batch, sides)}
        for name, of_side in of_sides.items():
            if of_side is not None:
                shape = *buckets[of_side][:2], *batch[name].shape[2:]
                kinds[name] = Kind(shape, batch[name].dtype)
        self._sent = SentTensors(kinds, device)
        there = self._sent.tensors
        self.packed = {
            side: PackedBucket(bucket, _of_side(side, there)) for side, bucket in buckets.items()
        }
        self.batch = {
            name: torch.empty_like(batch[name], device=device) if of_side is None else there[name]
            for name, of_side in of_sides.items()
        }

    @property
    def sizes(self) -> dict[str, int]:
        """Numbers of tokens of each side, of rows that a criterion computes, and of elements of
        each tensor, by name: what the memory of a step depends on."""
        sizes = {f"{side}tokens": packed.tokens for side, packed in self.packed.items()}
        for side, packed in self.packed.items():
            rows, length = packed.shape
            some = packed.predicting is not None
            sizes[f"{side}predicting"] = packed.tokens if some else rows * length
        return sizes | {name: tensor.numel() for name, tensor in self.batch.items()}

    def write(self, batch: Batch, sides: Sides) -> None:
        with self._sent.written() as here:
            for side, of_side in sides.items():
                self.packed[side].write(of_side.there, of_side.lengths, _of_side(side, here))
            for name, value in batch.items():
                if name in here and value.device.type == "cpu":
                    self._put(name, value, here[name])
        for name, to in self.batch.items():
            if name not in here or batch[name].device.type != "cpu":
                self._put(name, batch[name], to)

    def _put(self, name: str, value: torch.Tensor, to: torch.Tensor) -> None:
        if to.shape != value.shape:
            length = value.shape[1]
            to[:, length:] = self._fills.get(name, 0)
            to = to[:, :length]
        to.copy_(staged(value, to.device), non_blocking=True)


def _packed(side: str, name: str) -> str:
    """The key of a tensor of PackedBucket, among those of the batch."""
    return f"{side}packed.{name}"


def _of_side(side: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    prefix = _packed(side, "")
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _sorted(batch: Batch, sides: Sides) -> Iterable[tuple[str, torch.Tensor, str | None]]:
    """Names, tensors and the side whose places [rows, length] a tensor has. The side is None for a
    tensor of neither, such as labels that are not integers and have one entry per class. What
    says where sequences begin is left out: sides have it."""
    for name, value in sorted(batch.items()):
        if name in FLATTENING:
            continue
        of_targets = TARGET in sides and (name.startswith(TARGET) or name == "labels")
        wanted = [TARGET] if of_targets else list(sides)
        if name == "labels" and value.is_floating_point():
            wanted = []
        yield name, value, next((s for s in wanted if value.shape[:2] == sides[s].shape), None)
