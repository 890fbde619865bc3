"""A text of many megabytes keeps nobody waiting but the one who sent it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fusewire.serving.config import Deployment, ServerSettings
from fusewire.serving.repository import import_folder
from fusewire.serving.supervisor.server import Server
from fusewire_client import Client, InvalidArgument

from tests.engine.generating import LONGEST, tiny_folder

CHARACTERS = 15_000_000
WORDS = "word " * (CHARACTERS // 5)
# Enough to keep others waiting for a second and more. Not known to be long before it is tokenised:
# for BERT it has no tokens at all, for a vocabulary of bytes as many as characters.
SPACES = " " * (CHARACTERS // 4)
OTHERS_WITHIN_S = 5.0


@pytest.fixture(scope="module")
def server(
    tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory, device: str
) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("repository")
    folders = {
        "embed": tiny("bert", "embed"),
        "generate": tiny_folder(tmp_path_factory.mktemp("tiny")),
    }
    for name, folder in folders.items():
        import_folder(
            folder,
            root,
            name=name,
            settings={"task": name, "dtype": "float32"},
            deployment=Deployment(device=device),
            link=True,
        )
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    settings = ServerSettings(log_level="error", exit_timeout_s=2, **ports)
    with Server([root], settings) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    at = server.endpoint
    with Client(f"{at.reachable}:{at.grpc_port}", timeout_s=120, retries=0) as client:
        yield client


def others_are_answered(long: Callable[[], Any], short: Callable[[], Any]) -> tuple[Any, int]:
    """What `long` is answered or refused with, and how often `short` was answered meanwhile, each
    time as ever and in time."""
    wanted = short()
    asked = 0
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(long)
        while not answer.done():
            began = time.monotonic()
            assert np.array_equal(short(), wanted)
            assert time.monotonic() - began < OTHERS_WITHIN_S
            asked += 1
        return answer.exception() or answer.result(), asked


def test_a_long_text_that_fits_is_answered_while_others_are(client: Client) -> None:
    answer, others = others_are_answered(
        lambda: client.embed([SPACES], model="embed"), lambda: client.embed(["a"], model="embed")
    )
    assert np.array_equal(answer, client.embed([" "], model="embed"))
    assert others > 10


def test_a_long_text_is_cut_while_others_are_answered(client: Client) -> None:
    text = WORDS[: CHARACTERS // 5]
    answer, others = others_are_answered(
        lambda: client.embed([text], model="embed", truncate=True),
        lambda: client.embed(["a"], model="embed"),
    )
    assert np.array_equal(answer, client.embed([text[:1000]], model="embed", truncate=True))
    assert others > 10


def test_a_long_prompt_is_refused_while_others_are_answered(client: Client) -> None:
    refusal, others = others_are_answered(
        lambda: client.generate(SPACES, model="generate"),
        lambda: client.generate("a", model="generate", max_new_tokens=3),
    )
    assert isinstance(refusal, InvalidArgument), refusal
    assert f"got {len(SPACES)} tokens, wanted at most {LONGEST - 1}" in str(refusal)
    assert others > 10


@pytest.mark.parametrize("model", ["embed", "generate"])
def test_what_is_known_to_be_too_long_is_refused_at_once(client: Client, model: str) -> None:
    ask = client.generate if model == "generate" else lambda text, **of: client.embed([text], **of)
    began = time.monotonic()
    with pytest.raises(InvalidArgument, match=f"text_input: got {CHARACTERS} characters, at least"):
        ask(WORDS, model=model)
    assert time.monotonic() - began < OTHERS_WITHIN_S
