"""What a model's admission knows, in shared memory: from it the server's front refuses, before a
request reaches the model's process, what admission would refuse.

csrc/tritonserver/admission_block.h has the same layout, in words of 8 bytes. One process writes; a
reader that sees `sequence` odd, or changed, has seen nothing (a sequence lock). The ring is the way
back: the names of the tenants whose requests the front refused. What encoders and generation show
beside their terms stands between the two.
"""

from __future__ import annotations

import threading
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from math import inf
from typing import NamedTuple

from fusewire.engine.due_slots import REGION_WORDS, Region
from fusewire.engine.forecast import Forecasts

# The first word, which identifies the layout.
ENCODER, GENERATION = 0x6675736577010004, 0x6675736577020003

_SEQUENCE, _INSTANCES, _MODEL_VERSION = 1, 2, 3
_LIMITS = 4  # `Limits` or `GenerationLimits`
_HEAD, _TAIL = 10, 11
_TERMS = 16  # `Terms` or `GenerationTerms`
_NAME_BYTES, _NAME = 48, 49
# For an encoder:
_LEVELS, _PRIORITIES, _REGIONS = 96, 97, 105
_TENANTS, _MOST_TENANTS, _MOST_PRIORITIES = 128, 64, 8
_TEXT_WORDS = 64  # 128 characters
_TENANT_WORDS = 1 + _TEXT_WORDS + 1 + 2 * _MOST_PRIORITIES  # length, name, pairs, the pairs
# For generation: levels, each with its priority, its slots, pages and time, the last deadline of
# those that wait, since when it is full, how many ends there are, and the first of them.
_FORECASTS, _MOST_FORECASTS, _MOST_ENDS = 96, 8, 128
_FORECAST_WORDS = 7 + 3 * _MOST_ENDS
# Then the tenants above their share: how many there are, and for each the length of its name, what
# it was given, and the name.
_ABOVE, _MOST_ABOVE, _ABOVE_WORDS = 3328, 32, 2 + _TEXT_WORDS
_RING, _RING_WORDS, _RING_ENTRIES = 5504, 1 + _TEXT_WORDS, 256
_WORK = 22528  # a multiple of 512: a page
_MOST_REGIONS = 9
BYTES = 8 * (_WORK + _MOST_REGIONS * REGION_WORDS)
GENERATION_BYTES = 8 * _WORK
_HIGHEST = -(1 << 63)  # in place of the priority -inf

MOST_NAME_BYTES = 8 * (_LEVELS - _NAME)


class Limits(NamedTuple):
    """Limits of the requests that the front may judge: of others it knows too little."""

    rows: int
    takes: int  # sum of flags: TEXTS and the following
    max_length: int  # tokens of a sequence
    max_characters: int  # of a text
    height: int = 0  # of `pixel_values`
    width: int = 0


TEXTS, PAIRS, ONLY_PAIRS, IDS, WINDOWS, IMAGES = 1, 2, 4, 8, 16, 32


class GenerationLimits(NamedTuple):
    """As `Limits`, for a model that generates."""

    rows: int
    takes: int  # TEXTS and IDS, and SOURCES of an encoder-decoder model
    max_length: int  # tokens of a sequence, with those that are generated
    max_characters: int  # of a text
    vocabulary: int  # the ids of prompts are below it
    max_request_tokens: int  # that one request may generate


SOURCES = 64


class Terms(NamedTuple):
    """What requests are judged by; times are those of time.monotonic()."""

    now: float
    requests: int  # how many are here
    busy_until: float
    begin: float  # when the first slot begins
    width_s: float
    active: int  # tenants; 0: not known
    oldest_asked: float  # when the one that asked longest ago did
    window_s: float  # how long one that asked is active
    due_factor: float
    forget_s: float  # in which the factor's distance from 1 falls to 1/e
    unseen_s: float
    unseen_share: float
    slo_s: float
    max_queue_s: float
    margin_s: float
    most_margin: float
    above_share: float
    s_of_token: float
    s_of_square: float
    tokens_of_byte: float
    tokens_of_image: float
    jitter: float
    least_retry_s: float
    none_s: float
    judgements: int  # of requests, since the beginning


