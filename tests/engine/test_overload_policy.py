"""What is taken under overload, and in which order it is computed: properties by simulation."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from math import inf

import numpy as np
import pytest
from fusewire.engine.costs import CostTable
from fusewire.engine.due_times import DueTimes
from fusewire.engine.next_batch import MICRO_BATCH_S, margin_s
from fusewire.engine.scheduler import split
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.simulation import Asked, Simulation, table

EXACT = table(0.0, 1e-4, 1e-8)  # a CPU: 10,000 tokens a second
GPU = table(3e-4, 4e-7, 1e-11)  # a launch costs as much as 750 tokens


@st.composite
def traffic(draw: st.DrawFn, deadlines: bool = True) -> list[Asked]:
    """Up to some seconds' work, come within a second."""
    return [
        Asked(
            at=draw(st.floats(0, 1)),
            length=draw(st.integers(1, 400)),
            rows=draw(st.sampled_from([1, 1, 1, 2, 30])),
            within=draw(st.floats(0.01, 3)) if deadlines else None,
            tenant=draw(st.sampled_from(["", "a", "b"])),
            priority=draw(st.integers(0, 2)),
        )
        for _ in range(draw(st.integers(1, 40)))
    ]


def promised(within: float) -> float:
    """What admission plans with of so many seconds, where nothing it promised was broken."""
    return DueTimes().due(0.0, within)


def hopeless(asked: Asked, costs: CostTable) -> bool:
    """It takes all the time that it is promised, even alone: taken where nothing else is."""
    cost = costs.seconds(sum(asked.lengths), sum(n * n for n in asked.lengths))
    within = promised(asked.within or 0.0)
    return cost + min(margin_s(costs), within / 4) > within - 1e-9


def none_late(done: list[Asked], costs: CostTable) -> bool:
    """Of any tenant and priority: what gave way to a higher one was told so before it was late."""
    return all(
        asked.refused
        or asked.in_time
        or hopeless(asked, costs)
        or (asked.displaced is not None and asked.displaced <= asked.at + (asked.within or inf))
        for asked in done
    )


@given(traffic())
@settings(max_examples=300)
def test_nothing_that_was_taken_is_late(requests):
    assert none_late(Simulation(EXACT).run(requests), EXACT)


@given(traffic(), st.integers(50, 2000))
def test_nothing_that_was_taken_is_late_in_small_batches(requests, max_batch_tokens):
    costs = table(0.0, 1e-4, 1e-8, max_batch_tokens)
    assert none_late(Simulation(costs, max_batch_tokens).run(requests), costs)


@given(traffic(deadlines=False))
def test_nothing_waits_longer_than_is_allowed(requests):
    """However long it takes itself, beside that."""
    for asked in Simulation(EXACT, max_queue_ms=500).run(requests):
        cost = sum(EXACT.seconds(n, n * n) for n in asked.lengths)
        gone = asked.refused or asked.displaced is not None
        assert gone or asked.ended <= asked.at + 0.5 + cost + 1e-9


@given(traffic(deadlines=False))
def test_the_device_never_rests_while_something_waits(requests):
    simulation = Simulation(EXACT)
    done = simulation.run(requests)  # which asserts it of every batch
    assert not any(asked.refused for asked in done)
    work = sum(EXACT.seconds(sum(a.lengths), a.rows * a.length**2) for a in done)
    assert simulation.busy_s == pytest.approx(work)


