"""A real server whose models have int8 weights answers as the same models do in Python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import fusewire
import numpy as np
import openai
import pytest
from fusewire.serving.config import Deployment, ServerSettings
from fusewire.serving.repository import import_folder
from fusewire.serving.supervisor.announcement import lines
from fusewire.serving.supervisor.server import Server
from fusewire_client import Client

from tests.engine.generating import tiny_folder
from tests.reference import tiny_checkpoint
from tests.weights.quantized.writers import gptq, quantise

TEXTS = ["a cat sleeps", "the stock market fell"]
PROMPT, TOKENS = "Once upon a time", 24
INT8 = {"quantize": "int8"}


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("writer"))


@pytest.fixture(scope="module")
def server(
    minilm: Path, writer: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("repository")
    for name, folder in {"minilm": minilm, "writer": writer}.items():
        import_folder(
            folder, root, name=name, settings=INT8, deployment=Deployment(device="cpu"), link=True
        )
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "openai_port": 0}
    with Server([root], ServerSettings(log_level="error", exit_timeout_s=2, **ports)) as server:
        yield server


def test_int8_answers_are_those_of_the_classes(server: Server, minilm: Path, writer: Path) -> None:
    exact, expected = (
        fusewire.Embedder(minilm, device="cpu", quantize=quantize).encode(TEXTS)
        for quantize in ("none", "int8")
    )
    with Client(f"127.0.0.1:{server.endpoint.grpc_port}") as client:
        embedded = client.embed(TEXTS, model="minilm")
    np.testing.assert_array_equal(embedded, expected)
    assert not np.array_equal(expected, exact)
    with fusewire.LLM(writer, device="cpu", quantize="int8") as llm:
        (output,) = llm.generate(PROMPT, temperature=0, max_new_tokens=TOKENS, use_tqdm=False)
    assert server.openai is not None
    endpoint = openai.OpenAI(base_url=f"http://{server.openai.address}/v1", api_key="none")
    made = endpoint.completions.create(
        model="writer", prompt=PROMPT, max_tokens=TOKENS, temperature=0
    )
    assert made.choices[0].text == output.outputs[0].text


def test_what_is_printed_names_the_format(server: Server) -> None:
    assert sum("float32 (int8 weights)" in line for line in lines(server)) == 2


def test_of_a_quantised_folder_it_names_what_is_computed(tmp_path: Path) -> None:
    forms = {
        "kept": gptq(group_size=32),
        "ordered": gptq(group_size=32, act_order=True),
        "fine": gptq(group_size=16),
    }
    for name, form in forms.items():
        model = tiny_checkpoint(tmp_path / name, "bert", "classify", hidden_size=64)
        quantise(tmp_path / name, model, form, plain=("pooler.dense", "classifier"))
    folders = [str(tmp_path / name) for name in forms]
    settings = ServerSettings(http_port=0, grpc_port=0, metrics_port=0, exit_timeout_s=2)
    on_cpu = Deployment(device="cpu")
    with Server(folders, settings, deployment=on_cpu) as server:
        printed = "\n".join(lines(server))
    assert re.search(r"kept +classify +cpu +float32 \(int4 weights\)\n", printed)
    assert re.search(r"ordered +classify +cpu +float32 \(int4 weights\)\n", printed)
    assert re.search(r"fine +classify +cpu +float32, gptq dequantised\n", printed)
