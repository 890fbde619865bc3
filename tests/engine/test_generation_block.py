"""What the server's front (csrc/tritonserver/judgement_generation.cc) refuses by the block of a
model that generates, that admission would refuse at the same moment, with the same words."""

from __future__ import annotations

import ctypes
import json
import random
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import fusewire
import pytest
from fusewire.engine.admission_block import (
    GENERATION_BYTES,
    IDS,
    SOURCES,
    TEXTS,
    GenerationBlock,
    GenerationLimits,
)
from fusewire.engine.queue_forecast import KEPT_S
from fusewire.errors import Overloaded, QueueFull
from fusewire.generation.checks import read_parameters
from fusewire.generation.limits import GenerationLimits as ModelLimits
from fusewire.text.bounded_json import read_object
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.generation_machine import Machine

LIMITS = GenerationLimits(1, TEXTS + IDS, 1024, 1 << 17, 1000, 4096)
_PRELOAD = ctypes.CDLL(str(Path(fusewire.__file__).parent / "tritonserver_preload.so"))
_PRELOAD.fusewire_generation_refusal.restype = ctypes.c_size_t
_PRELOAD.fusewire_read_sampling_parameters.restype = ctypes.c_bool


class Front:
    """The front's side of a block."""

    def __init__(self, limits: GenerationLimits = LIMITS) -> None:
        self.memory = bytearray(GENERATION_BYTES)
        self.block = GenerationBlock(memoryview(self.memory), "m", 1, 1, limits)
        self._address = (ctypes.c_char * GENERATION_BYTES).from_buffer(self.memory)

    def refusal(
        self,
        now: float,
        within: float = 0.0,
        *,
        most: int = 100,
        tokens: int = 16,
        characters: int = 0,
        largest_id: int = 0,
        priority: int = 0,
        tenant: str = "",
    ) -> str:
        words = ctypes.create_string_buffer(1000)
        size = _PRELOAD.fusewire_generation_refusal(
            self._address,
            ctypes.c_double(now),
            ctypes.c_char_p(tenant.encode()),
            ctypes.c_int64(priority),
            ctypes.c_double(within),
            ctypes.c_uint64(characters),
            ctypes.c_uint64(0 if characters else tokens),
            ctypes.c_int64(largest_id),
            ctypes.c_uint64(most),
            words,
            ctypes.c_size_t(len(words)),
        )
        return words.raw[:size].decode()


class Fronted(Machine):
    """Asks the front first, and admission all the same."""

    def __init__(self, slo_s: float = inf, **given: Any) -> None:
        super().__init__(**given)
        self.front = Front()
        self.admission.show_in(self.front.block, slo_s)
        self.slo_s = slo_s
        self.foreseen = self.same_words = self.refused = self.above_share = 0

    def come(self, *, within: float | None, new: int, **asked: Any) -> None:
        words = self.front.refusal(self.clock.now, within or 0.0, **asked)
        has = self.slo_s if within is None and self.slo_s < inf else within
        try:
            self.ask(within=has, new=new, **asked)
        except (Overloaded, QueueFull) as error:
            self.refused += 1
            self.foreseen += bool(words)
            self.above_share += "times the work of the last minute" in words
            self.same_words += said(words) == said(str(error))
        else:
            assert not words


def said(words: str) -> str:
    return words.partition("; try again in ")[0]


@given(
    st.integers(0, 1 << 30),
    st.sampled_from([1000, 14]),
    st.sampled_from([inf, 4.0]),
    st.sampled_from([inf, 2.0]),
    st.integers(1, 60),
)
@settings(max_examples=60)
def test_the_front_refuses_nothing_that_admission_takes(
    seed: int, pages: int, slo_s: float, max_queue_s: float, requests: int
):
    rng = random.Random(seed)
    machine = Fronted(slo_s, pages=pages, max_queue_s=max_queue_s).seen(most=50)
    for _ in range(requests):
        new = rng.randint(1, 80)
        machine.come(
            within=rng.choice([None, rng.uniform(0.1, 8)]),
            most=rng.randint(new, 80),
            new=new,
            tokens=rng.randint(1, 60),
            priority=rng.choice([0, 0, -1, 5]),
            tenant=rng.choice(["", "", "", "blue", "green"]),
        )
        for _ in range(rng.choice([0, 0, 1, 5])):
            machine.step()


