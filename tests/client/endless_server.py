"""A KServe v2 server over gRPC that ends no call itself: a stream gets one response, and other
calls none, until their clients leave.

    python -m tests.client.endless_server

It prints its port when it is ready, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc


class _Endless(service_pb2_grpc.GRPCInferenceServiceServicer):
    async def ModelInfer(self, request: Any, context: Any) -> Any:
        await asyncio.Event().wait()

    async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        response = pb.ModelStreamInferResponse()
        response.infer_response.outputs.add(name="y", datatype="FP32", shape=[1])
        response.infer_response.raw_output_contents.append(bytes(4))
        yield response
        await asyncio.Event().wait()


async def main() -> None:
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Endless(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(main())
