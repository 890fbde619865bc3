"""fusewire's Triton backend: reads requests, submits them to the engine, and sends responses.
Contains no logic of its own."""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils
from fusewire.engine.encoder import EncoderEngine, Request
from fusewire.engine.encoder_loop import EncoderLoop
from fusewire.engine.generation import GenerationEngine
from fusewire.errors import FusewireError, InvalidInput, status_of
from fusewire.serving import instance_group
from fusewire.serving.config import GeneratorSettings
from fusewire.serving.installation import check_numpy
from fusewire.serving.instance.cancellations import Cancellations
from fusewire.serving.instance.generating import Generating
from fusewire.serving.instance.generating import load as load_generation
from fusewire.serving.instance.generation_metrics import GenerationMetrics
from fusewire.serving.instance.metrics import ServingMetrics
from fusewire.serving.instance.options import take_options
from fusewire.serving.instance.published_block import PublishedBlock
from fusewire.serving.instance.role import Role
from fusewire.serving.model_config import settings_of


class TritonPythonModel:
    """One instance of one model: one process, one engine, on one device."""

    _published: PublishedBlock | None = None

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the version folder onto the instance's device and captures its forwards there. An
        error becomes the model's load error."""
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
            about = (
                settings.reloads,
                device,
                args["model_instance_name"],
                settings.metric_tenants_named,
            )
            version = int(args["model_version"])
            count = instance_group.instances(config["instance_group"])
            self._published = PublishedBlock(name, version, args["model_instance_name"], count)
            cancelled = Cancellations().count
            engine: EncoderEngine | GenerationEngine
            self._decoupled = isinstance(settings, GeneratorSettings)
            if isinstance(settings, GeneratorSettings):
                engine = load_generation(folder, settings.engine(), device)
                if (shown := self._published.of_generation(engine)) is not None:
                    engine.refuse_in_front(shown)
                counts = GenerationMetrics(pb_utils.MetricFamily, name, *about)
                counts.describe(engine.model.place.described)
                self._role = Role(engine, counts, Generating(engine, counts), cancelled)
            else:
                engine = EncoderEngine(folder, settings.task, settings.engine(), device=device)
                engine.measure_costs()
                metrics = ServingMetrics(pb_utils.MetricFamily, name, settings.task, *about)
                metrics.describe(engine.model.place.described)
                block = self._published.of(engine, config["max_batch_size"])
                loop = EncoderLoop(engine, metrics.record, block)
                metrics.watch_engine(loop)
                self._role = Role(loop, metrics, cancelled=cancelled)
            # Later collections skip permanent objects, which took longer than a step.
            gc.collect()
            gc.freeze()
            # And collections do not run for every few dozen new requests.
            gc.set_threshold(10_000)
            # Where the server resolved KIND_AUTO, only this line shows the result.
            precision = engine.model.place.described
            pb_utils.Logger.log_info(f"{name}: KIND_{kind}: computes on {device} in {precision}")
        except FusewireError as error:
            if self._published is not None:
                self._published.close()
            raise pb_utils.TritonModelException(str(error)) from None

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """Returns one response per request, in order; None where it is sent later, or for a
        decoupled model, which sends all responses later. An error affects only its own request."""
        answers = self._role.execute([_Incoming(request) for request in requests])
        if self._decoupled:
            return None
        return [
            None
            if answer is None
            else _response(request.requested_output_names(), answer, pb_utils.Tensor)
            for request, answer in zip(requests, answers, strict=True)
        ]

    def finalize(self) -> None:
        self._role.close()
        if self._published is not None:
            self._published.close()
        del self._role  # frees its graphs and streams before the process unloads the driver
        gc.unfreeze()
        gc.collect()  # frees Triton's objects in cycles, which would crash the interpreter at exit


class _Incoming:
    """A request of Triton."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self._arrived = time.monotonic()
        timeout_us = request.timeout()
        self.deadline = self._arrived + timeout_us / 1e6 if timeout_us else None

    def read(self) -> Request:
        # Triton checks dtypes, shapes and string lengths of tensors, but not that parameters are
        # UTF-8 when they come over HTTP.
        try:
            parameters = json.loads(self._request.parameters() or "{}")
        except UnicodeDecodeError:
            got, wanted = "bytes that are not UTF-8", "UTF-8"
            remedy = "encode names and values as UTF-8"
            raise InvalidInput("parameters", got, wanted, remedy) from None
        options = take_options(parameters)
        if options.timeout_s is not None:  # from the `generate` endpoint
            self.deadline = self._arrived + options.timeout_s
        inputs = {tensor.name(): tensor.as_numpy() for tensor in self._request.inputs()}
        return Request(inputs, parameters, options.priority, options.tenant, options.probe)

    def cancelled(self) -> bool:
        return bool(self._request.is_cancelled())

    def sender(self) -> _Sender:
        return _Sender(self._request)


class _Sender:
    """Sends responses to the client of a request that is answered after `execute`."""

    def __init__(self, request: Any) -> None:
        self._wanted = request.requested_output_names()
        self._sender = request.get_response_sender()
        self._packed: dict[str, tuple[Any, Any]] = {}  # output -> its last array and its tensor

    def send(self, answer: Any, final: bool) -> None:
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
        self._sender.send(_response(self._wanted, answer, self._tensor), flags)

    def _tensor(self, name: str, array: Any) -> Any:
        """Returns the tensor of an array. An array that was in the last response already has a
        tensor in shared memory."""
        last, tensor = self._packed.get(name, (None, None))
        if array is not last:
            tensor = pb_utils.Tensor(name, array)
            self._packed[name] = array, tensor
        return tensor

    def cancelled(self) -> bool:
        return bool(self._sender.is_cancelled())


def threads_of_an_instance(instance_groups: list[dict[str, Any]]) -> int:
    """Returns this machine's cores divided by the model's instances, at least 1."""
    return max(1, len(os.sched_getaffinity(0)) // max(1, instance_group.instances(instance_groups)))


def _response(wanted: Sequence[str], answer: Any, tensor: Callable[[str, Any], Any]) -> Any:
    if isinstance(answer, FusewireError):
        return _failure(str(answer), status_of(type(answer)).triton)
    return pb_utils.InferenceResponse(
        [tensor(name, array) for name, array in answer.items() if name in wanted]
    )


def _failure(text: str, code: str) -> Any:
    return pb_utils.InferenceResponse(
        error=pb_utils.TritonError(text, getattr(pb_utils.TritonError, code))
    )
