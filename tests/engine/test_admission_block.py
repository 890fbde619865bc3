"""What the server's front (csrc/tritonserver/judgement.cc) refuses by an admission's block, that
admission would refuse at the same moment, and with the same words (numbers may be rounded)."""

from __future__ import annotations

import ctypes
import random
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fusewire
import numpy as np
import pytest
from fusewire.engine.admission_block import (
    BYTES,
    IDS,
    IMAGES,
    ONLY_PAIRS,
    PAIRS,
    TEXTS,
    WINDOWS,
    AdmissionBlock,
    Limits,
)
from fusewire.engine.encoder_admission import EncoderAdmission
from fusewire.engine.expectation import Expectation
from fusewire.engine.request import Request, Work
from fusewire.errors import Overloaded
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.engine.simulation import Asked, Simulation, table

EXACT = table(0.0, 1e-4, 1e-8)  # a CPU: 10,000 tokens a second
LONGEST = 512
LIMITS = Limits(128, TEXTS + PAIRS + IDS, LONGEST, 1 << 24)
NUMBER = re.compile(r"\d+(?:\.\d+)?")
_PRELOAD = ctypes.CDLL(str(Path(fusewire.__file__).parent / "tritonserver_preload.so"))
_PRELOAD.fusewire_refusal.restype = ctypes.c_size_t


class Front:
    """The front's side of a block."""

    def __init__(self, limits: Limits = LIMITS, instances: int = 1) -> None:
        self.memory = bytearray(BYTES)
        self.block = AdmissionBlock(memoryview(self.memory), "m", 1, instances, limits)
        self._address = (ctypes.c_char * BYTES).from_buffer(self.memory)

    def refusal(
        self,
        now: float,
        tenant: str = "",
        priority: int = 0,
        within: float = 0.0,
        texts: Sequence[int] = (),
        ids: tuple[int, int] = (0, 0),
        images: int = 0,
    ) -> str:
        """`texts`: bytes of each; `ids`: rows, and their length."""
        words = ctypes.create_string_buffer(1000)
        size = _PRELOAD.fusewire_refusal(
            self._address,
            ctypes.c_double(now),
            ctypes.c_double(0.5),
            tenant.encode(),
            ctypes.c_int64(priority),
            ctypes.c_double(within),
            (ctypes.c_uint64 * len(texts))(*texts),
            ctypes.c_size_t(len(texts)),
            ctypes.c_uint64(ids[0]),
            ctypes.c_uint64(ids[1]),
            ctypes.c_uint64(images),
            words,
            ctypes.c_size_t(len(words)),
        )
        return words.raw[:size].decode()


@dataclass
class Fronted(Simulation):
    """Asks the front first, and admission all the same."""

    slo_ms: float | None = None
    passes: bool = False  # nothing that the front refuses
    front: Front = field(default_factory=Front)
    foreseen: int = 0
    same_words: int = 0  # to the millisecond
    refused: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.admission = EncoderAdmission(
            self.costs,
            Expectation(LONGEST),
            self.slo_ms,
            self.max_queue_ms,
            lambda: self.now,
            self.front.block,
        )

    def arrive(self, asked: Asked) -> None:
        words = self.front.refusal(
            self.now,
            asked.tenant,
            asked.priority,
            asked.within or 0.0,
            ids=(asked.rows, asked.length),
        )
        if words and self.passes:
            asked.refused = Overloaded(words, 0.0)
            tell(self.front, asked.tenant, counts=True)
            return
        super().arrive(asked)
        self.refused += asked.refused is not None
        if words:
            assert asked.refused is not None
            self.foreseen += 1
            self.same_words += said(words) == said(str(asked.refused))


def said(words: str) -> str:
    """All but when to come again, of which a share is random."""
    return words.partition("; try again in ")[0]


@contextmanager
def refused(words: str) -> Iterator[None]:
    """Expects a refusal in these words, or none where there are none. Numbers of three digits may
    be rounded to neighbours: in front their parts are added in another order."""
    if not words:
        yield
        return
    with pytest.raises(Overloaded) as caught:
        yield
    found = said(str(caught.value))
    assert NUMBER.sub("#", found) == NUMBER.sub("#", words)
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (found, words)]
    np.testing.assert_allclose(*numbers, rtol=0.011)


