"""The sequences of a bucket of a recorded step: those of the batch, and those of missing tokens."""

from __future__ import annotations

import torch
from fusewire.train.bucket import PackedBucket
from fusewire.train.packed import SOURCE, TARGET
from fusewire.train.sides import Side, Sides, buckets_of
from hypothesis import given
from hypothesis import strategies as st

LENGTHS = st.lists(st.integers(1, 90), min_size=1, max_size=40)


def side(lengths: list[int], room: int = 0) -> Side:
    numbers = torch.tensor(lengths)
    there = torch.arange(max(lengths) + room)[None] < numbers[:, None]
    return Side(there, numbers)


def written(sides: Sides) -> list[tuple[PackedBucket, torch.Tensor]]:
    """The buckets of the sides of a batch, and the lengths of their sequences."""
    found = []
    for each, bucket in zip(sides.values(), buckets_of(sides), strict=True):
        tensors = {
            name: torch.full(kind.shape, -7, dtype=kind.dtype)
            for name, kind in PackedBucket.kinds(bucket).items()
        }
        packed = PackedBucket(bucket, tensors)
        longest = packed.batch.max_seqlen
        packed.write(each.there, each.lengths, tensors)
        lengths = tensors["offsets"].diff()
        assert int(lengths.max()) <= longest
        found.append((packed, lengths))
    return found


@given(LENGTHS)
def test_no_sequence_of_missing_tokens_is_longer_than_a_row(lengths: list[int]) -> None:
    """Kernels for short sequences are chosen by the longest."""
    ((packed, of_sequences),) = written({SOURCE: side(lengths)})
    assert of_sequences[: len(lengths)].tolist() == lengths
    assert int(of_sequences.sum()) == packed.tokens
    assert int(of_sequences[len(lengths) :].max()) <= packed.shape[1]


@given(LENGTHS)
def test_a_flattened_batch_has_its_sequences_then_empty_ones_then_missing_tokens(
    lengths: list[int],
) -> None:
    numbers = torch.tensor(lengths)
    count, tokens = len(lengths), sum(lengths)
    flat = Side(torch.ones(1, tokens, dtype=torch.bool), numbers, flat=True)
    ((packed, of_sequences),) = written({SOURCE: flat})
    assert packed.shape == (1, packed.tokens)
    assert tokens <= packed.tokens <= tokens * 17 / 16 + 1
    assert of_sequences[:count].tolist() == lengths
    assert int(of_sequences.sum()) == packed.tokens
    (bucket,) = buckets_of({SOURCE: flat})
    assert count <= bucket.sequences < 2 * count
    assert not of_sequences[count : bucket.sequences].any()


@given(st.data(), LENGTHS)
def test_a_target_of_missing_tokens_has_a_source(data: st.DataObject, lengths: list[int]) -> None:
    count = len(lengths)
    targets = data.draw(st.lists(st.integers(1, 90), min_size=count, max_size=count))
    found = written({SOURCE: side(lengths), TARGET: side(targets, room=3)})
    (_, of_sources), (_, of_targets) = found
    assert len(of_sources) == len(of_targets)
    assert int(of_sources.min()) > 0
    assert int(of_targets.min()) > 0
    assert of_sources[:count].tolist() == lengths
    assert of_targets[:count].tolist() == targets
