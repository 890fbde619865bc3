"""model.py against a stand-in of Triton's Python module: what depends on neither server nor GPU."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import sys
import types
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fusewire import devices
from fusewire.errors import Cancelled, ComputeFailed, InvalidInput, Unavailable
from fusewire.serving.supervisor.embedded import _backend_model

from tests.reference import tiny_checkpoint


class Failure(Exception):
    pass


class TritonError:
    INVALID_ARG, INTERNAL, CANCELLED = "invalid", "internal", "cancelled"
    UNAVAILABLE = "unavailable"

    def __init__(self, text: str, code: str) -> None:
        self.text, self.code = text, code


class Response:
    def __init__(self, outputs: list[Any] | None = None, error: TritonError | None = None) -> None:
        self.outputs, self.error = outputs, error


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    triton = types.ModuleType("triton_python_backend_utils")
    triton.TritonModelException = Failure  # type: ignore[attr-defined]
    triton.TritonError = TritonError  # type: ignore[attr-defined]
    triton.InferenceResponse = Response  # type: ignore[attr-defined]
    triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1  # type: ignore[attr-defined]
    triton.Tensor = lambda name, array: name  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", triton)
    spec = importlib.util.spec_from_file_location("backend_model", _backend_model())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def arguments(folder: Path, **changes: Any) -> dict[str, str]:
    config = {
        "parameters": {"task": {"string_value": "embed"}},
        "max_batch_size": 8,
        "instance_group": [{"count": 1}],
    }
    return {
        "model_config": json.dumps(config | changes),
        "model_name": "m",
        "model_instance_name": "m_0_0",
        "model_instance_kind": "CPU",
        "model_instance_device_id": "0",
        "model_repository": str(folder),
        "model_version": "1",
    }


def test_a_gpu_instance_says_that_there_are_no_cuda_kernels(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "cuda_built", lambda: False)
    values = arguments(tmp_path) | {"model_instance_kind": "GPU"}
    with pytest.raises(Failure, match=r"m: instance_group: got KIND_GPU.*no CUDA kernels"):
        model.TritonPythonModel().initialize(values)


@pytest.mark.parametrize(
    ("kind", "device_id", "device"),
    [("CPU", "0", "cpu"), ("GPU", "1", "cuda:1"), ("AUTO", "0", "cuda:0")],
)
def test_an_instance_computes_where_triton_puts_it(
    model: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gpus: list[int],
    kind: str,
    device_id: str,
    device: str,
) -> None:
    gpus += [0, 1]
    given: dict[str, Any] = {}

    def engine(*arguments: Any, **settings: Any) -> Any:
        given.update(settings)
        raise InvalidInput("far", "enough", "no more", "stop")

    monkeypatch.setattr(model, "EncoderEngine", engine)
    changes = {"model_instance_kind": kind, "model_instance_device_id": device_id}
    with pytest.raises(Failure, match="far"):
        model.TritonPythonModel().initialize(arguments(tmp_path) | changes)
    assert given == {"device": device}


def test_an_instance_of_no_kind_is_refused(model: Any, tmp_path: Path) -> None:
    values = arguments(tmp_path) | {"model_instance_kind": "MODEL"}
    with pytest.raises(Failure, match="m: instance_group: got KIND_MODEL, wanted KIND_GPU"):
        model.TritonPythonModel().initialize(values)


def test_the_log_says_where_an_instance_computes(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    logger = types.SimpleNamespace(log_info=logged.append)
    monkeypatch.setattr(model.pb_utils, "Logger", logger, raising=False)
    described: list[str] = []
    metrics = types.SimpleNamespace(
        describe=described.append, watch=print, watch_engine=print, record=lambda counts: None
    )
    monkeypatch.setattr(model, "ServingMetrics", lambda *arguments: metrics)
    monkeypatch.setattr(model.pb_utils, "MetricFamily", None, raising=False)
    tiny_checkpoint(tmp_path / "1", "bert")
    model.TritonPythonModel().initialize(arguments(tmp_path))
    assert logged == ["m: KIND_CPU: computes on cpu in float32"]
    assert described == ["float32"]


def test_an_unknown_parameter_is_a_load_error(model: Any, tmp_path: Path) -> None:
    values = arguments(tmp_path, parameters={"taks": {"string_value": "embed"}})
    with pytest.raises(Failure, match="taks: got an unknown setting"):
        model.TritonPythonModel().initialize(values)


def test_a_damaged_folder_is_a_load_error_without_its_path(model: Any, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    with pytest.raises(Failure) as caught:
        model.TritonPythonModel().initialize(arguments(tmp_path))
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize("instances", [[1], [2], [1, 1], [1000]])
def test_instances_share_the_cores(model: Any, instances: list[int]) -> None:
    groups = [{"count": count} for count in instances]
    threads = model.threads_of_an_instance(groups)
    cores = len(os.sched_getaffinity(0))
    assert threads >= 1
    assert threads == 1 or threads * sum(instances) <= cores
    assert threads * sum(instances) > cores - sum(instances)
    on_two_gpus = [{"count": count, "gpus": [0, 1]} for count in instances]
    assert model.threads_of_an_instance(on_two_gpus) == max(1, cores // (2 * sum(instances)))


def response(model: Any, answer: object) -> Any:
    return model._response(["label"], answer, model.pb_utils.Tensor)


def test_each_kind_of_answer_has_its_code(model: Any) -> None:
    refused = response(model, InvalidInput("top_k", 0, "1 or more", "raise it"))
    assert refused.error.code == "invalid"
    assert refused.error.text == "top_k: got 0, wanted 1 or more; raise it"
    assert response(model, ComputeFailed("memory: …")).error.code == "internal"
    assert response(model, Unavailable("queue: …")).error.code == "unavailable"
    assert response(model, Cancelled("cancelled: …")).error.code == "cancelled"


def test_only_requested_outputs_are_sent(model: Any) -> None:
    answer = {"scores": np.zeros((1, 2), np.float32), "label": np.array([[b"x"]], object)}
    assert response(model, answer).outputs == ["label"]


def test_an_array_that_a_stream_repeats_is_packed_once(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed: list[str] = []
    monkeypatch.setattr(
        model.pb_utils, "Tensor", lambda name, array: (packed.append(name), name)[1]
    )
    request = types.SimpleNamespace(
        requested_output_names=lambda: ["label", "scores"],
        get_response_sender=lambda: types.SimpleNamespace(send=lambda *answer: None),
    )
    sender = model._Sender(request)
    label = np.array([b"x"], object)
    for _ in range(3):
        sender.send({"label": label, "scores": np.zeros(2, np.float32)}, False)
    sender.send({"label": np.array([b"y"], object)}, True)
    assert packed == ["label", "scores", "scores", "scores", "label"]


def test_nothing_of_a_model_is_left_for_the_interpreters_end(model: Any) -> None:
    """What Triton's module made is destroyed while the server still hears of it."""

    class Role:
        def __init__(self) -> None:
            self.cycle = self

        def close(self) -> None: ...

    instance = model.TritonPythonModel()
    instance._role = Role()
    left = weakref.ref(instance._role)
    gc.disable()
    try:
        instance.finalize()
        assert left() is None
    finally:
        gc.enable()
