"""The file in which the server's front finds an instance's block."""

from __future__ import annotations

import ctypes
import os
import resource
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fusewire
import numpy as np
import pytest
from fusewire.engine.admission_block import BYTES, GENERATION_BYTES, AdmissionBlock
from fusewire.engine.encoder_admission import EncoderAdmission
from fusewire.engine.expectation import Expectation
from fusewire.engine.request import Request, Work
from fusewire.generation.checks import read_parameters
from fusewire.generation.limits import GenerationLimits as ModelLimits
from fusewire.serving.instance.published_block import PREFIX, PublishedBlock

from tests.engine.simulation import table

_PRELOAD = ctypes.CDLL(str(Path(fusewire.__file__).parent / "tritonserver_preload.so"))
_PRELOAD.fusewire_refused_by_all.restype = ctypes.c_bool
LATEST = -1
LOOKS_EVERY_S = 0.1
RULES = SimpleNamespace(has_tokenizer=True, pairs="refused")
TEXTS: Any = SimpleNamespace(
    input_rules=RULES, reads_windows=False, max_length=512, image_size=(0, 0)
)
IMAGES: Any = SimpleNamespace(
    input_rules=None, reads_windows=False, max_length=512, image_size=(32, 48)
)


def generating(**defaults: Any) -> Any:
    limits = ModelLimits(vocab_size=1000, max_length=64, max_request_tokens=64, max_sequences=4)
    return SimpleNamespace(limits=limits, parameters=lambda: read_parameters({}, limits, defaults))


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(PREFIX, str(tmp_path / "block_"))
    return tmp_path / "block_"


def sizes(prefix: Path) -> list[int]:
    return sorted(path.stat().st_size for path in prefix.parent.iterdir())


def test_a_block_is_a_file_until_it_is_closed(prefix: Path) -> None:
    published = PublishedBlock("m", 1, "m_0", 1)
    assert sizes(prefix) == [0]
    assert published.of(TEXTS, 8) is not None
    assert sizes(prefix) == [BYTES]
    published.close()
    assert sizes(prefix) == []


def test_a_new_process_takes_the_place_of_the_old_one(prefix: Path) -> None:
    old, new = PublishedBlock("m", 1, "m_0", 1), PublishedBlock("m", 1, "m_0", 1)
    new.of(TEXTS, 8)
    old.close()
    assert sizes(prefix) == [BYTES]


def test_models_with_equal_names_of_instances_have_files_of_their_own(prefix: Path) -> None:
    kept = [PublishedBlock(model, 1, "cpu", 1) for model in ("m", "n")]
    assert all(each.of(TEXTS, 8) is not None for each in kept)
    assert sizes(prefix) == [BYTES, BYTES]


def test_a_model_of_images_says_their_size(prefix: Path) -> None:
    assert PublishedBlock("m", 1, "m_0", 1).of(IMAGES, 8) is not None
    (file,) = prefix.parent.iterdir()
    assert list(memoryview(file.read_bytes()).cast("q")[4:10]) == [8, 32, 512, 1 << 24, 32, 48]


def test_a_model_that_generates_has_a_small_block(prefix: Path) -> None:
    assert PublishedBlock("m", 1, "m_0", 1).of_generation(generating()) is not None
    assert sizes(prefix) == [GENERATION_BYTES]


def test_where_a_folder_asks_for_several_sequences_nothing_is_refused_in_front(
    prefix: Path,
) -> None:
    assert PublishedBlock("m", 1, "m_0", 1).of_generation(generating(num_beams=4)) is None
    assert sizes(prefix) == [0]