@st.composite
def traffic(draw: st.DrawFn) -> list[Asked]:
    """Up to some seconds' work, come within some seconds."""
    spread = draw(st.sampled_from([1.0, 5.0, 30.0]))
    return [
        Asked(
            at=draw(st.floats(0, spread)),
            length=draw(st.integers(1, 400)),
            rows=draw(st.sampled_from([1, 1, 1, 2, 30])),
            within=draw(st.none() | st.floats(0.01, 3)),
            tenant=draw(st.sampled_from(["", "a", "b", "é" * 128])),
            priority=draw(st.integers(-3, 6)),
        )
        for _ in range(draw(st.integers(1, 60)))
    ]


LIMITED = st.none() | st.sampled_from([50.0, 500.0, 20_000.0])


@given(traffic(), LIMITED, LIMITED, st.sampled_from([1.0, 2.5]))
@settings(max_examples=100)
def test_the_front_refuses_nothing_that_admission_takes(requests, max_queue_ms, slo_ms, truth):
    """Also where predictions are wrong, and times are stretched for it."""
    Fronted(EXACT, max_queue_ms=max_queue_ms, slo_ms=slo_ms, truth=truth).run(requests)


def poisson(rate: float, seconds: float, **asked: Any) -> list[Asked]:
    chosen = random.Random(0)
    at, found = 0.0, []
    while (at := at + chosen.expovariate(rate)) < seconds:
        found.append(Asked(at=at, length=70, **asked))
    return found


@pytest.mark.parametrize("tenants", [[""], ["a", "b"]])
def test_the_front_foresees_nearly_all_refusals(tenants):
    """At 3 times the capacity, one tenant alone or 10 times as much as the other."""
    requests = poisson(400, 10, within=1.0, tenant=tenants[0])
    for number, asked in enumerate(requests):
        asked.tenant = tenants[-1] if number % 11 == 0 else tenants[0]
    simulation = Fronted(table(0.0, 1e-4))
    simulation.run(requests)
    assert simulation.refused > 1000
    assert simulation.foreseen > 0.98 * simulation.refused
    assert simulation.same_words > 0.98 * simulation.foreseen


def texts(*sizes: int, pairs: Sequence[int] = ()) -> Request:
    def column(each: Sequence[int]) -> Any:
        return np.array([b"x" * size for size in each], object).reshape(-1, 1)

    pair = {"text_pair": column(pairs)} if pairs else {}
    return Request({"text_input": column(sizes)} | pair)


@given(
    st.lists(st.integers(0, 5000), min_size=1, max_size=40),
    st.lists(st.integers(0, 5000), min_size=1, max_size=40),
    st.booleans(),
)
def test_texts_cost_in_front_what_they_cost_in_the_instance(first, second, windows):
    front = Front(Limits(128, TEXTS + WINDOWS * windows, LONGEST, 1 << 24))
    taken = EncoderAdmission(
        EXACT,
        Expectation(LONGEST, windows=windows),
        max_queue_ms=10,
        clock=lambda: 1.0,
        block=front.block,
    )
    taken.take(Work(texts(*first)))  # alone
    words = said(front.refusal(1.0, texts=second))
    if not words and front.refusal(1.0, texts=[size + 1 for size in second]):
        return  # a byte more decides: rounding is in the request's favour
    with refused(words):
        taken.take(Work(texts(*second)))


@given(st.integers(1, 40), st.integers(1, 40), st.floats(1.0, 300.0))
@example(18, 20, 98.0390625)  # between two numbers of three digits
def test_images_cost_in_front_what_they_cost_in_the_instance(
    first: int, second: int, tokens: float
):
    front = Front(Limits(128, IMAGES, LONGEST, 1 << 24, 224, 224))
    expectation = Expectation(LONGEST, image_tokens=tokens)
    taken = EncoderAdmission(
        EXACT, expectation, max_queue_ms=300, clock=lambda: 1.0, block=front.block
    )

    def images(rows: int) -> Work:
        return Work(Request({"image": np.array([[b"..."]] * rows, object)}))

    taken.take(images(first))  # alone
    words = said(front.refusal(1.0, images=second))
    if not words and front.refusal(1.0, images=second + 1):
        return
    with refused(words):
        taken.take(images(second))


def overloaded(limits: Limits = LIMITS) -> tuple[Front, EncoderAdmission]:
    front = Front(limits)
    taken = EncoderAdmission(
        EXACT, Expectation(LONGEST), max_queue_ms=1000, clock=lambda: 1.0, block=front.block
    )
    taken.take(Work(texts(40_000)))
    taken.begin([LONGEST] * 60)  # some seconds
    return front, taken


