"""Encodes and decodes calls as KServe v2 protobuf. No channel is used here."""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import deserialize_bytes_tensor, triton_to_np_dtype

from .calls import Ask, Call, Infer
from .errors import ServerError
from .triton_errors import from_words
from .wire import datatype_of, raw_bytes, sized

# The server limits the size of messages, the client does not.
CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Triton treats more than one ping in 300 s as abuse and closes the connection.
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 0),
    # Reconnects to a restarted server within a retry's wait, not after gRPC's default of 1-120 s.
    # min_reconnect_backoff_ms stays as it is: in spite of its name it bounds how long a connection
    # may take, which a distant or busy server needs.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Each client has its own connection: closing or loading one does not affect the others.
    ("grpc.use_local_subchannel_pool", 1),
]
# The method of streams, with what writes its request and reads its responses.
STREAM = (
    "/inference.GRPCInferenceService/ModelStreamInfer",
    pb.ModelInferRequest.SerializeToString,
    pb.ModelStreamInferResponse.FromString,
)


def encode(call: Call) -> tuple[str, Any]:
    """Returns the service's method and its request message."""
    if isinstance(call, Infer):
        return "ModelInfer", _infer_request(call)
    if call.about == "ready" and not call.model:
        return "ServerReady", pb.ServerReadyRequest()
    method, request = {
        "ready": ("ModelReady", pb.ModelReadyRequest),
        "metadata": ("ModelMetadata", pb.ModelMetadataRequest),
        "statistics": ("ModelStatistics", pb.ModelStatisticsRequest),
    }[call.about]
    return method, request(name=call.model, version=call.version)


def decode(call: Call, message: Any) -> Any:
    """Returns the answer of a call from its response message."""
    if isinstance(call, Infer):
        return _arrays(message)
    if isinstance(call, Ask) and call.about == "ready":
        return {"ready": message.ready}
    return MessageToDict(message, preserving_proto_field_name=True)


def streamed(message: Any) -> dict[str, np.ndarray] | None:
    """Returns the outputs in a stream's message, None for one that only ends the stream; raises its
    error."""
    if message.error_message:
        raise from_words(message.error_message)
    return _arrays(message.infer_response) if message.infer_response.outputs else None


def _infer_request(call: Infer) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(
        model_name=call.model, model_version=call.version, id=call.request_id
    )
    for name, array in call.inputs.items():
        request.inputs.add(name=name, datatype=datatype_of(name, array), shape=array.shape)
        request.raw_input_contents.append(raw_bytes(array))
    for name in call.outputs:
        request.outputs.add(name=name)
    for name, value in call.parameters.items():
        if isinstance(value, bool):  # before int: bool is a subclass of int
            request.parameters[name].bool_param = value
        elif isinstance(value, int):
            request.parameters[name].int64_param = value
        elif isinstance(value, float):
            request.parameters[name].double_param = value
        else:
            request.parameters[name].string_param = value
    return request


def _arrays(response: pb.ModelInferResponse) -> dict[str, np.ndarray]:
    if len(response.raw_output_contents) != len(response.outputs):
        raise ServerError(
            f"outputs: got {len(response.outputs)} with {len(response.raw_output_contents)} raw "
            "contents, wanted as many; is it a Triton server?"
        )
    arrays = {}
    for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        if tensor.datatype == "BYTES":
            flat = deserialize_bytes_tensor(raw)
        else:
            flat = np.frombuffer(raw, dtype=triton_to_np_dtype(tensor.datatype))
        arrays[tensor.name] = sized(tensor.name, flat, tensor.shape)
    return arrays
