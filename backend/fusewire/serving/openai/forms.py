"""Parses forms (multipart/form-data) in memory. The only user of starlette's parser."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator

from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException, MultiPartParser

from fusewire.serving.openai.errors import ApiError

# It would log a warning for every unexpected byte that a client sends.
logging.getLogger("python_multipart").setLevel(logging.ERROR)
_MOST_FIELDS = 128
_MOST_FIELD_BYTES = 1 << 16
_CHUNK = 1 << 16  # bytes per call of the parser


class _InMemory(MultiPartParser):
    spool_max_size = 0  # no limit; the route limits the body


def form_fields(headers: Headers, body: bytearray) -> list[tuple[str, str | bytes]]:
    """Returns the fields of a form in order: texts, and the bytes of at most one file. Raises
    ApiError for an invalid form. Call it outside the event loop, as it takes some 0.1 s for 25
    MB."""
    return asyncio.run(_parsed(headers, body))


async def _parsed(headers: Headers, body: bytearray) -> list[tuple[str, str | bytes]]:
    parser = _InMemory(
        headers,
        _chunks(body),
        max_files=1,
        max_fields=_MOST_FIELDS,
        max_part_size=_MOST_FIELD_BYTES,
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        message = f"body: got a form that cannot be read ({error.message}), wanted multipart/"
        raise ApiError(400, f"{message}form-data with one file; correct it") from None
    try:
        return [
            (name, value if isinstance(value, str) else await value.read())
            for name, value in form.multi_items()
        ]
    finally:
        await form.close()


async def _chunks(body: bytearray) -> AsyncGenerator[bytes, None]:
    for begin in range(0, len(body), _CHUNK):
        yield bytes(body[begin : begin + _CHUNK])
