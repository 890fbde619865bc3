"""The sequences of a batch on the host, and the bucket of sizes that they are computed with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from fusewire.errors import InvalidInput
from fusewire.models.buckets import power_of_two
from fusewire.train.arguments import refuse_flattened
from fusewire.train.bucket import Bucket, longest_of, missing_of, places_of, step_of
from fusewire.train.packed import FLATTENING, SOURCE, TARGET, offsets_of, tokens_of, two_forms
from fusewire.train.targets import predicts, target_mask

Batch = Mapping[str, torch.Tensor]
PIXELS = "pixel_values"
_ANSWER = "start_positions"  # question answering: each place of a row is a class


class Side(NamedTuple):
    """One kind of rows of a batch, on the CPU: which places [rows, length] are tokens, the length
    of each sequence, whether the loss counts its places, so that none may be added, whether all
    labels are predicted by its tokens, and whether a single row holds all sequences."""

    there: torch.Tensor
    lengths: torch.Tensor
    counted: bool = False
    predicts: bool = False
    flat: bool = False

    @property
    def shape(self) -> torch.Size:
        return self.there.shape

    @property
    def places(self) -> int:
        """Of a padded row."""
        return self.shape[1] if self.counted else places_of(self.shape[1])

    @property
    def longest(self) -> int:
        return longest_of(int(self.lengths.max())) if self.flat else self.places

    @property
    def missing(self) -> int:
        return missing_of(self.longest, int(self.lengths.sum()))

    def bucket(self, spare: int, missing: int) -> Bucket:
        """`spare`: the least number of missing tokens."""
        tokens = int(self.lengths.sum()) + spare
        step = step_of(tokens)
        tokens = -(-tokens // step) * step
        places, sequences = self.places, len(self.lengths)
        if self.flat:
            places = places if self.counted else tokens
            sequences = power_of_two(sequences)
        longest, rows = self.longest, self.shape[0]
        return Bucket(rows, places, tokens, sequences, longest, missing, self.predicts)


Sides = dict[str, Side]  # by the prefix of argument names


def sides_of(
    model: torch.nn.Module, batch: Batch, *, pairs: bool, pad_id: int | None = None
) -> Sides:
    """The sequences of a batch and, in `pairs`, their targets (encoder-decoder models). A batch of
    images has no sides: all of its places are tokens. Without a `pad_id`, heads that classify take
    the last place of a single row for its last token, so none is added to it.

    Raises InvalidInput for a batch that is no mapping or has no input_ids [batch, length], with a
    value that is not a tensor, with positions but neither a mask nor `cu_seq_lens_q`, or one row of
    positions for all, and for missing targets; Unsupported for flattened pairs.
    """
    if not isinstance(batch, Mapping):
        raise InvalidInput(
            "batch",
            f"a {type(batch).__name__}",
            "tensors by name, as the model takes them, or a list of such batches",
            "name its tensors",
        )
    for name, value in batch.items():
        if name not in FLATTENING and not isinstance(value, torch.Tensor):
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
    if pairs:
        refuse_flattened(model, batch)
    mask, positions = batch.get("attention_mask"), batch.get("position_ids")
    boundaries = batch.get("cu_seq_lens_q")
    if mask is None and boundaries is None and positions is not None:
        raise InvalidInput(
            "position_ids",
            "some with neither an attention_mask nor cu_seq_lens_q",
            "one of these, or none of the three",
            "pass the mask, or what PackingCollator makes, or DataCollatorWithFlattening with "
            "return_flash_attn_kwargs=True: rows may hold several sequences",
        )
    if positions is not None and positions.shape != ids.shape:
        raise InvalidInput(
            "position_ids",
            f"shape {list(positions.shape)}",
            f"{list(ids.shape)} as input_ids",
            "expand them to every row",
        )
    labels = batch.get("labels")
    if boundaries is None:
        source = _side(ids, mask, SOURCE, labels=None if pairs else labels)
    else:
        source = _flat_side(ids, mask, boundaries)
    by_token = labels is not None and labels.shape == ids.shape and not labels.is_floating_point()
    whole = pairs or source.flat or by_token  # batches of heads that read no single place
    reads_last = pad_id is None and len(ids) == 1 and not whole
    sides = {SOURCE: source._replace(counted=_ANSWER in batch or reads_last)}
    if pairs:
        sides[TARGET] = _target_side(batch, len(ids))
    return sides


def _target_side(batch: Batch, rows: int) -> Side:
    labels, ids = batch.get("labels"), batch.get("decoder_input_ids")
    given = labels if ids is None else ids
    # Labels of whole rows are those of heads that classify: they find a row's last token on the
    # host, and read places behind the last label.
    checked = given if labels is None or labels.ndim == 2 else labels
    if (
        given is None
        or checked is None
        or checked.ndim != 2
        or len(checked) != rows
        or checked.is_floating_point()
    ):
        raise InvalidInput(
            "labels",
            "none" if checked is None else f"{checked.dtype} of shape {list(checked.shape)}",
            f"integers [{rows}, length], or decoder_input_ids: a target for each source",
            "write the step yourself for other inputs, and for heads that classify",
        )
    mask = batch.get("decoder_attention_mask")
    of_labels = target_mask(labels, ids)
    return _side(given, of_labels if mask is None else mask, TARGET, labels=labels)


def _side(
    ids: torch.Tensor, mask: torch.Tensor | None, side: str, *, labels: torch.Tensor | None
) -> Side:
    rows, length = ids.shape
    if mask is None:
        mask = torch.ones(rows, length, dtype=torch.int64)
    there, lengths = tokens_of(mask, (rows, length), side)
    return Side(there, lengths, predicts=predicts(there, labels))


def _flat_side(ids: torch.Tensor, mask: torch.Tensor | None, boundaries: torch.Tensor) -> Side:
    rows, length = ids.shape
    if mask is not None:
        raise two_forms()
    if rows > 1:
        raise InvalidInput(
            "input_ids",
            f"{rows} rows with cu_seq_lens_q",
            "one, which holds all sequences",
            "pass each row by itself, in a list",
        )
    there = torch.ones(rows, length, dtype=torch.bool)
    return Side(there, offsets_of(boundaries, length).diff(), flat=True)


def buckets_of(sides: Sides) -> tuple[Bucket, ...]:
    # A target reads the source of the same number, so both sides have as many sequences of missing
    # tokens, none of which is empty.
    missing = max((side.missing for side in sides.values()), default=0)
    spare = missing if TARGET in sides else 0
    return tuple(side.bucket(spare, missing) for side in sides.values())