def test_a_block_that_is_old_or_closed_or_being_written_refuses_nothing():
    front, taken = overloaded()
    assert front.refusal(1.0, texts=[400])
    assert front.refusal(1.099, texts=[400])
    assert not front.refusal(1.101, texts=[400])
    with front.block:
        assert not front.refusal(1.0, texts=[400])
    assert front.refusal(1.0, texts=[400])
    taken.close()
    assert not front.refusal(1.0, texts=[400])


def test_a_request_is_not_judged_for_a_time_before_the_block_was_written():
    front, _ = overloaded()
    assert said(front.refusal(0.9, texts=[400])) == said(front.refusal(1.0, texts=[400])) != ""


def test_a_model_says_nothing_before_a_request_has_a_time():
    front = Front()
    taken = EncoderAdmission(EXACT, Expectation(LONGEST), clock=lambda: 1.0, block=front.block)
    terms = memoryview(front.memory).cast("d")[16:40]
    for _ in range(20):
        taken.take(Work(texts(40_000)))
    assert set(terms) == {0.0}
    taken.begin([LONGEST] * 60)
    taken.take(Work(texts(400), deadline=1000.0))
    assert front.refusal(1.0, within=0.1, texts=[400])


def test_what_fails_within_a_block_does_not_hold_it():
    front, taken = overloaded()
    terms, front.block.terms = front.block.terms, lambda: 1 / 0  # type: ignore[assignment,return-value]
    with pytest.raises(ZeroDivisionError):
        taken.idle()
    front.block.terms = terms
    taken.begin([LONGEST] * 60)
    assert front.refusal(1.0, texts=[400])


def test_a_model_without_times_refuses_nothing():
    front = Front()
    taken = EncoderAdmission(EXACT, Expectation(LONGEST), clock=lambda: 1.0, block=front.block)
    for _ in range(20):
        taken.take(Work(texts(40_000)))
        assert not front.refusal(1.0, texts=[400])


@pytest.mark.parametrize(
    ("takes", "asked"),
    [
        (IDS, {"texts": [400]}),
        (TEXTS, {"ids": (1, 100)}),
        (TEXTS + PAIRS + ONLY_PAIRS, {"texts": [400]}),
        (TEXTS + IDS, {"texts": [400] * 129}),
        (TEXTS + IDS, {"ids": (1, LONGEST + 1)}),
        (TEXTS + IDS, {}),
        (TEXTS + IDS, {"images": 1}),
        (IMAGES, {"texts": [400]}),
        (IMAGES, {"images": 129}),
    ],
)
def test_what_is_invalid_is_left_to_the_instance(takes: int, asked: dict[str, Any]):
    plain: dict[str, Any] = {"texts": [400]} if takes == TEXTS else {"ids": (1, 100)}
    plain = {"images": 1} if takes == IMAGES else plain
    if not takes & ONLY_PAIRS:
        assert overloaded(LIMITS._replace(takes=takes))[0].refusal(1.0, **plain)
    assert not overloaded(LIMITS._replace(takes=takes))[0].refusal(1.0, **asked)


def tell(front: Front, tenant: str, counts: bool) -> None:
    """As admission_blocks.cc does; the ring has 256 entries of 65 words."""
    words = memoryview(front.memory).cast("q")
    first = 5504 + words[10] % 256 * 65
    name = tenant.encode()
    front.memory[8 * (first + 1) : 8 * (first + 1) + len(name)] = name
    words[first] = len(name) << 1 | counts
    words[10] += 1


def test_who_was_refused_in_front_has_asked_and_is_counted_once():
    front, taken = overloaded()
    for _ in range(3):  # more than the ring has entries
        for number in range(100):
            tell(front, "é" if number % 4 else "", counts=number % 2 == 0)
        assert taken.refused() == {"é": 25, "": 25}
    assert taken.refused() == {}
    assert taken._backlog.known["active"] == 2


def test_a_tenant_that_is_refused_in_front_keeps_its_share():
    """One that was silent for long gets the next time that is free, though the other asks more."""
    simulation = Fronted(table(0.0, 1e-4), passes=True)
    requests = poisson(400, 30, within=1.0, tenant="a")
    for number, asked in enumerate(requests):
        asked.tenant = "b" if number % 11 == 0 else "a"
    simulation.run(requests)
    answered = [asked for asked in requests if asked.in_time]
    of_b = [asked for asked in requests if asked.tenant == "b"]
    assert len(answered) > 0.9 * 30 / 0.007
    assert sum(asked.in_time for asked in of_b) > 0.9 * len(of_b)
