"""Chat templates and tokenizers without end delay only requests for their own model."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from fusewire.text_workers.worker import CALL_BYTES
from fusewire.text_workers.workers import DEADLINE_S
from fusewire_client import Client, InvalidArgument

from tests.engine.generating import tiny_gpt2
from tests.server.asking import PATIENCE_S, until
from tests.server.test_serve_command import Serving
from tests.text_workers.folders import (
    DOUBLED,
    HARM,
    MULTIPLIED,
    SLOW_WORDS,
    STRIP,
    SUM,
    backtracking,
    text_folder,
)

OTHERS_WITHIN_S = 5.0
EXIT_TIMEOUT_S = 2
# For the process to end after its timeout.
ENDS_S = 30
TEMPLATES = {"strip": STRIP, "sum": SUM, "doubled": DOUBLED, "multiplied": MULTIPLIED}


def chat_folder(folder: Path, template: str = "") -> Path:
    text_folder(folder, HARM.format(template))
    tiny_gpt2().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    root = tmp_path_factory.mktemp("hostile")
    folders = {"good": chat_folder(root / "good"), "regex": chat_folder(root / "regex")}
    backtracking(folders["regex"])
    for name, template in TEMPLATES.items():
        folders[name] = chat_folder(root / name, template)
    sources = [f"{name}={folder}" for name, folder in folders.items()]
    flags = ("--openai-port=0", f"--exit-timeout-s={EXIT_TIMEOUT_S}", "--no-access-log")
    serving = Serving(root / "temporary", *sources, *flags)
    yield serving
    serving.process.kill()
    serving.process.communicate(timeout=60)


@pytest.fixture(scope="module")
def ready(serving: Serving) -> dict[str, Any]:
    return serving.event()


@pytest.fixture(scope="module")
def chat(ready: dict[str, Any]) -> Iterator[Callable[[str, str], Any]]:
    """chat(model, content)."""
    url = f"http://{ready['openai']}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE_S) as client:

        def chat(model: str, content: str) -> Any:
            messages: Any = [{"role": "user", "content": content}]
            return client.chat.completions.create(model=model, messages=messages, max_tokens=2)

        yield chat


def workers_of(serving: Serving) -> dict[int, int]:
    """The endpoint's text workers, and the bytes that each has in memory."""
    found: dict[int, int] = {}
    (endpoint,) = serving.pids("fusewire.serving.openai")
    for task in Path(f"/proc/{endpoint}/task").iterdir():
        for pid in map(int, (task / "children").read_text().split()):
            try:
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            except OSError:
                continue
            found[pid] = pages * os.sysconf("SC_PAGESIZE")
    return found


def test_attacks_of_folders_delay_no_other_request(
    serving: Serving, ready: dict[str, Any], chat: Callable[[str, str], Any]
) -> None:
    """At the endpoint those of other models, at the model those without messages."""
    harm = [{"role": "user", "content": "harm"}]
    attacks = {name: "harm" for name in TEMPLATES} | {"regex": SLOW_WORDS}
    with (
        Client(ready["grpc"], timeout_s=60, retries=0) as client,
        ThreadPoolExecutor(len(attacks) + 1) as threads,
    ):
        for name in attacks:
            assert chat(name, "hi").choices
        before = workers_of(serving)
        assert len(before) == len(attacks) + 1
        most_bytes = 0

        def others() -> None:
            nonlocal most_bytes
            chat("good", "hi")
            client.generate("hi", model="strip", max_new_tokens=2)
            most_bytes = max(most_bytes, *workers_of(serving).values())

        began = time.monotonic()
        late = {name: threads.submit(chat, name, text) for name, text in attacks.items()}
        direct = threads.submit(client.chat, harm, model="strip", max_new_tokens=2)
        asked = 0
        while not all(work.done() for work in (*late.values(), direct)):
            asked_at = time.monotonic()
            others()
            assert time.monotonic() - asked_at < OTHERS_WITHIN_S
            asked += 1
        assert asked > 3
        assert time.monotonic() - began < DEADLINE_S + ENDS_S
        for work in (*late.values(), direct):
            error = work.exception()
            assert isinstance(error, openai.BadRequestError | InvalidArgument), error
            assert "messages: got what the" in str(error)
        assert most_bytes < CALL_BYTES + (200 << 20)
        for name in attacks:
            assert chat(name, "hi").choices
        after = workers_of(serving)
        assert len(after) == len(before)
        assert len(after.keys() & before.keys()) == 1  # of the model that was not attacked
        assert max(after.values()) < 100 << 20


def test_the_service_ends_in_time_while_a_template_is_rendered(
    serving: Serving, chat: Callable[[str, str], Any]
) -> None:
    with ThreadPoolExecutor(2) as threads:
        late = [threads.submit(chat, name, "harm") for name in ("strip", "sum")]
        time.sleep(1)
        assert not any(work.done() for work in late)
        began = time.monotonic()
        serving.process.send_signal(signal.SIGTERM)
        assert serving.process.wait(EXIT_TIMEOUT_S + ENDS_S) == 0
        assert time.monotonic() - began < EXIT_TIMEOUT_S + ENDS_S
        for work in late:
            assert isinstance(work.exception(), openai.APIError)
    until(lambda: serving.traces() == [], ENDS_S)
