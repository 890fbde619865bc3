"""Batches of one bucket of sizes in tensors whose addresses do not change: the input of a recorded
step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from fusewire.errors import InvalidInput
from fusewire.train.arguments import refuse_flattened
from fusewire.train.bucket import Bucket, PackedBucket, missing_of, places_of, step_of
from fusewire.train.packed import SOURCE, TARGET, tokens_of
from fusewire.train.sent_tensors import Kind, SentTensors
from fusewire.train.targets import NO_LABEL, predicts, target_mask
from fusewire.train.torch_tensors import staged

Batch = Mapping[str, torch.Tensor]
PIXELS = "pixel_values"
_ANSWER = "start_positions"  # question answering: each place of a row is a class


class Side(NamedTuple):
    """One kind of rows of a padded batch, on the CPU: which places [rows, length] are tokens, the
    length of each row, whether the loss counts its places, so that none may be added, and whether
    all labels are predicted by its tokens."""

    there: torch.Tensor
    lengths: torch.Tensor
    counted: bool = False
    predicts: bool = False

    @property
    def shape(self) -> torch.Size:
        return self.there.shape

    @property
    def places(self) -> int:
        return self.shape[1] if self.counted else places_of(self.shape[1])

    @property
    def missing(self) -> int:
        return missing_of(self.places, int(self.lengths.sum()))

    def bucket(self, spare: int, missing: int) -> Bucket:
        """`spare`: the least number of missing tokens."""
        tokens = int(self.lengths.sum()) + spare
        step = step_of(tokens)
        tokens = -(-tokens // step) * step
        return Bucket(self.shape[0], self.places, tokens, missing, self.predicts)


Sides = dict[str, Side]  # by the prefix of argument names


def sides_of(model: torch.nn.Module, batch: Batch, *, pairs: bool) -> Sides:
    """The sequences of a batch and, in `pairs`, their targets (encoder-decoder models). A batch of
    images has no sides: all of its places are tokens.

    Raises InvalidInput for a batch without input_ids [batch, length], with a value that is not a
    tensor, with positions but no mask or one row of positions for all, and for missing targets;
    Unsupported for a flattened batch.
    """
    for name, value in batch.items():
        if not isinstance(value, torch.Tensor):
            raise InvalidInput(
                name, f"a {type(value).__name__}", "a tensor", "convert it, or leave it out"
            )
    if getattr(model, "main_input_name", None) == PIXELS and PIXELS in batch:
        return {}
    ids = batch.get("input_ids")
    if ids is None or ids.ndim != 2 or min(ids.shape) < 1:
        raise InvalidInput(
            "input_ids",
            "none" if ids is None else f"shape {list(ids.shape)}",
            "[batch, length]",
            "write the step yourself for other inputs",
        )
    refuse_flattened(model, batch)
    mask, positions = batch.get("attention_mask"), batch.get("position_ids")
    if mask is None and positions is not None:
        raise InvalidInput(
            "position_ids",
            "some without an attention_mask",
            "a mask, or none of either",
            "pass the mask: rows may hold several sequences without one",
        )
    if positions is not None and positions.shape != ids.shape:
        raise InvalidInput(
            "position_ids",
            f"shape {list(positions.shape)}",
            f"{list(ids.shape)} as input_ids",
            "expand them to every row",
        )
    labels = batch.get("labels")
    source = _side(ids, mask, SOURCE, labels=None if pairs else labels)
    sides = {SOURCE: source._replace(counted=_ANSWER in batch)}
    if pairs:
        targets = batch.get("decoder_input_ids")
        given = labels if targets is None else targets
        if given is None or given.ndim != 2 or given.shape[0] != ids.shape[0]:
            raise InvalidInput(
                "labels",
                "none" if given is None else f"shape {list(given.shape)}",
                f"[{ids.shape[0]}, length], or decoder_input_ids: a target for each source",
                "write the step yourself for other inputs",
            )
        of_labels = target_mask(labels, targets)
        mask = batch.get("decoder_attention_mask")
        sides[TARGET] = _side(given, of_labels if mask is None else mask, TARGET, labels=labels)
    return sides


def _side(
    ids: torch.Tensor, mask: torch.Tensor | None, side: str, *, labels: torch.Tensor | None
) -> Side:
    rows, length = ids.shape
    if mask is None:
        mask = torch.ones(rows, length, dtype=torch.int64)
    there, lengths = tokens_of(mask, (rows, length), side)
    return Side(there, lengths, predicts=predicts(there, labels))


def key_of(batch: Batch, sides: Sides) -> Any:
    """A key that is equal for batches that run on the same tensors with the same kernels."""
    others = tuple(
        (name, value.dtype, side, value.shape[2:] if side is not None else value.shape)
        for name, value, side in _sorted(batch, sides)
    )
    # Heads check this themselves, but not in a replay.
    pooled = not sides or bool(sides[SOURCE].there[:, 0].all())
    return buckets_of(sides), others, pooled


def buckets_of(sides: Sides) -> tuple[Bucket, ...]:
    # A target reads the source of the same number, so both sides have as many sequences of missing
    # tokens, none of which is empty.
    missing = max((side.missing for side in sides.values()), default=0)
    spare = missing if TARGET in sides else 0
    return tuple(side.bucket(spare, missing) for side in sides.values())


class BucketInputs:
    """`batch`: tensors of a bucket's sizes on a device; `packed`: their tokens, by side."""

    def __init__(self, batch: Batch, sides: Sides, device: torch.device) -> None:
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
                    _put(name, value, here[name])
        for name, value in batch.items():
            if name not in here or value.device.type != "cpu":
                _put(name, value, self.batch[name])


def _put(name: str, value: torch.Tensor, to: torch.Tensor) -> None:
    if to.shape != value.shape:
        length = value.shape[1]
        to[:, length:] = NO_LABEL if name == "labels" else 0
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
    tensor of neither, such as labels that are not integers and have one entry per class."""
    for name, value in sorted(batch.items()):
        of_targets = TARGET in sides and (name.startswith(TARGET) or name == "labels")
        wanted = [TARGET] if of_targets else list(sides)
        if name == "labels" and value.is_floating_point():
            wanted = []
        yield name, value, next((s for s in wanted if value.shape[:2] == sides[s].shape), None)