class Observed(Simulation):
    """Checks each refusal, and what gives way, by what waits."""

    def arrive(self, asked: Asked) -> None:
        waiting = [
            (work, self.of[work], sum(EXACT.seconds(n, n * n) for n in work.lengths_left))
            for work in self.ready
        ]
        running = self.admission.backlog_s - sum(cost for *_, cost in waiting)
        super().arrive(asked)
        told = [each for _, each, _ in waiting if each.displaced is not None]
        gone = [each for each in told if id(each) not in self.known]
        self.known |= {id(each) for each in gone}
        if gone:
            assert not asked.refused
            assert all(each.priority > asked.priority for each in gone)
            # One of each priority that gave way had to.
            lowest = max(each.priority for each in gone)
            assert self.late(asked, [w for w in waiting if w[1].priority <= lowest], running)
        elif asked.refused:
            judged = [w for w in waiting if w[1].priority <= asked.priority]
            if "of one tenant" in str(asked.refused):
                own = sum(cost for _, each, cost in judged if each.tenant == asked.tenant)
                assert own > 0
                assert own + self.cost(asked) > 0.75 * promised(asked.within) / 3
            else:
                assert self.late(asked, judged, running)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.known: set[int] = set()

    def cost(self, asked: Asked) -> float:
        return sum(EXACT.seconds(n, n * n) for n in asked.lengths)

    def late(self, asked: Asked, waiting: list, running: float) -> bool:
        """In order of deadlines something would be late, by less than a slot and the margin."""
        within = promised(asked.within)
        slot_s, free_s = 10 / 2048, min(margin_s(EXACT), within / 4)
        due = asked.at + within
        ends = self.now + running
        for other_due, seconds, spare in sorted(
            [(work.due, seconds, slot_s) for work, _, seconds in waiting]
            + [(due + slot_s, self.cost(asked), free_s + slot_s)]
        ):
            ends += seconds
            if ends > other_due - spare - 1e-9:
                return True
        return False


@given(traffic())
@settings(max_examples=300)
def test_what_is_refused_or_gives_way_could_not_have_been_in_time(requests):
    Observed(EXACT).run(requests)


@given(traffic())
def test_a_higher_priority_sees_nothing_of_lower_ones(requests):
    """Among requests of one tenant those of the highest are taken or refused as if they were alone,
    where batches are so small that none runs long."""
    for asked in requests:
        asked.tenant, asked.at = "", 0.0
    high = [asked for asked in requests if asked.priority == 0]
    if not high or len(high) == len(requests):
        return
    alone = [replace(asked) for asked in high]
    # Both begin behind one that runs, so that none is alone.
    first = Asked(at=0.0, length=1, priority=-1, within=1.0)
    lows = [asked for asked in requests if asked.priority]
    Simulation(EXACT).run([replace(first), *alone])
    Simulation(EXACT).run([replace(first), *lows, *high])
    assert [bool(a.refused) for a in alone] == [bool(a.refused) for a in high]


@given(st.lists(st.integers(1, 300), min_size=20, max_size=60), st.integers(1, 40))
def test_tenants_that_both_wait_are_within_two_batches(lengths, rows):
    requests = [Asked(0, length, rows, tenant="a") for length in lengths]
    requests += [Asked(1e-6, length, tenant="b") for length in lengths * 3]
    simulation = Simulation(EXACT)
    simulation.run(requests)
    left = {"a": sum(a.rows for a in requests if a.tenant == "a"), "b": len(lengths) * 3}
    had = {"a": 0.0, "b": 0.0}
    for batch in simulation.batches:
        for work in batch:
            asked = simulation.of[work]
            had[asked.tenant] += EXACT.seconds(asked.length, asked.length**2)
            left[asked.tenant] -= 1
        if not all(left.values()):
            break
        assert abs(had["a"] - had["b"]) <= 2 * MICRO_BATCH_S


def test_one_that_was_away_has_saved_nothing_up():
    requests = [Asked(i * 0.01, 100, tenant="a") for i in range(300)]
    requests += [Asked(2.0, 100, tenant="b") for _ in range(100)]
    simulation = Simulation(EXACT)
    simulation.run(requests)
    after = [b for b in simulation.batches if any(simulation.of[w].tenant == "b" for w in b)]
    tenants = [simulation.of[work].tenant for batch in after[:5] for work in batch]
    assert abs(tenants.count("a") - tenants.count("b")) <= len(after[0]) + 1


def test_the_lower_number_is_first_where_deadlines_allow():
    requests = [Asked(0, 100, within=60) for _ in range(100)]
    requests += [Asked(0.001, 100, within=60, priority=-1) for _ in range(20)]
    done = Simulation(EXACT).run(requests)
    high = max(asked.ended for asked in done if asked.priority)
    assert high < 0.5
    assert all(asked.in_time for asked in done)


def test_one_of_a_single_text_is_not_held_up_by_a_hundred():
    requests = [Asked(0, 100, rows=500), Asked(0.01, 100), Asked(0.02, 100)]
    done = Simulation(EXACT, max_queue_ms=10_000).run(requests)
    assert max(done[1].ended, done[2].ended) < 2.5 * MICRO_BATCH_S


