"""A KServe v2 server in this process, gRPC and HTTP, that answers like fusewire without a model.

The embedding of a text is [length in characters, sum of its UTF-8 bytes]; that of ids is
[count, sum]; real tokens only where a mask is given. So each row shows which sequence it came from.
It reads the wire on its own (struct, json, protobuf), so an error of the client's wire is seen.
"""

from __future__ import annotations

import json
import struct
import threading
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

OUTPUTS = {
    "mini": ["embedding"],
    "states": ["last_hidden_state"],
    "mood": ["scores", "label"],
    "names": ["entities"],
    "squad": ["answer"],
    "masked": ["candidates"],
}
HTTP_OF = {"INVALID_ARGUMENT": 400, "NOT_FOUND": 404, "UNAVAILABLE": 503, "INTERNAL": 500}
FULL_S = 0.2  # after which one that is refused may come again
OVERLOADED = "queue: got 3.2 s of work waiting, wanted at most 1 s; try again in {} s"
QUEUE_FULL = "queue: got 256 sequences waiting, wanted fewer than 256; try again later"
DTYPES = {"INT64": np.int64, "FP32": np.float32}


class Refusal(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class FakeTriton:
    """What both protocols share. `failures` are raised first, one a request; `seen` is a log of
    (model, input arrays, parameters, requested outputs)."""

    def __init__(self) -> None:
        self.outputs = dict(OUTPUTS)
        self.failures: list[Refusal] = []
        self.timeouts_us: list[int] = []  # that requests named, where Triton reads it
        self.seen: list[tuple[str, dict[str, np.ndarray], dict[str, Any], list[str]]] = []
        self.headers: list[dict[str, str]] = []
        self.delay_s = 0.0
        self.released = threading.Event()  # answers wait no longer
        self.together: threading.Barrier | None = None  # of requests: answered when all are there
        self.labels = 2  # of the model that classifies
        self.cancelled = threading.Event()
        self.takes: int | None = None  # requests at a time; others are refused
        self.full = OVERLOADED.format(FULL_S)  # the words of these refusals
        self.refusing = self.refused = 0  # now, and since the start
        self.under_way = 0
        self.most_under_way = 0
        self._lock = threading.Lock()

    def infer(
        self, model: str, inputs: dict[str, np.ndarray], parameters: dict[str, Any], wanted: list
    ) -> dict[str, np.ndarray]:
        with self._lock:
            if "timeout" in parameters:
                self.timeouts_us.append(parameters.pop("timeout"))
            self.seen.append((model, inputs, parameters, wanted))
            failure = self.failures.pop(0) if self.failures else None
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
            full = self.takes is not None and self.under_way - self.refusing > self.takes
            self.refusing += full
            self.refused += full
        try:
            if self.together:
                self.together.wait(30)
            if not full:
                self.released.wait(self.delay_s)
            if full:
                raise Refusal("UNAVAILABLE", self.full)
            if failure:
                raise failure
            if model not in self.outputs:
                raise Refusal("NOT_FOUND", f"Request for unknown model: '{model}' is not found")
            if parameters.get("pooling") == "best":
                raise Refusal("INVALID_ARGUMENT", "pooling: got 'best', wanted cls or mean")
            answers = _answers(model, inputs, parameters)
            if "scores" in answers:
                answers["scores"] = answers["scores"][:, : self.labels]
            return {name: answers[name] for name in wanted or answers}
        finally:
            with self._lock:
                self.under_way -= 1
                self.refusing -= full

    def statistics(self, model: str) -> list[dict[str, Any]]:
        names = [model] if model else list(self.outputs)
        return [
            {
                "name": name,
                "version": "1",
                "inference_count": 12,
                "execution_count": 4,
                "inference_stats": {
                    "success": {"count": 6, "ns": 5_000_000},
                    "fail": {"count": 1, "ns": 1},
                    "queue": {"count": 6, "ns": 2_000_000_000},
                    "compute_infer": {"count": 6, "ns": 500_000_000},
                },
                "batch_stats": [{"batch_size": 3, "compute_infer": {"count": 4, "ns": 1}}],
            }
            for name in names
        ]


def _answers(model: str, inputs: dict, parameters: dict[str, Any]) -> dict[str, np.ndarray]:
    if "text_input" in inputs:
        texts = [value.decode() for value in inputs["text_input"][:, 0]]
        pairs = [v.decode() for v in inputs["text_pair"][:, 0]] if "text_pair" in inputs else None
        rows = [[len(text), sum(text.encode())] for text in texts]
    else:
        ids = inputs["input_ids"]
        mask = inputs.get("attention_mask", np.ones_like(ids))
        texts, pairs = ["ids"] * len(ids), None
        rows = [[int(m.sum()), int((i * m).sum())] for i, m in zip(ids, mask, strict=True)]
    if model == "mini":
        return {"embedding": np.array(rows, np.float32)}
    if model == "states":
        longest = max(row[0] for row in rows)
        states = [np.tile(np.array(row, np.float32), (longest, 1)) for row in rows]
        return {"last_hidden_state": np.stack(states)}
    if model == "mood":
        labels = [f"{text}|{pair}" for text, pair in zip(texts, pairs or texts, strict=True)]
        return {"scores": np.array(rows, np.float32) / 2, "label": _strings(labels)}
    if model == "names":
        key = "entity_group" if parameters.get("aggregation_strategy") else "entity"
        record = {"word": "Ada", "start": 0, "end": 3, "score": 0.5, "index": 1}
        lists = [[{key: "PER", **record}] if "Ada" in text else [] for text in texts]
        return {"entities": _strings([json.dumps(one) for one in lists])}
    if model == "squad":
        spans = [
            {"text": pairs[0][: n + 1], "start": 0, "end": n + 1, "score": 1 / (n + 1)}
            for n in range(parameters["top_k"])
        ]
        return {"answer": _strings([json.dumps(spans[0] if len(spans) == 1 else spans)])}
    one = [
        {"token": k, "token_str": f"t{k}", "score": 0.1, "sequence": f"a t{k}"}
        for k in range(parameters["top_k"])
    ]
    masks = texts[0].count("[MASK]")
    return {"candidates": _strings([json.dumps(one if masks == 1 else [one] * masks)])}


def _strings(values: list[str]) -> np.ndarray:
    return np.array([[value.encode()] for value in values], np.object_)


def _unpack(datatype: str, shape: list[int], raw: bytes) -> np.ndarray:
    if datatype != "BYTES":
        return np.frombuffer(raw, DTYPES[datatype]).reshape(shape)
    values, offset = [], 0
    while offset < len(raw):
        (size,) = struct.unpack_from("<I", raw, offset)
        values.append(raw[offset + 4 : offset + 4 + size])
        offset += 4 + size
    return np.array(values, np.object_).reshape(shape)


def _pack(array: np.ndarray) -> tuple[str, bytes]:
    if array.dtype != np.object_:
        return "FP32", array.astype("<f4").tobytes()
    return "BYTES", b"".join(struct.pack("<I", len(v)) + v for v in array.reshape(-1))


class _Grpc(service_pb2_grpc.GRPCInferenceServiceServicer):
    def __init__(self, server: FakeTriton) -> None:
        self.server = server

    def ServerReady(self, request: Any, context: Any) -> Any:
        return pb.ServerReadyResponse(ready=True)

    def ModelReady(self, request: Any, context: Any) -> Any:
        return pb.ModelReadyResponse(ready=request.name in self.server.outputs)

    def ModelMetadata(self, request: Any, context: Any) -> Any:
        response = pb.ModelMetadataResponse(name=request.name)
        response.inputs.add(name="text_input", datatype="BYTES")
        for name in self.server.outputs[request.name]:
            response.outputs.add(name=name, datatype="FP32")
        return response

    def ModelStatistics(self, request: Any, context: Any) -> Any:
        response = pb.ModelStatisticsResponse()
        for record in self.server.statistics(request.name):
            times = record.pop("inference_stats")
            batches = record.pop("batch_stats")
            one = response.model_stats.add(**record)
            for name, value in times.items():
                getattr(one.inference_stats, name).count = value["count"]
                getattr(one.inference_stats, name).ns = value["ns"]
            for batch in batches:
                added = one.batch_stats.add(batch_size=batch["batch_size"])
                added.compute_infer.count = batch["compute_infer"]["count"]
        return response

    def ModelInfer(self, request: Any, context: Any) -> Any:
        context.add_callback(lambda: None if context.code() else self.server.cancelled.set())
        self.server.headers.append(dict(context.invocation_metadata()))
        inputs = {
            tensor.name: _unpack(tensor.datatype, list(tensor.shape), raw)
            for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
        }
        parameters = {
            name: getattr(value, value.WhichOneof("parameter_choice"))
            for name, value in request.parameters.items()
        }
        wanted = [output.name for output in request.outputs]
        try:
            answers = self.server.infer(request.model_name, inputs, parameters, wanted)
        except Refusal as refusal:
            context.abort(grpc.StatusCode[refusal.code], str(refusal))
        response = pb.ModelInferResponse(model_name=request.model_name)
        for name, array in answers.items():
            datatype, raw = _pack(array)
            response.outputs.add(name=name, datatype=datatype, shape=array.shape)
            response.raw_output_contents.append(raw)
        return response


def serve_grpc(server: FakeTriton, port: int = 0) -> tuple[grpc.Server, int]:
    service = grpc.server(futures.ThreadPoolExecutor(40))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Grpc(server), service)
    port = service.add_insecure_port(f"127.0.0.1:{port}")
    service.start()
    return service, port


