"""Encodes and decodes calls as KServe v2 HTTP with the binary tensor extension. No socket is used
here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np
from tritonclient.utils import deserialize_bytes_tensor, triton_to_np_dtype

from .calls import Call, Infer
from .errors import ClientError, ServerError
from .triton_errors import from_http, from_words
from .wire import datatype_of, raw_bytes, sized

_HEADER_LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class HttpRequest:
    """`path` starts with a slash; `body` is None for GET."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes | None = None


def encode(call: Call) -> HttpRequest:
    """Returns the HTTP request of a call."""
    if isinstance(call, Infer):
        return _infer_request(call)
    if not call.model:
        path = {"ready": "/v2/health/ready", "statistics": "/v2/models/stats"}[call.about]
    else:
        end = {"ready": "/ready", "metadata": "", "statistics": "/stats"}[call.about]
        path = _model_path(call.model, call.version) + end
    return HttpRequest("GET", path, {})


# Inputs of generating models that are lists; the others have one value.
_LISTS = ("input_ids", "samples")


def encode_stream(call: Infer) -> HttpRequest:
    """Returns the HTTP request of a call whose responses are server-sent events."""
    body: dict[str, Any] = {}
    for name, array in call.inputs.items():
        values = [v.decode() if isinstance(v, bytes) else v for v in array.reshape(-1).tolist()]
        body[name] = values if name in _LISTS else values[0]
    body |= call.parameters
    return HttpRequest(
        "POST",
        _model_path(call.model, call.version) + "/generate_stream",
        {"Content-Type": "application/json"},
        json.dumps(body).encode(),
    )


def streamed(status: int, line: bytes) -> dict[str, np.ndarray] | None:
    """Returns the outputs in a line of events, None for an empty line; raises the error in it."""
    if not line.strip():
        return None
    event = line.startswith(b"data: ")
    try:
        values = dict(json.loads(line[6:] if event else line))
    except (ValueError, TypeError) as error:
        if status != 200:
            raise from_http(status, _message(status, line)) from None
        raise ServerError(f"answer: got {line[:200]!r}, wanted an event ({error!r})") from error
    if "error" in values:
        message = str(values["error"])
        raise from_words(message) if event else from_http(status, message)
    return {name: _listed(value) for name, value in values.items()}


def _listed(value: Any) -> np.ndarray:
    values = value if isinstance(value, list) else [value]
    if all(isinstance(each, str) for each in values):
        return np.array([each.encode() for each in values], np.object_)
    return np.array(values)


def decode(call: Call, status: int, headers: dict[str, str], body: bytes) -> Any:
    """Returns the answer of a call; raises the error of its HTTP status."""
    if not isinstance(call, Infer) and call.about == "ready":
        # Triton answers 400 for a model that is not ready, so only 401 and 403 are errors here.
        if status in (401, 403):
            raise from_http(status, _message(status, body))
        return {"ready": status == 200}
    if status != 200:
        raise from_http(status, _message(status, body))
    try:
        return _arrays(headers, body) if isinstance(call, Infer) else json.loads(body)
    except ClientError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise ServerError(
            f"answer: got {body[:200]!r}, wanted KServe v2 ({error!r}); is it a Triton server?"
        ) from error


def _model_path(model: str, version: str) -> str:
    return f"/v2/models/{quote(model, safe='')}" + (f"/versions/{version}" if version else "")


def _infer_request(call: Infer) -> HttpRequest:
    contents = [raw_bytes(array) for array in call.inputs.values()]
    parameters: dict[str, Any] = dict(call.parameters)
    header: dict[str, Any] = {
        "inputs": [
            {
                "name": name,
                "shape": list(array.shape),
                "datatype": datatype_of(name, array),
                "parameters": {"binary_data_size": len(content)},
            }
            for (name, array), content in zip(call.inputs.items(), contents, strict=True)
        ]
    }
    if call.request_id:
        header["id"] = call.request_id
    if call.outputs:
        header["outputs"] = [
            {"name": name, "parameters": {"binary_data": True}} for name in call.outputs
        ]
    else:
        parameters["binary_data_output"] = True
    if parameters:
        header["parameters"] = parameters
    encoded = json.dumps(header).encode()
    return HttpRequest(
        "POST",
        _model_path(call.model, call.version) + "/infer",
        {"Content-Type": "application/octet-stream", _HEADER_LENGTH: str(len(encoded))},
        b"".join([encoded, *contents]),
    )


def _arrays(headers: dict[str, str], body: bytes) -> dict[str, np.ndarray]:
    lengths = [int(v) for name, v in headers.items() if name.lower() == _HEADER_LENGTH.lower()]
    offset = lengths[0] if lengths else len(body)
    arrays = {}
    for tensor in json.loads(body[:offset])["outputs"]:
        datatype, size = tensor["datatype"], tensor.get("parameters", {}).get("binary_data_size")
        if size is None:
            values = tensor["data"]
            if datatype == "BYTES":
                values = [str(value).encode() for value in values]
            flat = np.array(values, dtype=triton_to_np_dtype(datatype)).reshape(-1)
        else:
            raw = body[offset : offset + size]
            offset += size
            if datatype == "BYTES":
                flat = deserialize_bytes_tensor(raw)
            else:
                flat = np.frombuffer(raw, dtype=triton_to_np_dtype(datatype))
        arrays[tensor["name"]] = sized(tensor["name"], flat, tensor["shape"])
    return arrays


def _message(status: int, body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip() or f"HTTP status {status} without a message"
