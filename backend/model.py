"""The Triton face of fusewire: decode, submit to the engine, reply. No logic of its own."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils
from fusewire.engine.encoder import EncoderEngine, Request
from fusewire.errors import FusewireError, InvalidInput, Unavailable
from fusewire.serving import encoding, generating, instance_group
from fusewire.serving.config import GeneratorSettings, ModelSettings
from fusewire.serving.generation_metrics import GenerationMetrics
from fusewire.serving.installation import check_numpy
from fusewire.serving.metrics import ServingMetrics
from fusewire.serving.model_config import settings_of


class TritonPythonModel:
    """One instance of one model: one process, one engine, on one device."""

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the version folder onto the instance's device and records its forwards there; what
        is wrong becomes the model's load error."""
        try:
            check_numpy(Path("/proc/self/exe"))  # the stub is this process's program
            config = json.loads(args["model_config"])
            name = args["model_name"]
            kind = args["model_instance_kind"]
            device = instance_group.of_instance(name, kind, args["model_instance_device_id"])
            settings = settings_of(config["parameters"])
            if not settings.threads:
                settings = settings.model_copy(
                    update={"threads": threads_of_an_instance(config["instance_group"])}
                )
            folder = Path(args["model_repository"]) / args["model_version"]
            if isinstance(settings, GeneratorSettings):
                self._role: _Encodes | _Generates = _Generates(folder, settings, device, args)
            else:
                self._role = _Encodes(folder, settings, device, args)
            # Later collections do not walk what stays: that took longer than a step.
            gc.collect()
            gc.freeze()
            # The only word of it where the server settled KIND_AUTO by itself.
            dtype = self._role.engine.model.place.dtype
            pb_utils.Logger.log_info(f"{name}: KIND_{kind}: computes on {device} in {dtype}")
        except FusewireError as error:
            raise pb_utils.TritonModelException(str(error)) from None

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """One response for each request, in order, or, decoupled, None: they follow by themselves.
        An error stays with the request at fault."""
        return self._role.execute(requests)

    def finalize(self) -> None:
        self._role.close()
        del self._role  # its graphs and streams go before the process takes the driver away
        gc.unfreeze()
        gc.collect()  # Triton's objects in cycles: at the interpreter's end they would crash it


class _Encodes:
    """Answers in `execute`, but for long texts."""

    def __init__(
        self, folder: Path, settings: ModelSettings, device: str, args: dict[str, str]
    ) -> None:
        self.engine = EncoderEngine(folder, settings.task, settings.engine(), device=device)
        metrics = ServingMetrics(
            pb_utils.MetricFamily, args["model_name"], settings.task, settings.reloads, device
        )
        self._encoding = encoding.Encoding(self.engine, metrics)

    def execute(self, requests: list[Any]) -> list[Any]:
        decoded = [_decoded(request) for request in requests]
        answers = self._encoding.answer(decoded, lambda place: _Sender(requests[place]))
        return [
            None  # its sender has it
            if answer is encoding.Later.LATER
            else _response(request.requested_output_names(), answer)
            for request, answer in zip(requests, answers, strict=True)
        ]

    def close(self) -> None:
        self._encoding.close()


class _Generates:
    """Takes requests in `execute`; their responses are sent as they come."""

    def __init__(
        self, folder: Path, settings: GeneratorSettings, device: str, args: dict[str, str]
    ) -> None:
        self.engine = generating.load(folder, settings.engine(), device)
        metrics = GenerationMetrics(
            pb_utils.MetricFamily,
            args["model_name"],
            settings.reloads,
            device,
            args["model_instance_name"],
        )
        self._generating = generating.Generating(self.engine, metrics)

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            self._generating.take(_decoded(request), _Sender(request))

    def close(self) -> None:
        self._generating.close()


class _Sender:
    """The way back to the client of a request that is answered after `execute`."""

    def __init__(self, request: Any) -> None:
        self._wanted = request.requested_output_names()
        self._sender = request.get_response_sender()

    def send(self, answer: Any, final: bool) -> None:
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
        self._sender.send(_response(self._wanted, answer), flags)

    def cancelled(self) -> bool:
        return bool(self._sender.is_cancelled())


def threads_of_an_instance(instance_groups: list[dict[str, Any]]) -> int:
    """This machine's cores, shared by the model's instances; at least one."""
    instances = sum(
        int(group.get("count", 1)) * max(1, len(group.get("gpus", []))) for group in instance_groups
    )
    return max(1, len(os.sched_getaffinity(0)) // max(1, instances))


def _decoded(request: Any) -> Request | InvalidInput:
    # Undecodable tensors never get here: Triton checks dtypes, shapes and string lengths. It does
    # not check that parameters are UTF-8 when they come over HTTP.
    try:
        parameters = json.loads(request.parameters() or "{}")
    except UnicodeDecodeError:
        return InvalidInput(
            "parameters", "bytes that are not UTF-8", "UTF-8", "encode names and values as UTF-8"
        )
    inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
    return Request(inputs, parameters, request.is_cancelled)


def _response(wanted: Sequence[str], answer: Any) -> Any:
    if answer is None:
        return _failure("cancelled: got a cancelled request, which is not computed", "CANCELLED")
    if isinstance(answer, InvalidInput):
        return _failure(str(answer), "INVALID_ARG")
    if isinstance(answer, Unavailable):
        return _failure(str(answer), "UNAVAILABLE")
    if isinstance(answer, FusewireError):
        return _failure(str(answer), "INTERNAL")
    return pb_utils.InferenceResponse(
        [pb_utils.Tensor(name, array) for name, array in answer.items() if name in wanted]
    )


def _failure(text: str, code: str) -> Any:
    return pb_utils.InferenceResponse(
        error=pb_utils.TritonError(text, getattr(pb_utils.TritonError, code))
    )