class GenerationTerms(NamedTuple):
    """As `Terms`, for a model that generates."""

    now: float
    taken: int  # sequences that run or wait
    max_sequences: int
    max_waiting: int
    max_queue_s: float
    slo_s: float
    share: float  # generated tokens / allowed tokens; 0: not known
    s_of_token: float  # seconds of a prompt's token
    step_s: float  # seconds of a step with one sequence more
    pages: float
    page_size: int
    characters_of_token: int
    kept_until: float  # until when what is shown of the queue holds
    active: int  # tenants; 0: not known
    oldest_asked: float  # when the one that asked longest ago did
    window_s: float  # how long one that asked is active
    fair: float  # what active tenants were given on average
    waiting_s: float  # predicted work that waits, in seconds of the machine
    above_share: float
    due_factor: float
    forget_s: float
    unseen_s: float
    unseen_share: float
    standing_share: float


class Block:
    """Shared memory with the terms by which requests are judged. Written by the threads of one
    process, each within `with`."""

    layout: int

    def __init__(
        self,
        memory: memoryview,
        model: str,
        version: int,
        instances: int,
        limits: Sequence[int],
    ) -> None:
        """`memory`: zeros. `instances`: how many the model has."""
        self._whole, self._real = memory.cast("B").cast("q"), memory.cast("B").cast("d")
        self._bytes = memory.cast("B")
        self._lock = threading.Lock()
        self._terms: Sequence[float] = ()  # as they were written last
        # While no request has a time nothing is refused, and nothing needs to be written.
        self.silent = False
        self.terms: Callable[[], Sequence[float]]  # called at the end of `with`
        name = model.encode()
        if len(name) > MOST_NAME_BYTES:
            raise ValueError(f"model: got {len(name)} bytes, wanted at most {MOST_NAME_BYTES}")
        self._whole[_NAME_BYTES] = len(name)
        self._bytes[8 * _NAME : 8 * _NAME + len(name)] = name
        self._whole[_INSTANCES], self._whole[_MODEL_VERSION] = instances, version
        for place, limit in enumerate(limits, _LIMITS):
            self._whole[place] = limit
        self._whole[0] = self.layout

    def __enter__(self) -> None:
        self._lock.acquire()
        self._whole[_SEQUENCE] += 1

    def __exit__(self, *error: object) -> None:
        try:
            if not self.silent:
                self._write()
        finally:
            self._whole[_SEQUENCE] += 1
            self._lock.release()

    def take_refused(self) -> Counter[tuple[str, bool]]:
        """Numbers of requests that the front has refused since the last call, by tenant and by
        whether they count here: of a model's instances one counts. Within `with`."""
        head, tail = self._whole[_HEAD], self._whole[_TAIL]
        found: Counter[tuple[str, bool]] = Counter()
        for number in range(tail, min(head, tail + _RING_ENTRIES)):
            first = _RING + number % _RING_ENTRIES * _RING_WORDS
            word = self._whole[first]
            size = min(word >> 1, 8 * _TEXT_WORDS)
            name = bytes(self._bytes[8 * (first + 1) : 8 * (first + 1) + size])
            found[name.decode(errors="replace"), bool(word & 1)] += 1
        self._whole[_TAIL] = head
        return found

    def close(self) -> None:
        """From now on the front refuses nothing."""
        with self._lock:
            self._whole[0] = 0

    def _write(self) -> None:
        real, terms = self._real, self.terms()
        before = self._terms or [0.0] * len(terms)
        for place, (term, was) in enumerate(zip(terms, before, strict=True), _TERMS):
            if term != was:
                real[place] = term
        self._terms = terms


