"""Loading and unloading under traffic, for those who hold the key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from fusewire.serving.config import Deployment
from fusewire.serving.endpoint import CONTROL_HEADER, EndpointError
from fusewire.serving.repository import import_folder
from fusewire.serving.supervisor.triton_words import reason_in_words
from tritonclient.utils import InferenceServerException

from tests.server.asking import Asker, Traffic, ids, until
from tests.server.conftest import CONTROL_KEY

QUESTION = ids([5, 6, 7])


def test_models_come_and_go_without_a_failed_request(
    asker: Asker, repository: Path, tiny: Callable[..., Path], device: str
) -> None:
    deployment = Deployment(device=device)
    import_folder(
        tiny("mpnet", "embed"), repository, name="guest", deployment=deployment, link=True
    )
    with Traffic(asker, "hidden", QUESTION) as traffic:
        for _ in range(4):  # its series are those of the processes before
            asker.server.load("guest")
            assert asker.ask("guest", QUESTION)["embedding"].size
            traffic.more(20)
            asker.server.unload("guest")
            with pytest.raises(InferenceServerException, match="guest"):
                asker.ask("guest", QUESTION)
        traffic.more(20)
    assert traffic.errors == []
    until(lambda: asker.metric("fusewire_requests_total", model="guest", outcome="ok") >= 4)
    until(lambda: asker.metric("fusewire_allocator_reserved_bytes", model="guest") == 0)


def test_a_new_version_replaces_the_old_without_a_failed_request(
    asker: Asker, repository: Path, tiny: Callable[..., Path], device: str
) -> None:
    first = Deployment(device=device)
    import_folder(tiny("bert", "embed", seed=3), repository, name="moving", deployment=first)
    asker.server.load("moving")
    old = asker.ask("moving", QUESTION)["embedding"]
    with Traffic(asker, "moving", QUESTION) as traffic:
        import_folder(
            tiny("bert", "embed", seed=4),
            repository,
            name="moving",
            deployment=Deployment(device=device, version=2),
        )
        asker.server.load("moving")
        new = asker.ask("moving", QUESTION)["embedding"]
        traffic.more(20)
    assert traffic.errors == []
    assert np.abs(new - old).max() > 1e-3
    with pytest.raises(InferenceServerException):
        asker.ask("moving", QUESTION, version="1")
    asker.server.unload("moving")


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"task": "banana"}, ["task", "'banana'", "embed"]),
        ({"task": "embed", "bogus": "1"}, ["bogus", "unknown setting"]),
        ({"task": "embed", "max_length": "1000000"}, ["max_length", "1000000"]),
        ({"task": "answer"}, ["qa_outputs.weight", "task"]),
    ],
)
def test_a_bad_configuration_does_not_load_and_says_why(
    asker: Asker, parameters: dict[str, str], words: list[str]
) -> None:
    config = asker.server.endpoint.call("models/hidden/config")
    config["parameters"] = {key: {"string_value": value} for key, value in parameters.items()}
    config["model_warmup"] = []
    with pytest.raises(EndpointError) as caught:
        asker.server.load("hidden", config)
    for word in words:
        assert word in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert asker.ask("hidden", QUESTION)  # the model that was there goes on serving


@pytest.mark.parametrize("key", [None, "a-wrong-key-of-some-length"])
def test_restricted_apis_refuse_without_the_key(asker: Asker, key: str | None) -> None:
    for path in (
        "repository/index",
        "repository/models/hidden/unload",
        "systemsharedmemory/region/x/register",
        "logging",
        "trace/setting",
    ):
        with pytest.raises(EndpointError) as caught:
            asker.server.endpoint.call(path, {}, control_key=key)
        assert caught.value.status == 403, path
    headers = {f"triton-grpc-protocol-{CONTROL_HEADER}": key} if key else None
    client: triton.InferenceServerClient = asker.client
    with pytest.raises(InferenceServerException, match="restricted"):
        client.unload_model("hidden", headers=headers)
    with pytest.raises(InferenceServerException, match="restricted"):
        client.get_log_settings(headers=headers)
    assert asker.ask("hidden", QUESTION)


def test_the_key_opens_them_over_grpc_too(asker: Asker) -> None:
    headers = {f"triton-grpc-protocol-{CONTROL_HEADER}": CONTROL_KEY}
    index = asker.client.get_model_repository_index(headers=headers)
    assert "hidden" in [model.name for model in index.models]


def test_a_gpu_that_is_not_there_is_refused_in_words(asker: Asker) -> None:
    config = asker.server.endpoint.call("models/hidden/config")
    config["instance_group"] = [{"name": "gpu", "kind": "KIND_GPU", "count": 1, "gpus": [9]}]
    with pytest.raises(EndpointError) as caught:
        asker.server.load("hidden", config)
    message = str(caught.value)
    assert "UNAVAILABLE state: " in message
    reason = message.split("UNAVAILABLE state: ")[1]
    assert reason_in_words(reason).startswith("instance_group: got a GPU that the server does not")
    assert reason_in_words(reason).endswith("import the model with --device cpu, or another")
    assert asker.ask("hidden", QUESTION)
