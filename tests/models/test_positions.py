"""Position ids and relative buckets are bitwise those of transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fusewire.models.positions import (
    counted_positions,
    positions_after_padding,
    relative_buckets,
    sinusoids,
    tensor2tensor_sinusoids,
)
from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder
from transformers.models.roberta.modeling_roberta import RobertaEmbeddings
from transformers.models.t5.modeling_t5 import T5Attention

from tests.tolerance import COSINE


def test_positions_count_within_each_sequence():
    got = counted_positions(np.int32([0, 3, 4, 6]), np.int32([3, 1, 2]))
    np.testing.assert_array_equal(got, [0, 1, 2, 0, 0, 1])
    assert got.dtype == np.int32


def test_padding_ids_inside_a_text_are_not_counted():
    sequences = [[0, 5, 1, 7, 1, 1, 2], [1], [4, 1], [1, 3, 3]]
    packed = np.concatenate(sequences)
    lengths = np.int32([len(sequence) for sequence in sequences])
    cu_seqlens = np.int32([0, *np.cumsum(lengths)])
    expected = [
        RobertaEmbeddings.create_position_ids_from_input_ids(torch.tensor([sequence]), 1)[0]
        for sequence in sequences
    ]
    got = positions_after_padding(packed, cu_seqlens, lengths, 1)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, torch.cat(expected).numpy())


@pytest.mark.parametrize("length", [1, 2, 9, 700])
def test_relative_buckets(length):
    distances = torch.arange(-(length - 1), length)
    expected = MPNetEncoder.relative_position_bucket(distances)
    np.testing.assert_array_equal(relative_buckets(length), expected.numpy())


@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (4, 2), (6, 20), (64, 300), (33, 77)])
def test_relative_buckets_of_other_numbers_and_distances(buckets, most):
    expected = T5Attention._relative_position_bucket(
        torch.arange(-999, 1000), bidirectional=True, num_buckets=buckets, max_distance=most
    ).numpy()
    np.testing.assert_array_equal(relative_buckets(1000, buckets, most), expected)
    # Larger distances share the last bucket, as in the kernels' tables.
    assert len(set(expected[999 + most :])) == len(set(expected[: 1000 - most])) == 1


@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (4, 3), (6, 20), (64, 300), (33, 77)])
def test_relative_buckets_of_a_decoder(buckets, most):
    expected = T5Attention._relative_position_bucket(
        torch.arange(-999, 1000), bidirectional=False, num_buckets=buckets, max_distance=most
    ).numpy()
    got = relative_buckets(1000, buckets, most, causal=True)
    np.testing.assert_array_equal(got, expected)
    assert len(set(expected[: 1000 - most])) == 1


@pytest.mark.parametrize("columns", [1, 2, 7, 64])
def test_sinusoids_are_those_of_marian(columns):
    table = MarianSinusoidalPositionalEmbedding(300, columns).create_weight()
    np.testing.assert_array_equal(sinusoids(300, columns), table.numpy())


@pytest.mark.parametrize("columns", [4, 7, 64])
def test_sinusoids_are_those_of_tensor2tensor(columns):
    table = M2M100SinusoidalPositionalEmbedding.get_embedding(300, columns).numpy()
    got = tensor2tensor_sinusoids(300, columns)
    # The last bit of a frequency times 300, and the last two bits of sine and cosine.
    np.testing.assert_allclose(got, table, rtol=0, atol=300 * 2.0**-24 + COSINE)