def test_a_version_without_room_leaves_its_file_empty(
    prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    published = PublishedBlock("m", 1, "m_0", 1)
    assert published.of(TEXTS, 8) is None
    assert sizes(prefix) == [0]
    published.close()
    assert sizes(prefix) == []


def test_what_another_user_put_in_the_way_is_a_warning(
    prefix: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forbidden(*_: Any, **__: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "unlink", forbidden)
    assert PublishedBlock("m", 1, "m_0", 1).of(TEXTS, 8) is None
    assert "m: no block for early refusals: Operation not permitted" in caplog.text


@pytest.fixture
def block(prefix: Path) -> AdmissionBlock:
    """Of version 1 of "m", which has minutes of work to do in a second."""
    block = PublishedBlock("m", 1, "m_0", 1).of(TEXTS, 8)
    assert block is not None
    costs, expectation = table(0.0, 1e-4, 1e-8), Expectation(512)
    taken = EncoderAdmission(costs, expectation, max_queue_ms=1000, block=block)
    taken.take(Work(Request({"input_ids": np.zeros((1, 512), np.int64)})))
    taken.begin([512] * 10_000)
    return block


def refused(prefix: Path, block: AdmissionBlock, version: int = LATEST) -> bool:
    time.sleep(LOOKS_EVERY_S + 0.01)
    return refused_now(prefix, block, version)


def refused_now(
    prefix: Path, block: AdmissionBlock, version: int = LATEST, within_s: float = 0.0
) -> bool:
    """`within_s`: the time that the request has; 0: it names none."""
    with block:
        pass  # it says something
    ids = ctypes.c_uint64(1), ctypes.c_uint64(512)
    found: bool = _PRELOAD.fusewire_refused_by_all(
        str(prefix).encode(), b"m", ctypes.c_int64(version), *ids, ctypes.c_double(within_s)
    )
    return found


def test_the_latest_version_is_not_judged_while_one_has_no_block(
    prefix: Path, block: AdmissionBlock
) -> None:
    PublishedBlock("n", 2, "n_0", 1)
    assert refused(prefix, block)
    later = PublishedBlock("m", 2, "m_0", 1)
    assert refused(prefix, block, 1)
    assert not refused(prefix, block)
    later.close()
    assert refused(prefix, block)


def test_a_file_that_is_not_in_its_place_yet_is_no_block(
    prefix: Path, block: AdmissionBlock
) -> None:
    (file,) = prefix.parent.iterdir()
    file.with_name(f"{file.name}.new").touch()
    assert refused(prefix, block)


def test_a_front_without_descriptors_keeps_the_blocks_it_knows(
    prefix: Path, block: AdmissionBlock
) -> None:
    assert refused(prefix, block)
    (prefix.parent / "other").touch()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        assert refused(prefix, block)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert refused(prefix, block)


def test_what_was_let_in_takes_room_before_the_instance_has_judged_it(prefix: Path) -> None:
    """Requests of 0.05 s, of which 15 find room within the second that they may wait."""

    def asked() -> Work:
        return Work(Request({"input_ids": np.zeros((1, 512), np.int64)}))

    block = PublishedBlock("m", 1, "m_0", 1).of(TEXTS, 8)
    assert block is not None
    taken = EncoderAdmission(table(0.0, 1e-4), Expectation(512), max_queue_ms=1000, block=block)
    taken.take(asked())
    assert not refused(prefix, block)  # it is known now, and this one is on its way
    let_in = 1
    while not refused_now(prefix, block):
        let_in += 1
        assert let_in < 20
    assert let_in > 10
    for _ in range(let_in):
        taken.take(asked())
    assert refused_now(prefix, block)


def test_what_was_let_in_and_never_came_is_forgotten(prefix: Path) -> None:
    block = PublishedBlock("m", 1, "m_0", 1).of(TEXTS, 8)
    assert block is not None
    taken = EncoderAdmission(table(0.0, 1e-4), Expectation(512), max_queue_ms=1000, block=block)
    taken.take(Work(Request({"input_ids": np.zeros((1, 512), np.int64)})))
    assert not refused(prefix, block)
    while not refused_now(prefix, block):
        pass
    assert not refused(prefix, block)


def test_what_has_no_time_takes_none_of_those_that_have(prefix: Path) -> None:
    block = PublishedBlock("m", 1, "m_0", 1).of(TEXTS, 8)
    assert block is not None
    taken = EncoderAdmission(table(0.0, 1e-4), Expectation(512), block=block)
    work = Work(Request({"input_ids": np.zeros((1, 512), np.int64)}), time.monotonic() + 1)
    taken.take(work)
    time.sleep(LOOKS_EVERY_S + 0.01)
    assert not any(refused_now(prefix, block) for _ in range(100))
    assert not refused_now(prefix, block, within_s=1.0)
