"""HTTP bodies that are no request, or one that says of itself what is not so."""

from __future__ import annotations

import random


def broken_body(rng: random.Random, body: bytes) -> bytes:
    """A body that a client could send by mistake or on purpose.

    The JSON number 2**62 as a dimension is left out: it ends the 24.10 server itself (not our
    process, and not over gRPC), a defect of the server's that later versions do not have.
    """
    kind = rng.randrange(8)
    if kind == 0:
        return body[: rng.randrange(len(body) + 1)]
    if kind == 1:
        place = rng.randrange(len(body) + 1)
        return body[:place] + rng.randbytes(rng.choice((1, 4))) + body[place:]
    if kind == 2:
        return rng.randbytes(len(body))
    if kind == 3:
        return b"[" * 200 + b"]" * 200
    tensor = rng.choice(
        (
            '{"name":"input_ids","shape":[1,2],"datatype":"INT64","data":[5,"6"]}',
            '{"name":"input_ids","shape":[1,2],"datatype":"INT64","data":[5,6.5]}',
            '{"name":"input_ids","shape":[1,2],"datatype":"INT64","data":[5,1e99]}',
            '{"name":"input_ids","shape":[1,2],"datatype":"INT64","data":[[5,6]]}',
            '{"name":"input_ids","shape":[1,2],"datatype":"INT64","data":[5]}',
            '{"name":"input_ids","shape":[1,2],"datatype":"INT64"}',
            '{"name":"input_ids","shape":[1,2],"datatype":"INT64","data":null}',
            '{"name":"input_ids","shape":"1","datatype":"INT64","data":[5,6]}',
            '{"name":"input_ids","shape":[1,2],"datatype":7,"data":[5,6]}',
            '{"name":"text_input","shape":[1,1],"datatype":"BYTES","data":["\\ud800"]}',
            '{"name":"text_input","shape":[1,1],"datatype":"BYTES","data":["a\\u0000b"]}',
            '{"name":"text_input","shape":[1,1],"datatype":"BYTES","data":[7]}',
            '{"name":"text_input","shape":[1,1],"datatype":"BYTES","data":[]}',
            '{"name":"text_input","shape":[0,1],"datatype":"BYTES","data":[]}',
            '{"name":"text_input","shape":[1,1],"datatype":"BYTES","data":["a"],"parameters":7}',
            "7",
            "null",
            "{}",
        )
    )
    return f'{{"inputs":[{tensor}]}}'.encode() if kind < 7 else f'{{"inputs":{tensor}}}'.encode()