def poisson(
    load: float, seconds: float, costs=EXACT, within=1.0, seed=0, tenants=("",), shares=(1,)
):
    """Requests of 5 to 500 tokens; `load` times what a device that packs well can do."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, 500, 200_000)
    each = np.mean([costs.share(n, n * n) for n in lengths[:2000].tolist()])
    arrivals = np.cumsum(rng.exponential(each / load, len(lengths)))
    chosen = rng.choice(len(tenants), len(lengths), p=np.array(shares) / sum(shares))
    return [
        Asked(at, n, within=within, tenant=tenants[t])
        for at, n, t in zip(arrivals.tolist(), lengths.tolist(), chosen.tolist(), strict=True)
        if at < seconds
    ]


def goodput(done: list[Asked], costs, seconds: float, tenant: str | None = None) -> float:
    """Of the device's time, the share that went into answers in time."""
    kept = [a for a in done if a.in_time and (tenant is None or a.tenant == tenant)]
    return sum(costs.share(a.length, a.length**2) for a in kept) / seconds


@pytest.mark.parametrize("load", [1.5, 3.0, 5.0])
@pytest.mark.parametrize(("costs", "within", "seconds"), [(EXACT, 1.0, 30), (GPU, 0.1, 0.5)])
def test_under_overload_the_device_works_for_answers_in_time(load, costs, within, seconds):
    done = Simulation(costs).run(poisson(load, seconds, costs, within))
    taken = [asked for asked in done if not asked.refused]
    assert sum(not asked.in_time for asked in taken) <= 0.001 * len(taken)
    assert goodput(done, costs, seconds + within) >= 0.95  # what was taken last ends then


@pytest.mark.parametrize("unseen_s", [0.01, 0.05])
@pytest.mark.parametrize("truth", [0.7, 1.3, 2.0])
@pytest.mark.parametrize("load", [1.0, 2.0, 3.0])
def test_wrong_predictions_cost_little_of_the_device(load, truth, unseen_s):
    """Batches take longer than predicted, and part of a request's time passes unseen."""
    seconds = 60
    requests = poisson(load / truth, seconds, within=1.0 - unseen_s)
    done = Simulation(EXACT, truth=truth, unseen_s=unseen_s).run(requests)
    later = [asked for asked in done if asked.at > 5]  # what it takes to learn
    kept = goodput(later, EXACT, (seconds - 5) / truth)
    offered = sum(EXACT.share(a.length, a.length**2) for a in later) / ((seconds - 5) / truth)
    assert kept >= 0.93 * min(1.0, offered)
    taken = [asked for asked in later if not asked.refused]
    assert sum(not asked.in_time for asked in taken) <= 0.05 * len(taken)


# What the work of a full queue takes to what was measured: all of it, as other work takes the same
# cores; large micro-batches alone, which nothing before the overload corrected; what passes between
# two micro-batches, which no table sees.
SLOWER = {
    "loaded": lambda by: {"truth": lambda now, tokens: by if now > 10 else 1.0},
    "large": lambda by: {"truth": lambda now, tokens: by if tokens > 512 else 1.0},
    "between": lambda by: {"between": lambda now: by - 1 if now > 10 else 0.0},
}


def after_the_calm(load, **slower) -> tuple[float, float]:
    """After a time in which costs were as predicted: the share of what was taken that was late, and
    the goodput of the rest."""
    calm = poisson(0.9, 10, within=1.0 - 0.03)
    storm = poisson(load, 20, within=1.0 - 0.03, seed=1)
    for asked in storm:
        asked.at += 10
    costs = table(0.0, 1e-4, 1e-8)
    done = Simulation(costs, learns=True, unseen_s=0.03, **slower).run(calm + storm)
    taken = [asked for asked in done if asked.at > 10 and not asked.refused]
    return sum(not asked.in_time for asked in taken) / len(taken), goodput(taken, EXACT, 20)


@cache
def goodput_of_a_steady_device(load) -> float:
    return after_the_calm(load)[1]


@pytest.mark.parametrize("by", [1.1, 1.2, 1.3])
@pytest.mark.parametrize("slower", SLOWER)
@pytest.mark.parametrize("load", [2.0, 3.0])
def test_promises_hold_where_a_full_queue_makes_the_device_slower(load, slower, by):
    """What slows down answers so much less."""
    late, kept = after_the_calm(load, **SLOWER[slower](by))
    assert late < 0.01
    assert by * kept >= 0.95 * goodput_of_a_steady_device(load)