def serve_http(server: FakeTriton, port: int = 0) -> tuple[ThreadingHTTPServer, int]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            parts = self.path.strip("/").split("/")
            if self.path == "/v2/health/ready":
                self._send(200, b"")
            elif self.path == "/v2/models/stats":
                self._json(200, {"model_stats": server.statistics("")})
            elif parts[-1] == "stats":
                self._json(200, {"model_stats": server.statistics(parts[2])})
            elif parts[-1] == "ready":
                self._send(200 if parts[2] in server.outputs else 400, b"")
            else:
                outputs = [{"name": name} for name in server.outputs[parts[2]]]
                inputs = [{"name": "text_input"}]
                self._json(200, {"name": parts[2], "inputs": inputs, "outputs": outputs})

        def do_POST(self) -> None:
            server.headers.append({name.lower(): value for name, value in self.headers.items()})
            body = self.rfile.read(int(self.headers["Content-Length"]))
            end = int(self.headers["Inference-Header-Content-Length"])
            header, inputs = json.loads(body[:end]), {}
            for tensor in header["inputs"]:
                size = tensor["parameters"]["binary_data_size"]
                raw = body[end : end + size]
                inputs[tensor["name"]] = _unpack(tensor["datatype"], tensor["shape"], raw)
                end += size
            assert end == len(body)
            parameters = header.get("parameters", {})
            all_binary = parameters.pop("binary_data_output", False)
            wanted = [output["name"] for output in header.get("outputs", [])]
            assert all_binary or all(o["parameters"]["binary_data"] for o in header["outputs"])
            try:
                model = self.path.split("/")[3]
                self._tensors(server.infer(model, inputs, parameters, wanted))
            except Refusal as refusal:
                self._json(HTTP_OF[refusal.code], {"error": str(refusal)})

        def _tensors(self, answers: dict[str, np.ndarray]) -> None:
            outputs, contents = [], []
            for name, array in answers.items():
                datatype, raw = _pack(array)
                contents.append(raw)
                outputs.append(
                    {
                        "name": name,
                        "datatype": datatype,
                        "shape": list(array.shape),
                        "parameters": {"binary_data_size": len(raw)},
                    }
                )
            header = json.dumps({"outputs": outputs}).encode()
            extra = {"Inference-Header-Content-Length": str(len(header))}
            self._send(200, header + b"".join(contents), extra)

        def _json(self, status: int, value: Any) -> None:
            self._send(status, json.dumps(value).encode())

        def _send(self, status: int, body: bytes, extra: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **(extra or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, *args: Any) -> None:  # clients that gave up waiting
            pass

    service = Quiet(("127.0.0.1", port), Handler)
    # It looks for its end at each poll; the default, 0.5 s, would be most of a test's time.
    threading.Thread(target=service.serve_forever, args=(0.01,), daemon=True).start()
    return service, service.server_address[1]
