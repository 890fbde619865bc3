"""CRC-32C in the form that TensorFlow stores."""

from __future__ import annotations

from typing import Any

from fusewire.errors import ConfigurationError

_CHUNK_BYTES = 8 << 20


def masked_crc32c(data: Any) -> int:
    """Returns the masked checksum of bytes, or of an object whose slices convert to bytes."""
    crc = 0
    for at in range(0, len(data), _CHUNK_BYTES):
        crc = _crc32c().extend(crc, bytes(data[at : at + _CHUNK_BYTES]))
    return masked(crc)


def masked(crc: int) -> int:
    """Returns a checksum in its stored form, so that a checksum of data that contain checksums is
    as strong as any other."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def extended(crc: int, data: bytes) -> int:
    """Returns the unmasked checksum of the data of `crc` followed by `data`."""
    value: int = _crc32c().extend(crc, data)
    return value


def _crc32c() -> Any:
    try:
        import google_crc32c
    except ImportError:
        raise needs_extra("google-crc32c") from None
    return google_crc32c


def needs_extra(package: str) -> ConfigurationError:
    """Returns the error for a missing package of the extra."""
    return ConfigurationError(
        f"TensorFlow weights: reading them needs the package {package}, which is not installed; "
        "pip install 'fusewire[tensorflow]'"
    )
