"""The table reader and Snappy, on what no writer writes."""

from __future__ import annotations

import pytest
from fusewire.weights.tensorflow.snappy import BadSnappy, decompressed
from fusewire.weights.tensorflow.table import BadTable, read_table
from hypothesis import given
from hypothesis import strategies as st

from tests.weights.tensorflow.bundle_writer import compressed, crc32c, masked, table, varint

MAGIC = bytes.fromhex("57fb808b247547db")
KEYS = st.binary(max_size=12)


@given(st.dictionaries(KEYS, st.binary(max_size=40), min_size=1, max_size=60), st.booleans())
def test_what_is_written_is_read(entries, snappy):
    assert read_table(table(entries, block_bytes=100, snappy=snappy)) == entries


@given(st.binary(max_size=200))
def test_random_bytes_are_no_table(data):
    with pytest.raises(BadTable):
        read_table(data + MAGIC)


def block(entries: bytes, restarts: int = 1) -> bytes:
    return entries + bytes(4 * restarts) + restarts.to_bytes(4, "little")


def of_blocks(*blocks: bytes, handles: list[tuple[int, int]] | None = None, kind: int = 0) -> bytes:
    """A table of these blocks, each with a right checksum. `handles`: in place of the true ones."""
    result, places = b"", []
    for content in blocks:
        places.append((len(result), len(content)))
        result += trailed(content, kind)
    index = b"".join(
        bytes([0, 1, len(varint(at) + varint(size)), number]) + varint(at) + varint(size)
        for number, (at, size) in enumerate(handles or places)
    )
    footer = varint(0) + varint(0) + varint(len(result)) + varint(len(block(index)))
    return result + trailed(block(index), 0) + footer.ljust(40, b"\0") + MAGIC


def trailed(content: bytes, kind: int) -> bytes:
    typed = content + bytes([kind])
    return typed + masked(crc32c(typed)).to_bytes(4, "little")


ENTRY = b"\0\1\1kv"
HOSTILE = {
    "keys in another order": (of_blocks(block(b"\0\1\0b" + b"\0\1\0a")), "not in order"),
    "one key twice": (of_blocks(block(ENTRY * 2)), "not in order"),
    "one block twice": (
        of_blocks(block(ENTRY), handles=[(0, len(block(ENTRY)))] * 2),
        "blocks overlap",
    ),
    "a key that shares more than there is": (of_blocks(block(b"\5\1\0k")), "damaged entry"),
    "a value beyond the block": (of_blocks(block(b"\0\1\x7fkv")), "damaged entry"),
    "a number without end": (of_blocks(block(b"\xff" * 20)), "damaged entry"),
    "a long key": (of_blocks(block(b"\0\x81\x20\0" + bytes(4097))), "damaged entry"),
    "many restarts": (of_blocks(b"\xff\xff\xff\xff"), "damaged block"),
    "an empty block": (of_blocks(b""), "damaged block"),
    "a block beyond the file": (of_blocks(handles=[(0, 1 << 40)]), "truncated"),
    "an unknown compression": (of_blocks(block(ENTRY), kind=7), "compression 7"),
    "no Snappy": (of_blocks(block(ENTRY), kind=1), "from before the beginning"),
    "a bomb": (of_blocks(varint(1 << 40), kind=1), "wanted at most 16777216"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_table_is_refused(case):
    data, message = HOSTILE[case]
    with pytest.raises(BadTable, match=message):
        read_table(data)


def test_the_table_that_hostile_ones_are_made_of_is_read():
    assert read_table(of_blocks(block(ENTRY), block(b"\0\1\1ly"))) == {b"k": b"v", b"l": b"y"}


@given(st.lists(st.binary(max_size=8), max_size=40).map(lambda parts: b"".join(parts * 3)))
def test_snappy_is_undone(data):
    assert decompressed(compressed(data), len(data)) == data


@given(st.binary(max_size=100))
def test_random_bytes_are_an_error_or_what_they_say(data):
    try:
        result = decompressed(data, 1000)
    except BadSnappy:
        return
    assert len(result) <= 1000


def test_a_copy_may_overlap_itself():
    assert decompressed(bytes([9, 0]) + b"a" + bytes([1 | (8 - 4) << 2, 1]), 9) == b"a" * 9


@pytest.mark.parametrize(
    "data",
    [
        bytes([4, 12]) + b"abc",  # a literal that ends early
        bytes([8, 0]) + b"a" + bytes([1, 2]),  # from before the beginning
        bytes([8, 0]) + b"a" + bytes([1, 0]),  # from where it is itself
        bytes([1, 4]) + b"ab",  # more than it says
        bytes([3, 4]) + b"ab",  # less
        b"",
    ],
)
def test_damaged_compression_is_refused(data):
    with pytest.raises(BadSnappy):
        decompressed(data, 1000)
