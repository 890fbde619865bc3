"""Images and generation that cannot be in time are refused before Triton's queue, as texts are
(test_overload.py), and counted all the same.

The model is held by one long request; the others come while that is computed, by one thread, so
that it takes many times as long as they do on any machine.
"""

from __future__ import annotations

import http.client
import json
import queue
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from fusewire.serving.config import Deployment, ServerSettings
from fusewire.serving.repository import import_folder
from fusewire.serving.supervisor.server import Server
from tritonclient.utils import InferenceServerException

from tests.models.test_image_models import saved
from tests.server import images
from tests.server.asking import Asker, _inputs, until
from tests.server.streaming import Stream
from tests.server.test_generate import LONG, slower_folder

ROWS, SIZE = 120, 48  # images of 577 tokens
REFUSALS = 20
POLLED_S = 1.0  # within it the metrics are up to date
SHORT_US = 500_000  # for so many images


def slow_images(folder: Path) -> Path:
    config = transformers.ViTConfig(
        hidden_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=2048,
        image_size=SIZE,
        patch_size=2,
    )
    saved(folder, transformers.ViTForImageClassification, config)
    size = {"height": SIZE, "width": SIZE}
    transformers.ViTImageProcessor(size=size).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def asker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    root, make = tmp_path_factory.mktemp("repository"), tmp_path_factory.mktemp
    models: dict[str, tuple[Path, dict[str, Any]]] = {
        "images": (
            slow_images(make("images")),
            {"task": "label", "max_batch_tokens": 577, "max_queue_ms": 86_400_000},
        ),
        "writer": (slower_folder(make("writer")), {"max_sequences": 1}),
    }
    for name, (folder, given) in models.items():
        import_folder(
            folder,
            root,
            name=name,
            settings={"dtype": "float32", "threads": 1, **given},
            deployment=Deployment(device="cpu"),
            link=True,
        )
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    # The watchdog's own requests would count.
    settings = ServerSettings(log_level="error", watch_interval_s=3600, exit_timeout_s=2, **ports)
    with Server([root], settings) as server, Asker(server) as asker:
        yield asker


def counted(asker: Asker, model: str) -> float:
    return asker.metric("fusewire_rejected_total", model=model, reason="overload")


def in_triton(asker: Asker, model: str) -> int:
    """Requests that the model's process has answered; an error is an answer, too."""
    (row,) = asker.server.endpoint.call(f"models/{model}/stats")["model_stats"]
    stats = row["inference_stats"]
    return int(stats["success"]["count"]) + int(stats["fail"]["count"])


@pytest.mark.alone
@pytest.mark.parametrize(
    "refused",
    [
        {"pixel_values": np.zeros((ROWS, 3, SIZE, SIZE), np.float32)},
        images.images(*images.photos(1) * ROWS),
    ],
    ids=["pixels", "files"],
)
def test_images_do_not_get_into_tritons_queue(asker: Asker, refused: dict[str, Any]) -> None:
    time.sleep(POLLED_S)
    before, answered = counted(asker, "images"), in_triton(asker, "images")
    tokens = asker.metric("fusewire_tokens_total", model="images")
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    held = {"pixel_values": np.zeros((ROWS, 3, SIZE, SIZE), np.float32)}
    long = asker.client.async_infer(
        "images", _inputs(held), lambda result, error: answers.put(error or result)
    )
    until(lambda: asker.metric("fusewire_tokens_total", model="images") > tokens)
    for _ in range(REFUSALS):
        with pytest.raises(InferenceServerException, match=r"UNAVAILABLE.*queue: got .* try again"):
            asker.client.infer("images", _inputs(refused), timeout=SHORT_US)
    wrong = {"pixel_values": np.full((ROWS, 3, SIZE, SIZE), np.nan, np.float32)}
    for invalid in (wrong, images.images(*[b"no image"] * ROWS)):
        with pytest.raises(InferenceServerException, match=r"INVALID_ARGUMENT"):
            asker.client.infer("images", _inputs(invalid), timeout=SHORT_US)
    assert answers.empty()  # all of this came while it was computed
    long.cancel()
    assert "CANCELLED" in str(answers.get(timeout=30).status())
    until(lambda: counted(asker, "images") == before + REFUSALS)
    assert in_triton(asker, "images") - answered < REFUSALS


def over_http(asker: Asker, **parameters: Any) -> str:
    at = asker.server.endpoint
    connection = http.client.HTTPConnection(at.reachable, at.http_port, timeout=30)
    body = {"text_input": "A prompt", "exclude_input_in_output": True}
    body |= {"sampling_parameters": json.dumps(parameters)}
    connection.request("POST", "/v2/models/writer/generate", json.dumps(body))
    answer = connection.getresponse().read().decode()
    connection.close()
    return answer


@pytest.mark.alone
def test_generation_does_not_get_into_tritons_queue(asker: Asker) -> None:
    over_http(asker, max_new_tokens=4)  # one has ended
    time.sleep(POLLED_S)
    before, answered = counted(asker, "writer"), in_triton(asker, "writer")
    with Stream(asker.server, "writer", "A prompt", max_new_tokens=LONG, ignore_eos=True) as stream:
        tokens = iter(stream)
        next(tokens)
        for _ in range(REFUSALS):
            words = over_http(asker, max_new_tokens=20, temperature=0, timeout_seconds=0.02)
            assert re.search(r"queue: got a predicted wait of .*; try again in \d+\.\d s", words)
        assert "temperature: got -1" in over_http(asker, temperature=-1)
        next(tokens)  # all of this came while it ran
    until(lambda: counted(asker, "writer") == before + REFUSALS)
    assert in_triton(asker, "writer") - answered < REFUSALS
