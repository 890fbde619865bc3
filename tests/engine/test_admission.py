"""Generation takes no more than runs and waits, and nothing that would wait too long."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from math import inf

import pytest
from fusewire.engine.admission import Admission
from fusewire.engine.due_times import UNSEEN_S
from fusewire.engine.forecast import STANDING_SHARE
from fusewire.engine.generation_sequence import GenerationSequence, State
from fusewire.engine.place import Place
from fusewire.engine.queue_forecast import KEPT_S
from fusewire.errors import Overloaded, QueueFull

from benchmarks.overload_outcome import fair_rates, jain
from tests.engine.generation_machine import STEP_S, Machine, steps


@pytest.mark.parametrize("pages", [1000, 14])
@pytest.mark.parametrize("seed", range(5))
def test_the_predicted_wait_is_the_one_there_is(seed, pages):
    """Where slots bound, and where pages do."""
    rng = random.Random(seed)
    machine = Machine(pages=pages).seen(most=50)
    for _ in range(20):
        machine.ask(within=None, most=50, new=50, tokens=rng.randint(1, 60))
        for _ in range(rng.randint(0, 20)):
            machine.step()
    wait = machine.admission._wait_s(Place(1, 16, 50))
    last = machine.ask(within=None, most=50, new=50)
    asked = machine.clock.now
    while last not in machine.begun:
        machine.step()
    assert wait == pytest.approx(machine.begun[last] - asked, rel=0.1, abs=3 * STEP_S)


def test_the_predicted_wait_is_right_on_average_where_texts_end_anywhere():
    rng = random.Random(0)
    machine = Machine()
    predicted: list[tuple[Place, float, float]] = []
    for _ in range(600):
        wait = machine.admission._wait_s(Place(1, 16, 100))
        place = machine.ask(within=None, most=100, new=rng.randint(1, 100))
        predicted.append((place, wait, machine.clock.now))
        while len(machine.waiting) > 12:
            machine.step()
    machine.run()
    late = predicted[100:]
    actual = sum(machine.begun[place] - at for place, _, at in late)
    assert sum(wait for _, wait, _ in late) == pytest.approx(actual, rel=0.1)


def test_ends_are_predicted_of_those_that_run_the_first_one_first():
    machine = Machine().seen(most=50)
    places = [machine.ask(within=None, most=50, new=50) for _ in range(3)]
    machine.step()
    places += [machine.ask(within=None, most=50, new=50)]
    for _ in range(9):
        machine.step()
    asked, ends = machine.clock.now, machine.admission.ends_s()
    assert len(ends) == len([place for place in places if place in machine.begun])
    machine.run()
    actual = sorted(machine.ended[place] - asked for place in places if place in machine.begun)
    assert ends == pytest.approx(actual[: len(ends)], rel=0.1, abs=3 * STEP_S)


def test_who_would_wait_and_end_too_late_is_refused_and_told_when_to_come_back():
    machine = Machine().seen()
    for _ in range(12):
        machine.ask(within=None, most=100, new=50, priority=-1)
    machine.step()
    asked = Place(1, 16, 100)
    wait = machine.admission._wait_s(asked)
    end = wait + machine.admission._run_s(asked)
    assert end > wait + 0.9
    assert wait > 1
    with pytest.raises(
        Overloaded, match=r"predicted wait of .* until the last token, wanted"
    ) as no:
        machine.ask(within=end - 0.5, most=100, new=50)
    assert no.value.retry_after_s == pytest.approx(0.5 + UNSEEN_S, abs=0.01)
    place = machine.ask(within=end + 0.5, most=100, new=50)
    due = machine.clock.now + end + 0.5
    machine.ask(within=-1, most=100, new=50)  # answered as late
    machine.run()
    assert machine.ended[place] <= due


@pytest.mark.parametrize("ratio", [1.0, 1.3])
@pytest.mark.parametrize("load", [1.5, 2.0, 3.0])
def test_what_is_taken_under_overload_ends_in_time_and_the_machine_is_full(load, ratio):
    """Texts of 20 to 120 tokens, as asked, within 6 s, whatever steps cost beside what was
    measured."""
    rng, machine, within = random.Random(7), Machine(slots=8).seen(most=70, new=70), 6.0
    machine.ratio = ratio
    rate = load * 8 / (70 * ratio * steps().seconds(8, 0.0))
    began, due, due_at = machine.clock.now, {}, machine.clock.now
    news: dict[Place, int] = {}
    while machine.clock.now < began + 120:
        while due_at <= machine.clock.now:
            due_at += rng.expovariate(rate)
            new = rng.randint(20, 120)
            try:
                place = machine.ask(within=within, most=new, new=new)
            except Overloaded:
                continue
            due[place], news[place] = machine.clock.now + within, new
        machine.step()
    stopped = machine.clock.now
    machine.run()
    taken = [place for place in due if due[place] < stopped]
    good = [place for place in taken if machine.ended.get(place, stopped * 2) <= due[place]]
    assert len(good) > 0.97 * len(taken)
    capacity = 8 * (stopped - began) / (ratio * steps().seconds(8, 0.0))  # tokens
    assert sum(news[place] for place in good) > 0.85 * capacity


def overload(machine: Machine, load: float, seconds: float, rest_s: float = 0.0) -> list[Place]:
    """Texts of 70 tokens, as asked, within 6 s; or bursts of so much in as many seconds as there
    are between them. Returns those that were taken."""
    rng, taken = random.Random(3), []
    rate = load * machine.slots / (70 * machine.ratio * steps().seconds(machine.slots, 0.0))
    began = next_at = machine.clock.now
    while machine.clock.now < began + seconds:
        while next_at <= machine.clock.now:
            next_at += rng.expovariate(rate)
            if rest_s and (machine.clock.now - began) % (2 * rest_s) > rest_s:
                continue
            with contextlib.suppress(Overloaded):
                taken.append(machine.ask(within=6.0, most=70, new=70))
        machine.step()
    machine.run()
    return taken


def waited(machine: Machine, place: Place) -> float:
    return machine.begun[place] - place.taken_at


def test_where_a_queue_stands_nobody_waits_long_and_the_machine_is_full():
    machine = Machine(slots=8).seen(most=70, new=70)
    began = machine.clock.now
    taken = overload(machine, 3.0, 60.0)
    late = [place for place in taken if place.taken_at > began + 15.0]
    assert max(waited(machine, place) for place in late) < 6.0 * STANDING_SHARE + 4 * STEP_S
    assert 70 * len(late) > 0.93 * 8 * 45.0 / steps().seconds(8, 0.0)


def test_bursts_are_taken_up_by_as_much_of_a_queue_as_there_is_time_for():
    machine = Machine(slots=8).seen(most=70, new=70)
    taken = overload(machine, 3.0, 60.0, rest_s=3.0)
    assert max(waited(machine, place) for place in taken) > 2.0
    assert 70 * len(taken) > 0.8 * 8 * 60.0 / steps().seconds(8, 0.0)


def test_a_queue_that_emptied_long_ago_does_not_stand():
    machine = Machine(slots=8).seen(most=70, new=70)
    overload(machine, 3.0, 20.0)
    machine.clock.now += 60.0
    assert max(waited(machine, place) for place in overload(machine, 3.0, 5.0)) > 2.0


def test_nor_does_it_where_those_that_come_next_are_not_judged():
    machine = Machine(slots=8).seen(most=70, new=70)
    overload(machine, 3.0, 20.0)
    machine.clock.now += 60.0
    for _ in range(8):
        machine.ask(within=None, most=70, new=70)
    machine.step()
    place = machine.ask(within=6.0, most=70, new=70)
    machine.run()
    assert waited(machine, place) > 6.0 * STANDING_SHARE


def test_where_steps_become_slower_fewer_are_late_than_were():
    """The first promises are broken, and the next ones are made of less time."""
    machine = Machine(slots=8).seen(most=70, new=70)
    overload(machine, 3.0, 20.0)
    taken = []
    for turn in range(40):
        machine.ratio = 1.0 + 0.5 * (turn % 2)  # while what waits was taken at the other
        taken.append(overload(machine, 3.0, 4.0))
    late = [[machine.ended.get(p, inf) > p.deadline for p in each] for each in taken]
    assert sum(map(sum, late[20:])) <= max(1, 0.03 * sum(map(len, late[20:])))


def test_what_its_deadline_ended_says_nothing_of_how_long_texts_are():
    machine = Machine(max_queue_s=4.0).seen()
    share = machine.admission.times.share
    for by, generated in ((1.0, 3), (0.999, 4)):  # told by the server, or by who asked
        place = machine.admission.take(1, machine.clock.now + 1.0, tokens=5, most_new=100)
        machine.clock.now += by
        machine.admission.leave(place, generated=generated)
    assert machine.admission.times.share == share


def test_where_texts_are_as_long_as_they_may_be_none_begins_that_cannot_end():
    machine = Machine(slots=1).seen(most=50, new=50)
    machine.ask(within=None, most=50, new=50)
    machine.step()
    wait, run = (
        of(Place(1, 16, 50)) for of in (machine.admission._wait_s, machine.admission._run_s)
    )
    place = machine.ask(within=wait + run + UNSEEN_S + 0.1, most=50, new=50)
    assert place.begin_by == pytest.approx(place.deadline - run, abs=0.05)


def test_who_need_not_wait_is_taken_though_its_text_may_be_long():
    machine = Machine().seen()
    place = machine.ask(within=0.5, most=100, new=10)
    assert place.begin_by is None
    due = machine.clock.now + 0.5
    machine.run()
    assert machine.ended[place] <= due


def test_who_can_no_longer_end_in_time_does_not_begin():
    machine = Machine(slots=1).seen()
    machine.ask(within=None, most=100, new=50)
    machine.step()
    wait, run = (
        of(Place(1, 16, 100)) for of in (machine.admission._wait_s, machine.admission._run_s)
    )
    late = machine.ask(within=wait + run + UNSEEN_S + 0.1, most=100, new=50)
    machine.ratio = 2.0  # what runs takes longer than predicted
    machine.run()
    assert late not in machine.begun
    assert machine.admission._taken == 0


def test_what_is_late_when_it_comes_is_taken_however_much_waits():
    """To be answered so."""
    machine = Machine(max_queue_s=2.0).seen()
    machine.fill(within=60.0)
    late = machine.ask(within=-1.0, most=100, new=50)
    assert late in machine.admission._places
    assert late.begin_by is None


def test_nothing_waits_longer_than_max_queue():
    machine = Machine(max_queue_s=2.0).seen()
    asked: list[tuple[Place, float]] = []
    refused = 0
    for _ in range(40):
        try:
            asked.append((machine.ask(within=None, most=100, new=50), machine.clock.now))
        except Overloaded:
            refused += 1
        machine.step()
    machine.run()
    assert refused
    assert max(machine.begun[place] - at for place, at in asked) < 2.2


def test_without_a_wait_nothing_is_refused():
    machine = Machine(max_queue_s=0.001).seen()
    for _ in range(4):
        machine.ask(within=0.001, most=100, new=50)
        machine.step()
    with pytest.raises(Overloaded):
        machine.ask(within=0.001, most=100, new=50)


def test_before_one_has_ended_nothing_is_predicted():
    machine = Machine(max_queue_s=0.1)
    for _ in range(50):
        machine.ask(within=0.1, most=100, new=50)


@pytest.mark.parametrize("first", [State.RUNNING, State.FINISHED])
def test_texts_run_on_when_the_first_of_them_has_ended(first):
    """Until they end too there is no slot for 4 others, whatever their priority."""
    machine = Machine().seen()
    place = machine.admission.take(4, tokens=16, most_new=100)
    place.begun = 16
    place.sequence = GenerationSequence([0] * (16 + 20), 16 + 100)
    place.sequence.state = first
    if first is State.FINISHED:
        machine.admission.leave(place, generated=20)
    wait_s = machine.admission._wait_s(Place(4, 16, 50, priority=-1))
    left = machine.admission.times.left(place)
    running = min(machine.admission._taken, 4)
    assert wait_s == pytest.approx(left * steps().seconds(running, 0.0), rel=1e-6)


def test_a_higher_priority_waits_for_its_own():
    machine = Machine().seen()
    machine.fill(within=12.0, priority=1)
    machine.step()
    with pytest.raises(Overloaded):
        machine.ask(within=12.0, most=100, new=50, priority=1)
    place = machine.ask(within=2.5, most=100, new=50, priority=0)
    due = machine.clock.now + 2.5
    machine.run()
    assert machine.ended[place] <= due


def test_an_earlier_deadline_goes_before_a_later_one_and_makes_it_not_late():
    machine, due = Machine().seen(), {}
    for within in [30.0] * 40 + [2.5, 30.0, 2.5, 3.0]:
        place = machine.ask(within=within, most=100, new=50)
        due[place] = machine.clock.now + within
    machine.run()
    assert all(machine.ended[place] <= due[place] for place in due)


def test_an_earlier_deadline_that_would_make_a_later_one_late_is_refused():
    machine = Machine().seen()
    due = {place: machine.clock.now + 12.0 for place in machine.fill(within=12.0)}
    refused = 0
    for _ in range(12):
        try:
            place = machine.ask(within=4.0, most=100, new=50)
        except Overloaded as error:
            refused += "that comes before other requests" in str(error)
        else:
            due[place] = machine.clock.now + 4.0
    assert refused >= 5
    machine.run()
    late = [place for place in due if machine.ended.get(place, inf) > due[place]]
    assert len(late) <= 1


@pytest.mark.parametrize("load", [2.0, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_taken_of_any_deadlines_ends_in_time(load, seed):
    """A chat's within 3 s, and a job's within 20 s, which have equal shares."""
    rng, machine = random.Random(seed), Machine(slots=8).seen(most=70, new=70)
    each_s = 70 * steps().seconds(8, 0.0) / 8
    due: dict[Place, float] = {}
    tokens = Counter[str]()
    next_at, began = machine.clock.now, machine.clock.now
    while machine.clock.now < began + 90:
        while next_at <= machine.clock.now:
            next_at += rng.expovariate(load / each_s)
            tenant, within = rng.choices([("chat", 3.0), ("job", 20.0)], [0.5 / load, 1.0])[0]
            new = rng.randint(20, 120)
            try:
                place = machine.ask(within=within, most=new, new=new, tenant=tenant)
            except Overloaded:
                continue
            tokens[tenant] += new
            due[place] = machine.clock.now + within
        machine.step()
    stopped = machine.clock.now
    machine.run()
    known = [place for place in due if due[place] < stopped]
    late = [place for place in known if machine.ended.get(place, stopped * 2) > due[place]]
    assert len(late) < 0.03 * len(known)
    assert tokens["chat"] > 0.3 * 70 * 90 / each_s
    assert sum(tokens.values()) > 0.85 * 70 * 90 / each_s


@pytest.mark.parametrize("load", [2.0, 3.0])
@pytest.mark.parametrize("seed", range(2))
def test_tenants_get_equal_shares_though_one_sends_ten_times_as_much(load, seed):
    rng, machine = random.Random(seed), Machine(slots=8).seen(most=70, new=70)
    each_s, within = 70 * steps().seconds(8, 0.0) / 8, 6.0
    tenants, weights = ["greedy", "a", "b", "c", "d"], [10, 1, 1, 1, 1]
    asked, good = Counter[str](), Counter[str]()
    due: dict[Place, float] = {}
    next_at, began = machine.clock.now, machine.clock.now
    while machine.clock.now < began + 120:
        while next_at <= machine.clock.now:
            next_at += rng.expovariate(load / each_s)
            (tenant,) = rng.choices(tenants, weights)
            new = rng.randint(20, 120)
            asked[tenant] += new
            try:
                place = machine.ask(within=within, most=new, new=new, tenant=tenant)
            except Overloaded:
                continue
            due[place] = machine.clock.now + within
        machine.step()
    machine.run()
    for place, by in due.items():
        if machine.ended.get(place, inf) <= by:
            good[place.tenant] += place.most_new
    seconds = machine.clock.now - began
    fair = fair_rates({name: tokens / seconds for name, tokens in asked.items()}, 70 / each_s)
    assert jain([good[name] / seconds / rate for name, rate in fair.items()]) > 0.95
    assert sum(good.values()) * each_s > 0.85 * 70 * seconds


@pytest.mark.parametrize(("before", "now"), [(8.0, 1.0), (1.0, 4.0)])
def test_after_an_hour_of_quiet_a_burst_is_judged_by_what_steps_cost_now(before, now):
    machine = Machine()
    machine.ratio = before
    for _ in range(12):
        machine.ask(within=None, most=50, new=50)
    machine.run()
    machine.clock.now += 3600
    machine.ratio = now
    machine.costs.forget()  # as the loop does
    for _ in range(12):
        machine.ask(within=None, most=50, new=50)
    for _ in range(10):
        machine.step()
    wait = machine.admission._wait_s(Place(1, 16, 50))
    last = machine.ask(within=None, most=50, new=50)
    asked = machine.clock.now
    machine.run()
    assert wait == pytest.approx(machine.begun[last] - asked, rel=0.3)


def test_what_was_refused_after_all_says_nothing_of_the_others():
    machine = Machine(max_queue_s=4.0).seen()
    share = machine.admission.times.share
    for _ in range(20):
        place = machine.admission.take(1, tokens=5, most_new=100)
        machine.admission.leave(place)
    assert machine.admission.times.share == share
    assert not machine.admission._places
    assert machine.admission._taken == 0


def test_however_many_are_refused_the_queue_is_gone_through_once_in_a_while(monkeypatch):
    machine = Machine().seen()
    walks = []
    queue, walk = machine.admission._queue, machine.admission._queue.make
    monkeypatch.setattr(queue, "make", lambda *given: walks.append(given) or walk(*given))
    for _ in range(200):
        machine.ask(within=None, most=100, new=50, priority=-1)
    for _ in range(1000):
        for priority in (0, 1):
            with pytest.raises(Overloaded):
                machine.ask(within=0.5, most=100, new=50, priority=priority)
        machine.clock.now += KEPT_S / 100
    assert len(walks) <= 11


def test_who_is_taken_meanwhile_is_in_front_of_the_next():
    machine = Machine().seen()
    for _ in range(20):
        machine.ask(within=None, most=100, new=50)
    waits = []
    for _ in range(8):
        waits.append(machine.admission._wait_s(Place(1, 16, 100)))
        machine.ask(within=1000, most=100, new=50)
    machine.clock.now += 2 * KEPT_S
    again = machine.admission._wait_s(Place(1, 16, 100))
    assert waits == sorted(waits)
    assert again == pytest.approx(waits[-1] + waits[-1] - waits[-5], rel=0.05, abs=2 * KEPT_S)


def test_when_nobody_waits_any_more_nobody_is_refused():
    """Though a moment ago many had to."""
    machine = Machine(slots=1).seen()
    places = [machine.ask(within=None, most=100, new=50, priority=-1) for _ in range(9)]
    with pytest.raises(Overloaded):
        machine.ask(within=1.0, most=100, new=50)
    for place in places:
        machine.admission.leave(place)
    machine.waiting.clear()
    machine.ask(within=1.0, most=100, new=50)


def test_a_full_queue_takes_nobody():
    admission = Admission(1, 2)
    admission.take(3)
    with pytest.raises(QueueFull, match="got 2 sequences waiting, wanted fewer than 2"):
        admission.take(1)


def test_what_goes_on_is_taken_and_was_counted_with_what_it_goes_on_from():
    machine = Machine().seen(most=100, new=50)
    alone = machine.admission._run_s(Place(1, 16, 100))
    with_more = machine.admission._run_s(Place(1, 16, 100, later_tokens=48, later_new=300))
    assert with_more == pytest.approx(4 * alone, rel=0.01)
    admission = Admission(1, 1)
    for _ in range(2):
        admission.take(1)
    with pytest.raises(QueueFull):
        admission.take(1)
    place = admission.take(1, goes_on=True)
    admission.leave(place)
    with pytest.raises(QueueFull):
        admission.take(1)
