"""What tritonserver itself does not withstand: it may die of it, the service goes on."""

from __future__ import annotations

import gzip
import http.client

from tests.attacks.attack import EVERYWHERE, HONEST, Stage, attack
from tests.attacks.requests import TYPED, Outcome, post

_HEALED_S = 30.0
_CRASHES = 6  # within a minute; that many once ended the service
_BOMB_BYTES = 300 << 20


def _with_shape(stage: Stage, columns: int) -> Outcome:
    tensor = {"name": "input_ids", "shape": [1, columns], "datatype": "INT64", "data": [1]}
    at, path = stage.target.addresses["http"], "/v2/models/minilm/infer"
    return post(at, path, {"inputs": [tensor]}, timeout_s=60)


@attack(HONEST, breaks=EVERYWHERE, heals_s=_HEALED_S)
def shape_2_31(stage: Stage) -> None:
    """A shape of 16 GB: refused, or as much memory as the server may have."""
    answer = _with_shape(stage, 1 << 31)
    stage.note(f"{answer.kind} after {answer.seconds:.1f} s")


@attack(HONEST, breaks=EVERYWHERE, heals_s=_HEALED_S)
def shape_2_61_again_and_again(stage: Stage) -> None:
    crashes = 0
    for _ in range(_CRASHES):
        server = stage.target.tritonserver().pid
        answer = _with_shape(stage, 1 << 61)
        if answer.kind == TYPED:
            continue

        def another(old: int = server) -> bool:
            try:
                return stage.target.tritonserver().pid != old and _ready(stage)
            except AssertionError:
                return False

        crashes += 1
        stage.until(another, 90, "the server is started again")
    stage.note(f"{crashes} crashes in {_CRASHES} requests")


@attack(HONEST, breaks=EVERYWHERE, heals_s=_HEALED_S, keeps_bytes=_BOMB_BYTES)
def gzip_bomb(stage: Stage) -> None:
    """300 MB of zeros in 300 KB, to Triton's HTTP port and to the OpenAI endpoint."""
    bomb = gzip.compress(b'{"inputs":' + b" " * _BOMB_BYTES, compresslevel=9)
    header = {"Content-Encoding": "gzip"}
    at = stage.target.addresses
    answer = post(at["openai"], "/v1/embeddings", bomb, headers=header)
    assert answer.kind == TYPED, f"the OpenAI endpoint: {answer}"
    answer = post(at["http"], "/v2/models/minilm/infer", bomb, headers=header)
    stage.note(f"{len(bomb) >> 10} KB; Triton: {answer.kind} {answer.status}")


@attack(HONEST)
def foreign_host(stage: Stage) -> None:
    """What a page in a browser on this machine can send: another Host, another Origin."""
    openai = stage.target.addresses["openai"]
    body = b'{"model": "minilm", "input": "a"}'
    headers = {
        "a foreign Host": {"Host": "evil.example"},
        "a foreign Host with the port": {"Host": f"evil.example:{openai.rpartition(':')[2]}"},
        "text/plain": {"Content-Type": "text/plain", "Origin": "https://evil.example"},
    }
    for what, header in headers.items():
        answer = post(openai, "/v1/embeddings", body, headers=header)
        assert answer.kind == TYPED, f"{what}: {answer}"
    tensor = b'{"inputs":[{"name":"text_input","shape":[1,1],"datatype":"BYTES","data":["a"]}]}'
    answer = post(
        stage.target.addresses["http"],
        "/v2/models/minilm/infer",
        tensor,
        headers=headers["text/plain"],
    )
    stage.note(f"Triton's HTTP port, from a page: {answer.kind}")


def _ready(stage: Stage) -> bool:
    connection = http.client.HTTPConnection(stage.target.addresses["http"], timeout=2)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
