"""CRC-32C as TensorFlow stores it."""

from __future__ import annotations

from typing import Any

from fusewire.errors import ConfigurationError

_CHUNK_BYTES = 8 << 20


def masked_crc32c(data: Any) -> int:
    """The masked checksum of bytes, or of what can be sliced into them."""
    crc = 0
    for at in range(0, len(data), _CHUNK_BYTES):
        crc = _crc32c().extend(crc, bytes(data[at : at + _CHUNK_BYTES]))
    return masked(crc)


def masked(crc: int) -> int:
    """A checksum in the form that is stored: one of data with checksums inside is no worse."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def extended(crc: int, data: bytes) -> int:
    """The checksum, not masked, of what `crc` is of with `data` behind it."""
    value: int = _crc32c().extend(crc, data)
    return value


def _crc32c() -> Any:
    try:
        import google_crc32c
    except ImportError:
        raise needs_extra("google-crc32c") from None
    return google_crc32c


def needs_extra(package: str) -> ConfigurationError:
    """The error where a package of the extra is missing."""
    return ConfigurationError(
        f"TensorFlow weights: reading them needs the package {package}, which is not installed; "
        "pip install 'fusewire[tensorflow]'"
    )