def test_the_front_foresees_nearly_all_refusals():
    rng, machine = random.Random(3), Fronted(slots=8).seen(most=70, new=70)
    while machine.clock.now < 160:
        for _ in range(rng.choice([0, 20])):
            new = rng.randint(20, 120)
            machine.come(within=6.0, most=new, new=new, tokens=16, priority=rng.choice([0, 1]))
        machine.step()
    assert machine.refused > 300
    assert machine.foreseen > 0.9 * machine.refused
    assert machine.same_words > 0.9 * machine.foreseen


@pytest.mark.parametrize("seed", range(4))
def test_the_front_refuses_whom_has_more_than_its_share(seed: int):
    rng, machine = random.Random(seed), Fronted(slots=8).seen(most=70, new=70)
    while machine.clock.now < 130:
        for _ in range(rng.choice([0, 20])):
            new = rng.randint(20, 120)
            (tenant,) = rng.choices(["greedy", "blue", "grün"], [10, 1, 1])
            machine.come(within=6.0, most=new, new=new, tokens=16, priority=0, tenant=tenant)
        machine.step()
    assert machine.above_share > 300
    assert machine.foreseen > 0.9 * machine.refused
    assert machine.same_words > 0.9 * machine.foreseen


def overloaded(limits: GenerationLimits = LIMITS) -> tuple[Front, Machine]:
    """By what has a higher priority."""
    machine = Machine().seen()
    front = Front(limits)
    machine.admission.show_in(front.block, inf)
    for _ in range(40):
        machine.ask(within=None, most=100, new=50, priority=-1)
    with pytest.raises(Overloaded):
        machine.ask(within=1.0, most=100, new=50)
    return front, machine


def test_a_full_queue_is_one_in_front_too():
    front, machine = overloaded()
    machine.admission._max_waiting = 30
    machine.admission.stepped(4, 0.02)
    with pytest.raises(QueueFull) as refused:
        machine.ask(within=None, most=100, new=50)
    assert front.refusal(machine.clock.now) == str(refused.value)


def test_a_block_that_is_old_or_closed_or_being_written_refuses_nothing():
    front, machine = overloaded()
    now = machine.clock.now
    assert front.refusal(now, 1.0)
    assert front.refusal(now + KEPT_S - 0.001, 1.0)
    assert not front.refusal(now + KEPT_S + 0.001, 1.0)
    with front.block:
        assert not front.refusal(now, 1.0)
    machine.admission.close()
    assert not front.refusal(now, 1.0)


def test_who_has_all_time_or_a_higher_priority_passes():
    front, machine = overloaded()
    assert not front.refusal(machine.clock.now)
    assert not front.refusal(machine.clock.now, 1.0, priority=-1)
    assert front.refusal(machine.clock.now, 1.0, priority=1)


@pytest.mark.parametrize(
    "asked",
    [
        {"most": 1024},
        {"most": 1000, "tokens": 25},
        {"most": 0},
        {"tokens": 0},
        {"largest_id": 1000},
        {"characters": (1 << 17) + 1},
    ],
)
def test_what_is_invalid_is_left_to_the_instance(asked: dict[str, int]):
    front, machine = overloaded()
    assert front.refusal(machine.clock.now, 1.0)
    assert front.refusal(machine.clock.now, 1.0, characters=60)
    assert not front.refusal(machine.clock.now, 1.0, **asked)


def test_the_ids_of_a_source_are_left_to_the_instance():
    front, machine = overloaded(LIMITS._replace(takes=TEXTS + IDS + SOURCES))
    assert front.refusal(machine.clock.now, 1.0, characters=60)
    assert not front.refusal(machine.clock.now, 1.0, tokens=16)


def test_what_was_seen_of_the_queue_long_ago_refuses_nothing():
    """The next request makes the instance look at it again."""
    front, machine = overloaded()
    made = machine.clock.now
    machine.clock.now = made + KEPT_S - 0.001
    machine.admission.stepped(4, 0.02)
    assert front.refusal(machine.clock.now, 1.0)
    machine.clock.now = made + KEPT_S + 0.001
    machine.admission.stepped(4, 0.02)
    assert not front.refusal(machine.clock.now, 1.0)
    with pytest.raises(Overloaded):
        machine.ask(within=1.0, most=100, new=50)
    assert front.refusal(machine.clock.now, 1.0)


def test_who_was_refused_in_front_is_counted():
    front, machine = overloaded()
    for _ in range(3):
        tell(front)
    assert machine.admission.refused() == {"blue": 3}
    assert machine.admission.refused() == {}


