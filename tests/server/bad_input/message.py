"""Inference requests in pieces, so that each piece can be wrong, and their way on the wire."""

from __future__ import annotations

import http.client
import json
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import grpc
from fusewire.serving.endpoint import Endpoint
from tritonclient.grpc import service_pb2

# Stands in a string for bytes that are no UTF-8, which the protobuf library would not write.
NOT_UTF8 = "\x01QZX"
_NOT_UTF8_BYTES = b"\xff\xfe\xc3\x28"
_INFER = "/inference.GRPCInferenceService/ModelInfer"
# As a client that has not been asked to limit itself: what comes back is judged, not cut.
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@dataclass
class Tensor:
    """An input. `raw` is what goes over the wire, whatever the shape and datatype say."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: bytes


@dataclass
class Message:
    """One request."""

    model: str
    inputs: list[Tensor] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    version: str = ""
    id: str = ""
    contents: str = "raw"  # over gRPC also: typed fields, both, or raw data for fewer inputs

    def protobuf(self) -> bytes:
        message = service_pb2.ModelInferRequest(
            model_name=self.model, model_version=self.version, id=self.id
        )
        for tensor in self.inputs:
            made = message.inputs.add(
                name=tensor.name, datatype=tensor.datatype, shape=tensor.shape
            )
            if self.contents in ("typed", "both"):
                if tensor.datatype == "BYTES":
                    made.contents.bytes_contents.extend([tensor.raw[4:]])
                else:
                    whole = len(tensor.raw) // 8
                    values = struct.unpack(f"<{whole}q", tensor.raw[: 8 * whole])
                    made.contents.int64_contents.extend(values)
            if self.contents != "typed":
                message.raw_input_contents.append(tensor.raw)
        if self.contents == "fewer" and self.inputs:
            message.raw_input_contents.pop()
        for name in self.outputs:
            message.outputs.add(name=name)
        for name, value in self.parameters.items():
            _set(message.parameters[name], value)
        return message.SerializeToString().replace(NOT_UTF8.encode(), _NOT_UTF8_BYTES)

    def http(self) -> tuple[str, dict[str, str], bytes]:
        """(path, headers, body) with the tensors as binary data after the JSON."""
        header = {
            "inputs": [
                {
                    "name": tensor.name,
                    "shape": list(tensor.shape),
                    "datatype": tensor.datatype,
                    "parameters": {"binary_data_size": len(tensor.raw)},
                }
                for tensor in self.inputs
            ],
            "parameters": self.parameters,
        }
        if self.id:
            header["id"] = self.id
        if self.outputs:
            header["outputs"] = [{"name": name} for name in self.outputs]
        text = json.dumps(header, ensure_ascii=False).encode(errors="surrogatepass")
        text = text.replace(json.dumps(NOT_UTF8)[1:-1].encode(), _NOT_UTF8_BYTES)
        body = text + b"".join(tensor.raw for tensor in self.inputs)
        path = f"/v2/models/{quote(self.model, safe='')}"
        if self.version:
            path += f"/versions/{quote(self.version, safe='')}"
        return f"{path}/infer", {"Inference-Header-Content-Length": str(len(text))}, body


def texts(*values: str | bytes, name: str = "text_input") -> Tensor:
    encoded = [value.encode() if isinstance(value, str) else value for value in values]
    raw = b"".join(struct.pack("<I", len(value)) + value for value in encoded)
    return Tensor(name, "BYTES", (len(values), 1), raw)


def ids(*rows: Sequence[int], name: str = "input_ids") -> Tensor:
    """Rows of one length."""
    flat = [value for row in rows for value in row]
    return Tensor(name, "INT64", (len(rows), len(rows[0])), struct.pack(f"<{len(flat)}q", *flat))


@dataclass
class Reply:
    """What the server said. `status`: OK or the gRPC code's name; over HTTP the number.

    `outputs`: name -> (datatype, shape, data, as bytes over gRPC and as JSON over HTTP).
    """

    status: str
    text: str = ""
    outputs: dict[str, tuple[str, tuple[int, ...], bytes]] = field(default_factory=dict)


class GrpcCaller:
    """Sends messages as they are; threads may share it."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._channel = grpc.insecure_channel(
            f"{endpoint.reachable}:{endpoint.grpc_port}", options=_OPTIONS
        )
        self._infer = self._channel.unary_unary(
            _INFER, response_deserializer=service_pb2.ModelInferResponse.FromString
        )

    def call(self, message: Message) -> Reply:
        return self.finish(self.begin(message))

    def begin(self, message: Message) -> Any:
        return self._infer.future(message.protobuf(), timeout=30)

    @staticmethod
    def finish(call: Any) -> Reply:
        try:
            response = call.result()
        except grpc.RpcError as error:
            return Reply(error.code().name, error.details())
        return Reply(
            "OK",
            outputs={
                output.name: (output.datatype, tuple(output.shape), raw)
                for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
            },
        )

    def close(self) -> None:
        self._channel.close()


class HttpCaller:
    """Sends messages and raw bodies, one connection a thread."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._own = threading.local()
        self._connections: list[http.client.HTTPConnection] = []

    def call(self, message: Message) -> Reply:
        return self.post(*message.http())

    def post(self, path: str, headers: dict[str, str], body: bytes) -> Reply:
        try:
            response, content = self._exchange(path, headers, body)
        except (http.client.HTTPException, ConnectionError):
            # The server closes connections after some bad bodies; a new one must be answered.
            self._own.connection.close()
            response, content = self._exchange(path, headers, body)
        if response.status == 200:
            return Reply("200", outputs=_json_outputs(content))
        return Reply(str(response.status), _error_text(content))

    def _exchange(
        self, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[http.client.HTTPResponse, bytes]:
        if not hasattr(self._own, "connection"):
            self._own.connection = http.client.HTTPConnection(
                self._endpoint.reachable, self._endpoint.http_port, timeout=30
            )
            self._connections.append(self._own.connection)
        self._own.connection.request("POST", path, body, headers)
        response = self._own.connection.getresponse()
        return response, response.read()

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


def _json_outputs(content: bytes) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """The outputs, each with its data as JSON; none when they came as binary data."""
    try:
        outputs = json.loads(content.decode(errors="replace"))["outputs"]
    except ValueError:
        return {}
    return {
        output["name"]: (
            output["datatype"],
            tuple(output["shape"]),
            json.dumps(output.get("data")).encode(),
        )
        for output in outputs
    }


def _error_text(content: bytes) -> str:
    try:
        return str(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        return content.decode(errors="replace")


def _set(parameter: Any, value: Any) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    elif isinstance(value, str):
        parameter.string_param = value
    elif value is None:  # a parameter without any value
        parameter.SetInParent()
    else:
        raise TypeError(f"no protobuf parameter holds {value!r}")
