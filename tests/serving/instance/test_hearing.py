"""Short audio is answered while long audio is decoded, whichever came first."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fusewire.engine.generation import GenerationEngine
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.engine.request import Request
from fusewire.errors import Cancelled, DeadlineExceeded, InvalidInput, QueueFull
from fusewire.serving.instance import generating, hearing
from fusewire.serving.instance.generating import Generating
from fusewire.serving.instance.generation_metrics import GenerationMetrics
from fusewire.serving.instance.role import Role
from fusewire.worker_processes import process

from tests.audio.waves import wave_file
from tests.engine.generating import ANSWER_TIMEOUT_S
from tests.engine.test_generation_requests import until
from tests.models.tiny_whisper import tiny_whisper_folder
from tests.serving.instance.incoming import Client, take
from tests.serving.instance.test_metrics import Families

RATE = 16000
SHORT_S, MOST_S, WAITING = 1, 3, 8


@pytest.fixture
def decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Long audio is being decoded until this file is there."""
    path = tmp_path / "decoded"
    wait = (
        "import os, time\n"
        "decode = program.decode_sound\n"
        "def slowly(data, rate, most_samples, field):\n"
        f"    while most_samples > {SHORT_S} * rate and not os.path.exists({str(path)!r}):\n"
        "        time.sleep(0.01)\n"
        "    return decode(data, rate, most_samples, field)\n"
        "program.decode_sound = slowly\n"
    )
    begun = process._PROGRAM.replace("program.main(", f"{wait}program.main(")
    monkeypatch.setattr(process, "_PROGRAM", begun)
    return path


@pytest.fixture
def role(tmp_path: Path, decoded: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Role]:
    monkeypatch.setattr(hearing, "SHORT_SECONDS", SHORT_S)
    folder = tmp_path / "whisper"
    folder.mkdir()
    tiny_whisper_folder(folder, seed=2)
    settings = GenerationSettings(max_audio_seconds=MOST_S, max_waiting=WAITING, kv_cache_mib=1)
    engine = GenerationEngine(folder, settings)
    metrics = GenerationMetrics(Families(), "m", reloads=0)
    yield (made := Role(engine, metrics, Generating(engine, metrics)))
    decoded.touch()
    made.close()


def audio(seconds: float, form: str = "audio") -> Request:
    noise = np.random.default_rng(0).normal(0, 0.1, int(seconds * RATE)).clip(-1, 1)
    samples = noise.astype(np.float32)
    file = np.array([wave_file((samples * 32767).astype("<i2").tobytes())], object)
    given: Any = {"audio": file, "samples": samples}
    asked = {"language": "de", "max_new_tokens": 16, "repetition_penalty": 1.6}
    return Request({form: given[form]}, {**asked, "no_repeat_ngram_size": 3})


def test_short_audio_is_answered_while_long_audio_is_decoded(role: Role, decoded: Path) -> None:
    many = [Client() for _ in range(WAITING - 1)]  # more than there are threads
    for client in many:
        take(role, audio(2), client)
    for form in ("audio", "samples"):
        take(role, audio(0.5, form), short := Client())
        assert short.text()
    assert not any(client.answers for client in many)
    decoded.touch()
    assert len({client.text() for client in many}) == 1


class Sender:
    """Of a client."""

    def __init__(self, client: Client) -> None:
        self.send, self.cancelled = client.send, client.cancelled


class Sends(Client):
    """Knows whether its sender is there still."""

    def sender(self) -> Any:
        self.made = weakref.ref(sender := Sender(self))
        return sender


def test_a_sender_is_let_go_with_the_last_answer(role: Role, decoded: Path) -> None:
    """The server waits for all of them before it unloads a model, and not for Python's collector
    of cycles."""
    decoded.touch()
    gc.disable()
    try:
        for asked in (audio(0.5), audio(2), audio(MOST_S + 1)):
            take(role, asked, client := Sends())
            client.answer()
            until(lambda: client.made() is None)
    finally:
        gc.enable()


def test_what_no_process_would_read_is_refused_at_once(role: Role) -> None:
    take(role, audio(2), waits := Client())
    take(role, audio(MOST_S + 1), refused := Client())
    answer = refused.answer()
    assert isinstance(answer, InvalidInput)
    assert "64000 samples, 4.0 s, wanted at most 48000, 3 s" in str(answer)
    assert not waits.answers


def test_too_much_long_audio_is_refused_by_name(role: Role, decoded: Path) -> None:
    many = [Client() for _ in range(WAITING + 1)]
    for index, client in enumerate(many):
        take(role, audio(2), client)
        if index < WAITING:
            queues = role._begins._hearing  # type: ignore[union-attr]
            until(lambda: queues._found_long._waiting._value == WAITING - 1 - index)  # noqa: B023
    full = many[-1].answer()
    assert isinstance(full, QueueFull)
    assert str(full).startswith(f"queue: got long audio while {WAITING} such requests wait")
    decoded.touch()
    for client in many[:-1]:
        assert client.text()


@pytest.mark.parametrize("by", ["timeout_seconds", "deadline"])
def test_who_is_late_when_it_comes_is_not_read(role: Role, by: str) -> None:
    late, client = audio(0.5), Client()
    late.inputs["audio"][0] = b"RIFF no audio"
    if by == "timeout_seconds":
        late.parameters["timeout_seconds"] = 1e-6
    else:
        client.deadline = time.monotonic()
    take(role, late, client)
    assert isinstance(client.answer(), DeadlineExceeded)


def test_who_is_late_while_others_are_decoded_is_not_read(
    role: Role, decoded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, queues = [], role._begins._hearing  # type: ignore[union-attr]
    read = queues._long.file
    monkeypatch.setattr(queues._long, "file", lambda *args: reads.append(1) or read(*args))
    many = [Client() for _ in range(hearing._LONG_THREADS)]
    for client in many:
        take(role, audio(2), client)
    until(lambda: len(reads) == len(many))
    late = Client()
    late.deadline = time.monotonic() + 600
    take(role, audio(2), late)
    until(lambda: queues._found_long._works.qsize() == 1)
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 601)
    monkeypatch.setattr(generating, "time", clock)
    decoded.touch()
    assert isinstance(late.answer(), DeadlineExceeded)
    assert len(reads) == len(many)


def test_who_is_late_when_its_audio_is_decoded_is_not_computed(
    role: Role, decoded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, step = [], role.engine.model.step
    monkeypatch.setattr(role.engine.model, "step", lambda *args: steps.append(1) or step(*args))
    late, client = audio(2), Client()
    late.parameters["timeout_seconds"] = 1.0
    take(role, late, client)
    time.sleep(1.0)
    decoded.touch()
    assert isinstance(client.answer(), DeadlineExceeded)
    assert not steps


def test_who_leaves_while_it_waits_is_not_read(role: Role, decoded: Path) -> None:
    threads = hearing._LONG_THREADS
    many = [Client() for _ in range(threads)]
    for client in many:
        take(role, audio(2), client)
    take(role, audio(2), gone := Client())
    until(lambda: role._begins._hearing._found_long._works.qsize() == 1)  # type: ignore[union-attr]
    gone.gone = True
    decoded.touch()
    assert gone.ended.wait(ANSWER_TIMEOUT_S)
    assert isinstance(gone.answer(), Cancelled)
    for client in many:
        assert client.text()