def tell(front: Front) -> None:
    """As admission_blocks.cc does."""
    words = memoryview(front.memory).cast("q")
    first = 5504 + words[10] % 256 * 65
    front.memory[8 * (first + 1) : 8 * (first + 1) + 4] = b"blue"
    words[first] = 4 << 1 | 1
    words[10] += 1


def test_a_model_says_nothing_before_a_request_has_a_time():
    machine, front = Machine().seen(), Front()
    machine.admission.show_in(front.block, inf)
    for _ in range(40):
        machine.ask(within=None, most=100, new=50)
    assert set(memoryview(front.memory).cast("d")[16:35]) == {0.0}


MODEL = ModelLimits(vocab_size=1000, max_length=1024, max_request_tokens=4096, max_sequences=64)
NUMBERS = st.integers(-3, 2000) | st.floats(-3, 200, allow_nan=False).map(lambda x: round(x, 3))
VALUES = NUMBERS | st.booleans() | st.none() | st.sampled_from(["1", "", "x", [1], {}])
NAMES = st.sampled_from(
    [
        *("max_new_tokens", "max_tokens", "temperature", "top_p", "min_p", "seed", "n", "stop"),
        *("repetition_penalty", "presence_penalty", "frequency_penalty", "best_of", "num_beams"),
        *("ignore_eos", "do_sample", "skip_special_tokens", "timeout_seconds", "priority"),
    ]
)


class Read(NamedTuple):
    new_tokens: int
    timeout_s: float = 0.0
    priority: int = 0


def read(text: bytes) -> Read | None:
    """None where the front leaves the request to the instance."""
    new, timeout_s, priority = ctypes.c_uint64(), ctypes.c_double(), ctypes.c_int64()
    found = [ctypes.byref(each) for each in (new, timeout_s, priority)]
    plain = _PRELOAD.fusewire_read_sampling_parameters(text, ctypes.c_size_t(len(text)), *found)
    return Read(new.value, timeout_s.value, priority.value) if plain else None


@given(st.dictionaries(NAMES, VALUES, max_size=5), st.sampled_from([None, 1]))
@settings(max_examples=500)
def test_the_parameters_that_the_front_reads_are_valid_and_mean_the_same(
    values: Mapping[str, Any], indent: int | None
):
    found = read(json.dumps(values, indent=indent).encode())
    if found is not None and found.new_tokens < MODEL.max_length:
        parameters = read_parameters(values, MODEL)
        assert parameters.sequences == 1
        assert (parameters.max_new_tokens or 0) == found.new_tokens
        assert (parameters.timeout_seconds or 0) == found.timeout_s
        assert parameters.priority == found.priority


def test_the_parameters_of_plain_requests_are_read():
    plain = {"max_new_tokens": 20, "ignore_eos": True, "temperature": 0}
    assert read(json.dumps(plain).encode()) == Read(20)
    assert read(b'{"max_tokens":7,"temperature":0.75,"top_p":0.9,"seed":1}') == Read(7)
    assert read(b'{"timeout_seconds": 1.5, "priority": -3}') == Read(0, 1.5, -3)
    assert read(b" { } ") == Read(0)


@given(st.text('{}[]:,"0123456789.-eEtrufalsnxm_ \n\\', max_size=40) | st.text(max_size=20))
def test_what_is_no_json_is_not_read(text: str):
    if read(text.encode()) is not None:
        read_object("sampling_parameters", text.encode())


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b'{"max_new_tokens": 5',
        b'{"max_new_tokens": 5,}',
        b'{"max_new_tokens": 5} x',
        b'{"max_new_tokens": 05}',
        b'{"max_new_tokens": 5.0}',
        b'{"max_new_tokens": 5e3}',
        b'{"max_new_tokens": "5"}',
        b'{"max_new_tokens": -5}',
        b'{"max_new_tokens": 5, "max_tokens": 5}',
        b'{"temperature": 1, "temperature": 1}',
        b'{"temperature": 1.}',
        b'{"temperature": .5}',
        b'{"temperature": 1e-9}',
        b'{"top_p": 0}',
        b'{"n": 2}',
        b'{"priority": 1001}',
        b'{"timeout_seconds": 0}',
        b'{"stop": "x"}',
        b'{"max_new_tokens": 5}\0',
        b'{"max_new_tokens": 99999999999999999999}',
    ],
)
def test_what_is_doubtful_is_left_to_the_instance(text: bytes):
    assert read(text) is None
