"""The 4-bit numbers of every format as kernels take them: two a byte, with scales and zero points
by group, which stand for the weight that was written, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire.weights import Checkpoint
from fusewire.weights.quantized import Int4
from fusewire.weights.quantized import weight as weight_module

from tests.weights.quantized import writers
from tests.weights.quantized.writers import (
    FORMATS,
    Format,
    awq,
    gptq,
    int_quantized,
    pack_quantized,
    write_layer,
)

KEPT = {
    "gptq": gptq(group_size=32),
    "gptq-asymmetric": gptq(group_size=64, symmetric=False),
    "gptq-v2": gptq(group_size=32, symmetric=False, version="gptq_v2"),
    "gptq-channel": gptq(group_size=-1),
    "auto-round": gptq(group_size=32, method="auto-round"),
    "awq": awq(32),
    "awq-64": awq(64),
    "pack": pack_quantized(group_size=32),
    "pack-asymmetric": pack_quantized(group_size=64, symmetric=False),
    "pack-channel": pack_quantized(group_size=-1),
    "pack-channel-asymmetric": pack_quantized(group_size=-1, symmetric=False),
}
ORDERED = {
    "gptq": gptq(group_size=32, act_order=True),
    "gptq-asymmetric": gptq(group_size=64, symmetric=False, act_order=True),
    "pack": pack_quantized(group_size=32, act_order=True),
    "pack-asymmetric": pack_quantized(group_size=64, symmetric=False, act_order=True),
}
DEQUANTISED = {
    "groups of 16": gptq(group_size=16),
    "2 bits": FORMATS["gptq-2"],
    "8 bits": FORMATS["gptq-8"],
    "bytes": int_quantized(),
    "fp8": FORMATS["fp8"],
}


def random_weight(rows: int = 48, columns: int = 128) -> np.ndarray:
    return np.random.default_rng(rows).normal(size=(rows, columns)).astype(np.float32)


def stands_for(stored: Int4) -> np.ndarray:
    """One number at a time."""
    rows, columns = stored.nibbles.shape[0], stored.nibbles.shape[1] * 2
    size = columns // stored.scales.shape[1]
    weight = np.empty((rows, columns), np.float32)
    for row in range(rows):
        for column in range(columns):
            code = int(stored.nibbles[row, column // 2]) >> 4 * (column % 2) & 15
            number = code - int(stored.zeros[row, column // size])
            to = column if stored.order is None else stored.order[column]
            weight[row, to] = np.float32(number) * stored.scales[row, column // size]
    return weight


@pytest.mark.parametrize("piece", [1 << 18, 100])
@pytest.mark.parametrize(
    ("form", "ordered"),
    [(form, False) for form in KEPT.values()] + [(form, True) for form in ORDERED.values()],
    ids=[*KEPT, *(f"ordered-{name}" for name in ORDERED)],
)
def test_codes_stand_for_the_weight_that_was_written(tmp_path, form, ordered, piece, monkeypatch):
    monkeypatch.setattr(weight_module, "_PIECE", piece)
    layer = write_layer(tmp_path, form, random_weight())
    stored = Checkpoint.open(tmp_path).int4("layer.weight")
    assert stored is not None
    assert (stored.order is not None) == ordered
    assert (stored.nibbles.dtype, stored.zeros.dtype) == (np.uint8, np.uint8)
    assert stored.zeros.max() <= 15
    np.testing.assert_array_equal(stands_for(stored), layer.weight)


def test_columns_in_order_are_kept_where_the_folder_names_their_groups(tmp_path):
    """desc_act of a model whose columns stayed as they were."""
    form = gptq(group_size=32)
    layer = write_layer(
        tmp_path, Format(form.write, form.config | {"desc_act": True}), random_weight()
    )
    stored = Checkpoint.open(tmp_path).int4("layer.weight")
    assert stored is not None
    assert stored.order is None
    np.testing.assert_array_equal(stands_for(stored), layer.weight)


@pytest.mark.parametrize("form", [gptq, pack_quantized])
def test_an_order_with_groups_of_other_sizes_has_none(tmp_path, form, monkeypatch):
    """As no packer writes it: one group has a column of another."""

    def uneven(columns: int, size: int) -> np.ndarray:
        groups = np.random.default_rng(0).permutation(np.arange(columns) // size)
        groups[np.argmax(groups == 0)] = 1
        return groups

    monkeypatch.setattr(writers, "shuffled", uneven)
    layer = write_layer(tmp_path, form(group_size=32, act_order=True), random_weight())
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.int4("layer.weight") is None
    np.testing.assert_array_equal(checkpoint.take("layer.weight"), layer.weight)


@pytest.mark.parametrize("name", DEQUANTISED)
def test_others_have_none(tmp_path, name):
    layer = write_layer(tmp_path, DEQUANTISED[name], random_weight())
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.int4("layer.weight") is None
    np.testing.assert_array_equal(checkpoint.take("layer.weight"), layer.weight)


@pytest.mark.parametrize("columns", [48, 96])
def test_groups_that_do_not_divide_the_columns_have_none(tmp_path, columns):
    write_layer(tmp_path, gptq(group_size=64), random_weight(8, columns))
    assert Checkpoint.open(tmp_path).int4("layer.weight") is None


def test_a_checkpoint_knows_what_its_quantised_weights_take(tmp_path):
    write_layer(tmp_path, pack_quantized(group_size=32), random_weight())
    scales, shape = 48 * 4 * 2, 2 * 8
    assert Checkpoint.open(tmp_path).quantized_bytes == 48 * 128 // 2 + scales + shape
    plain = {"layer.weight": random_weight()}
    assert Checkpoint.from_arrays(plain, "arrays").quantized_bytes == 0