class AdmissionBlock(Block):
    """The block of an encoder: beside its terms a region for the slots of each level, and the
    seconds of tenants."""

    layout = ENCODER

    def __init__(
        self, memory: memoryview, model: str, version: int, instances: int, limits: Limits
    ) -> None:
        """`memory`: BYTES of zeros."""
        self._free = list(reversed(range(_MOST_REGIONS)))
        self._tenants: dict[str, int] = {}  # tenant -> its place
        self._places = list(reversed(range(_MOST_TENANTS)))
        self.levels: Callable[[], list[tuple[int, int]]]  # (priority, region)
        super().__init__(memory, model, version, instances, limits)

    def take(self) -> Region:
        """Takes memory for the slots of a level (Regions)."""
        place = self._free.pop()
        first = _WORK + place * REGION_WORDS
        return Region(self._real[first : first + REGION_WORDS], place)

    def give_back(self, region: Region) -> None:
        self._free.append(region.place)

    def set_tenant(self, tenant: str, seconds: dict[int, float]) -> None:
        """Shows a tenant's seconds by priority. Tenants and priorities for which there is no room
        are left out, and not refused for them."""
        place = self._tenants.get(tenant)
        name = b""
        if place is None:
            name = tenant.encode()
            if not self._places or len(name) > 8 * _TEXT_WORDS:
                return
            place = self._tenants[tenant] = self._places.pop()
        first = _TENANTS + place * _TENANT_WORDS
        if name or not self._whole[first]:
            self._bytes[8 * (first + 1) : 8 * (first + 1) + len(name)] = name
            self._whole[first] = 1 + len(name)
        pairs = first + 1 + _TEXT_WORDS
        at = pairs + 1
        shown = list(seconds.items())[:_MOST_PRIORITIES]
        for priority, each in shown:
            self._whole[at], self._real[at + 1] = priority, each
            at += 2
        self._whole[pairs] = len(shown)

    def drop_tenant(self, tenant: str) -> None:
        place = self._tenants.pop(tenant, None)
        if place is not None:
            self._whole[_TENANTS + place * _TENANT_WORDS] = 0
            self._places.append(place)

    def _write(self) -> None:
        super()._write()
        whole, levels = self._whole, self.levels()
        for place, (priority, region) in enumerate(levels):
            whole[_PRIORITIES + place], whole[_REGIONS + place] = priority, region
        whole[_LEVELS] = len(levels)


class GenerationBlock(Block):
    """The block of a model that generates: beside its terms when there is room, for each priority,
    and which tenants are above their share. Its memory is GENERATION_BYTES."""

    layout = GENERATION

    def show(self, forecasts: Forecasts | None, above: Sequence[tuple[str, float]]) -> None:
        """Shows the forecasts (None: nothing is refused for lack of time) and the tenants `above`
        their share, with what they were given; those for which there is no room are not refused for
        it. Within `with`."""
        levels = [] if forecasts is None else forecasts.levels[:_MOST_FORECASTS]
        whole, real, first = self._whole, self._real, _FORECASTS + 1
        for level in levels:
            priority, forecast = level.priority, level.behind
            whole[first] = _HIGHEST if priority == -inf else int(priority)
            whole[first + 1], real[first + 2] = forecast.slots, forecast.pages
            real[first + 3], real[first + 4] = forecast.begins, level.last_deadline
            real[first + 5] = level.full_since
            whole[first + 6] = len(forecast.ends)
            flat = array("d", chain.from_iterable(forecast.ends[:_MOST_ENDS]))
            real[first + 7 : first + 7 + len(flat)] = memoryview(flat)
            first += _FORECAST_WORDS
        whole[_FORECASTS] = len(levels)
        first = _ABOVE + 1
        for tenant, given in above[:_MOST_ABOVE]:
            name = tenant.encode()[: 8 * _TEXT_WORDS]
            whole[first], real[first + 1] = len(name), given
            self._bytes[8 * (first + 2) : 8 * (first + 2) + len(name)] = name
            first += _ABOVE_WORDS
        whole[_ABOVE] = len(above[:_MOST_ABOVE])