def test_without_admission_nearly_nothing_is_in_time():
    done = Simulation(EXACT, admits=False).run(poisson(3.0, 15))
    assert goodput(done, EXACT, 15) < 0.2


def test_below_capacity_nothing_is_refused():
    done = Simulation(EXACT).run(poisson(0.7, 30))
    assert not any(asked.refused for asked in done)
    assert all(asked.in_time for asked in done)


@pytest.mark.parametrize(("load", "others"), [(4.0, "abc"), (3.0, "abcd")])
def test_one_tenant_at_ten_times_leaves_the_others_their_share(load, others):
    names, shares = ("flood", *others), (10, *(1 for _ in others))
    done = Simulation(EXACT).run(poisson(load, 30, tenants=names, shares=shares))
    asked = {name: sum(x.length for x in done if x.tenant == name) for name in names}
    kept = {name: sum(x.length for x in done if x.tenant == name and x.in_time) for name in names}
    # Of what each asked for, up to its fair share.
    fair = sum(kept.values()) / len(names)
    satisfied = [kept[name] / min(asked[name], fair) for name in names]
    index = sum(satisfied) ** 2 / (len(names) * sum(value**2 for value in satisfied))
    assert index >= 0.97


SECONDS = st.tuples(st.floats(0, 0.01), st.floats(1e-6, 1e-3), st.floats(0, 1e-6))


def waited(lengths, sizes, costs) -> float:
    total, now, begin = 0.0, 0.0, 0
    for size in sizes:
        batch = lengths[begin : begin + size]
        now += costs.seconds(sum(batch), sum(n * n for n in batch))
        total += now * size
        begin += size
    return total


def every_split(n: int):
    for cuts in range(1 << (n - 1)):
        ends = [0, *(i for i in range(1, n) if cuts >> (i - 1) & 1), n]
        yield [b - a for a, b in pairwise(ends)]


@given(st.lists(st.integers(1, 500), min_size=1, max_size=8), SECONDS)
def test_the_split_waits_as_little_as_the_best_of_all(lengths, seconds):
    costs = table(*seconds)
    sizes = split(lengths, [np.inf] * len(lengths), costs.seconds_of)
    assert sum(sizes) == len(lengths)
    best = min(waited(lengths, each, costs) for each in every_split(len(lengths)))
    assert waited(lengths, sizes, costs) == pytest.approx(best)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=64), SECONDS)
def test_the_split_never_waits_longer_than_first_come_first_served(lengths, seconds):
    costs = table(*seconds)
    sizes = split(lengths, [np.inf] * len(lengths), costs.seconds_of)
    found = waited(lengths, sizes, costs)
    for other in ([len(lengths)], [1] * len(lengths)):
        assert found <= waited(lengths, other, costs) * (1 + 1e-9)


@given(st.lists(st.tuples(st.integers(1, 500), st.floats(0, 0.1)), min_size=1, max_size=30))
def test_a_split_makes_none_late_unless_all_are_one_batch(items):
    lengths, dues = [list(each) for each in zip(*items, strict=True)]
    costs = table(0.001, 1e-5)
    sizes = split(lengths, dues, costs.seconds_of)
    now, begin = 0.0, 0
    for size in sizes:
        now += costs.seconds(sum(lengths[begin : begin + size]), 0)
        assert sizes == [len(lengths)] or now <= min(dues[begin : begin + size]) + 1e-9
        begin += size


@pytest.mark.parametrize("within", [1.0, 2.0])
def test_under_overload_batches_are_as_large_as_they_may_be(within):
    """Small ones take longer per token, so that still less time would be left for the next."""
    rng = np.random.default_rng(0)
    cpu = table(0.002, 1.7e-4)
    largest = int((MICRO_BATCH_S - 0.002) / (50 * 1.7e-4))
    rate = 3 * largest / MICRO_BATCH_S  # three times as many as can be answered
    times = np.cumsum(rng.exponential(1 / rate, int(20 * rate)))
    simulation = Simulation(cpu, truth=lambda now, tokens: float(rng.uniform(0.85, 1.15)))
    done = simulation.run([Asked(at, 50, within=within) for at in times])
    assert all(asked.in_time or asked.refused for asked in done)
    sizes = [len(batch) for batch in simulation.batches]
    assert np.mean(sizes) > 0.9 * largest
