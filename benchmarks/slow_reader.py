"""The memory cost of clients that do not read their streams: `python -m benchmarks.slow_reader`.

A tiny GPT-2 in `fusewire serve` generates for clients that send a request and then read nothing,
over HTTP (`generate_stream`) and over gRPC. The growth of the server's memory when all tokens are
generated is that of responses that wait for their readers; then they are read, and their bytes
counted.

Writes bench-results/slow_reader.jsonl, one JSON object per row.
"""

from __future__ import annotations

import argparse
import http.client
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import torch
import transformers
from fusewire.serving.config import Deployment, ServerSettings
from fusewire.serving.repository import import_folder
from fusewire.serving.supervisor.server import Server
from tritonclient.grpc import service_pb2, service_pb2_grpc

from benchmarks import machine, records
from tests.engine.generating import END, byte_tokenizer
from tests.server.asking import Asker, until

MODEL = "gpt"
POSITIONS = 4096
READERS = 8
CASES = ((4000, None), (4000, 20))  # tokens of each, logprobs


def folder_of(root: Path) -> Path:
    """Writes a model whose steps take as long as sending a response, so that each token has its
    own."""
    root.mkdir()
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=257, n_positions=POSITIONS, n_embd=64, n_layer=1, n_head=2, eos_token_id=END
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(root)
    byte_tokenizer(root)
    return root


def given(tokens: int, logprobs: int | None) -> dict[str, Any]:
    """Returns parameters with printable letters only, so that each token has a text."""
    letters = {str(token): 100.0 for token in range(40, 60)}
    return {
        "max_new_tokens": tokens,
        "ignore_eos": True,
        "temperature": 1.0,
        "logit_bias": letters,
        "logprobs": logprobs,
    }


def over_http(server: Server, sampling: dict[str, Any]) -> Callable[[], list[int]]:
    """Sends requests; the returned function reads their streams and returns the bytes of each
    response."""
    at = server.endpoint
    connection = http.client.HTTPConnection(at.reachable, at.http_port, timeout=120)
    body = {"text_input": "a", "stream": True, "sampling_parameters": json.dumps(sampling)}
    body |= {"return_logprobs": sampling["logprobs"] is not None}
    connection.request("POST", f"/v2/models/{MODEL}/generate_stream", json.dumps(body))

    def read() -> list[int]:
        sizes = [len(line) for line in connection.getresponse() if line.startswith(b"data: {")]
        connection.close()
        return sizes

    return read


def over_grpc(server: Server, sampling: dict[str, Any]) -> Callable[[], list[int]]:
    at = server.endpoint
    channel = grpc.insecure_channel(f"{at.reachable}:{at.grpc_port}")
    request = service_pb2.ModelInferRequest(model_name=MODEL)
    inputs = {
        "text_input": b"a",
        "sampling_parameters": json.dumps(sampling).encode(),
        "stream": True,
        "return_logprobs": sampling["logprobs"] is not None,
    }
    for name, value in inputs.items():
        text = isinstance(value, bytes)
        request.inputs.add(name=name, datatype="BYTES" if text else "BOOL", shape=[1])
        raw = np.uint32(len(value)).tobytes() + value if text else bytes([value])
        request.raw_input_contents.append(raw)
    calls = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([request]))

    def read() -> list[int]:
        sizes = [call.ByteSize() for call in calls]
        channel.close()
        return sizes

    return read


WAYS = {"http": over_http, "grpc": over_grpc}


def resident_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=records.RESULTS)
    options = parser.parse_args()
    facts = machine.facts("fusewire", "nvidia-pytriton")
    with tempfile.TemporaryDirectory() as root:
        folder, repository = Path(root, "folder"), Path(root, "repository")
        deployment = Deployment(device="cpu")
        import_folder(folder_of(folder), repository, name=MODEL, deployment=deployment, link=True)
        for way in WAYS:
            for tokens, logprobs in CASES:
                row = {**facts, "benchmark": "slow_reader", "model": "random GPT-2, 1 layer of 64"}
                row |= {"case": way, "logprobs": logprobs, "tokens": tokens, "readers": READERS}
                row |= held(repository, WAYS[way], given(tokens, logprobs))
                print(json.dumps(row), flush=True)
                records.append(options.out / "slow_reader.jsonl", [row])


def held(repository: Path, ask: Any, sampling: dict[str, Any]) -> dict[str, Any]:
    """Measures the growth of a new server's memory when all tokens are generated, and the bytes per
    token."""
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    with Server([repository], ServerSettings(**ports)) as server, Asker(server) as asker:
        ask(server, {**sampling, "max_new_tokens": 100})()  # warms up
        ended = asker.metric("fusewire_requests_total", model=MODEL) + READERS
        before = resident_kib(server.process.pid)
        readers = [ask(server, sampling) for _ in range(READERS)]
        until(lambda: asker.metric("fusewire_requests_total", model=MODEL) >= ended, 200)
        time.sleep(1)
        grown = resident_kib(server.process.pid) - before
        sizes = [size for read in readers for size in read()]
        tokens = READERS * sampling["max_new_tokens"]
        return {
            "responses": len(sizes),
            "answers_kib": sum(sizes) >> 10,
            "server_kib": grown,
            "bytes_a_token": round(sum(sizes) / tokens),
            "server_bytes_a_token": round(grown * 1024 / tokens),
        }


if __name__ == "__main__":
    main()
