"""Arrivals, what is made of their outcomes, and a client that counts, on answers made up here."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from benchmarks import overload_arrivals as arrivals
from benchmarks import overload_client, overload_report, overload_ways
from benchmarks.overload_arrivals import EXPIRED, FAILED, OK, REFUSED, Arrival, Seen
from benchmarks.overload_client import Load, Saturation
from benchmarks.overload_drivers import parts_of, requests_per_s
from benchmarks.overload_models import Given, prompt_weight
from benchmarks.overload_outcome import Turn, fair_rates, jain, possible, statistics
from benchmarks.overload_ways import Answer, Prompt
from benchmarks.served_sides import Window


def test_arrivals_come_at_the_rate_that_was_asked_for() -> None:
    for kind in (arrivals.poisson, arrivals.bursts, arrivals.tenants):
        found = kind(50.0, 100.0, 10)
        assert len(found) == pytest.approx(5000, rel=0.1)
        assert found == kind(50.0, 100.0, 10)
        assert all(0 <= each.at < 100 for each in found)
        assert [each.at for each in found] == sorted(each.at for each in found)
        assert {each.text for each in found} == set(range(10))


def test_bursts_leave_every_other_time_empty() -> None:
    at = [each.at for each in arrivals.bursts(200.0, 40.0, 1)]
    second_of_burst = {int(each % 4.0) for each in at}
    assert second_of_burst == {0, 1}


def test_one_tenant_sends_ten_times_what_each_other_does() -> None:
    found = [each.tenant for each in arrivals.tenants(500.0, 100.0, 1)]
    counts = {name: found.count(name) for name in sorted(set(found))}
    assert len(counts) == arrivals.TENANTS
    greedy, *others = counts.values()
    assert all(greedy / other == pytest.approx(10, rel=0.15) for other in others)


def test_what_a_tenant_leaves_is_shared_by_those_who_ask_for_more() -> None:
    fair = fair_rates({"greedy": 100.0, "small": 5.0, "middle": 30.0}, 60.0)
    assert fair == {"small": 5.0, "middle": 27.5, "greedy": 27.5}
    assert fair_rates({"one": 3.0}, 60.0) == {"one": 3.0}


def test_jains_index_is_one_where_all_have_the_same_and_a_share_where_one_has_all() -> None:
    assert jain([2.0, 2.0, 2.0]) == pytest.approx(1)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert jain([0.0]) == 0


def seen(outcome: str, seconds: float, tenant: str = "a", at: float = 0.0) -> Seen:
    refusals = [seconds] if outcome == REFUSED else []
    return Seen(Arrival(at, 0, tenant), outcome, seconds, refusals=refusals)


def test_goodput_is_what_came_within_the_deadline() -> None:
    all_of = [seen(OK, 0.1), seen(OK, 0.3), seen(OK, 1.5), seen(REFUSED, 0.01), seen(EXPIRED, 1.0)]
    found = statistics([Turn(all_of, 4.0)], 2.0, 1.0, tokens=[50])
    assert (found["goodput_per_s"], found["goodput_of_capacity"]) == (1.0, 0.25)
    assert found["goodput_of_offered"] == 0.4
    assert (found["ok_requests"], found["refused_requests"], found["expired_requests"]) == (3, 1, 1)
    assert found["accepted_ms_p50"] == 300.0
    assert found["refused_ms_p99"] == 10.0


def test_turns_weigh_by_what_the_machine_could_do_in_them() -> None:
    slow, fast = Turn([seen(OK, 0.1)] * 2, capacity=1.0), Turn([seen(OK, 0.1)] * 4, capacity=3.0)
    found = statistics([slow, fast], 2.0, 1.0, tokens=[50])
    assert (found["goodput_per_s"], found["goodput_of_capacity"]) == (1.5, 0.75)
    assert found["goodput_tokens_of_capacity"] == 0.75
    # Of those that come at once, the slow machine answers one within the deadline, the fast three.
    assert found["possible_of_capacity"] == (1 / 2 + 3 / 2) / (1.0 + 3.0)


def test_answers_after_the_arrivals_are_in_time_but_no_goodput_of_theirs() -> None:
    all_of = [seen(OK, 0.5, at=1.0), seen(OK, 0.5, at=1.8)]
    found = statistics([Turn(all_of, 1.0)], 2.0, 1.0, tokens=[50])
    assert (found["goodput_per_s"], found["goodput_of_offered"]) == (0.5, 1.0)


def test_a_server_that_answers_the_short_ones_has_done_little() -> None:
    short, long = (Seen(Arrival(0.0, text, "a"), OK, 0.1) for text in (0, 1))
    for all_of, work in ([[short, short], 0.2], [[short, long], 1.0], [[long, long], 1.8]):
        found = statistics([Turn(all_of, 1.0)], 2.0, 1.0, tokens=[10, 90])
        assert found["goodput_of_capacity"] == 1.0
        assert found["goodput_tokens_of_capacity"] == work


def test_each_refusal_of_a_client_that_tries_again_counts() -> None:
    patient = Seen(Arrival(0.0, 0, "a"), OK, 0.9, refusals=[0.01, 0.03])
    found = statistics([Turn([patient], 1.0)], 2.0, 1.0, tokens=[50])
    assert (found["refused_requests"], found["refused_ms_p50"]) == (0, 20.0)


def test_what_is_possible_is_what_a_server_that_knows_all_does() -> None:
    at_once = [arrivals.Arrival(0.0, 0, "a")] * 10
    assert possible(at_once, 4.0, 1.0, [0.25]) == pytest.approx(1.0 / 4)
    steady = [arrivals.Arrival(0.1 * number, 0, "a") for number in range(40)]
    assert possible(steady, 4.0, 1.0, [0.25]) == pytest.approx(1.0)
    rare = steady[::5]
    assert possible(rare, 4.0, 1.0, [0.25]) == pytest.approx(0.5)


def test_a_tenant_that_gets_nothing_of_its_share_lowers_the_index() -> None:
    one, other = [seen(OK, 0.1, "a")] * 10, [seen(OK, 0.1, "b")] * 10
    assert statistics([Turn(one + other, 20.0)], 1.0, 1.0, tokens=[50])["jain"] == 1.0
    starved = one + [seen(REFUSED, 0.1, "b")] * 10
    assert statistics([Turn(starved, 20.0)], 1.0, 1.0, tokens=[50])["jain"] == 0.5


class Slow:
    """Answers after a time; notes what it was sent."""

    def __init__(self, seconds: float, *outcomes: str) -> None:
        self.seconds = seconds
        self.outcomes = list(outcomes)
        self.sent: list[dict[str, str | int]] = []
        self.answered: list[float] = []  # when, by time.perf_counter()

    async def send(self, text: int, timeout_s: float, parameters: dict[str, str | int]) -> Answer:
        self.sent.append(parameters)
        await asyncio.sleep(self.seconds)
        self.answered.append(time.perf_counter())
        return Answer(self.outcomes.pop(0) if self.outcomes else OK, first=self.answered[-1])

    async def close(self) -> None: ...


class Together(Slow):
    """Answers once so many were sent."""

    def __init__(self, requests: int) -> None:
        super().__init__(0.0)
        self._requests = requests
        self._all = asyncio.Event()

    async def send(self, text: int, timeout_s: float, parameters: dict[str, str | int]) -> Answer:
        self.sent.append(parameters)
        if len(self.sent) == self._requests:
            self._all.set()
        await asyncio.wait_for(self._all.wait(), timeout_s)
        return Answer(OK, first=time.perf_counter())


def offered(way: Slow, load: Load) -> list[Seen]:
    return asyncio.run(overload_client._offered(way, load)).seen


ARRIVALS = [Arrival(0.01 * number, 0, "a") for number in range(5)]


def test_no_arrival_waits_for_an_answer() -> None:
    found = offered(Together(5), Load(ARRIVALS, 30.0, True, True, None, False))
    assert [each.outcome for each in found] == [OK] * 5


def test_a_gateway_that_counts_refuses_what_is_too_much() -> None:
    at_once = [Arrival(0.0, 0, "a")] * 5
    found = offered(Slow(0.02), Load(at_once, 1.0, False, False, 2, False))
    assert [each.outcome for each in found] == [OK, OK, REFUSED, REFUSED, REFUSED]


def test_clients_tell_their_deadline_and_their_tenant_where_they_should() -> None:
    way = Slow(0.0)
    offered(way, Load(ARRIVALS[:1], 1.0, True, True, None, False))
    first = way.sent[0]
    assert first["tenant"] == "a"
    assert 900_000 < int(first["timeout"]) <= 1_000_000
    way = Slow(0.0)
    offered(way, Load(ARRIVALS[:1], 1.0, False, False, None, False))
    assert way.sent[0] == {}


def test_clients_that_try_again_do_so_until_they_are_answered() -> None:
    load = Load(ARRIVALS[:1], 5.0, False, False, None, True, probe=False)
    found = offered(Slow(0.0, REFUSED, REFUSED), load)
    assert [each.outcome for each in found] == [OK]
    assert len(found[0].refusals) == 2
    found = offered(Slow(0.0, REFUSED), Load(ARRIVALS[:1], 5.0, False, False, None, False))
    assert [each.outcome for each in found] == [REFUSED]


def test_a_closed_loop_counts_the_answers_within_its_window() -> None:
    way, begin = Slow(0.05), time.perf_counter() + 0.2
    asked = Saturation(Window(begin, begin + 0.4), under_way=4)
    counted = asyncio.run(overload_client._capacity(way, asked, texts=3))
    within = [at for at in way.answered if begin <= at < begin + 0.4]
    assert abs(len(counted) - len(within)) <= 4  # some at its begin or its end
    assert len(way.sent) > len(within) + 4
    assert set(counted) == {0, 1, 2}


def test_a_closed_loop_counts_what_it_answered_by_how_much_that_was() -> None:
    assert requests_per_s([0, 0, 1], tokens=[10, 40], seconds=2.0) == 60 / 25 / 2
    prompts = [Prompt([0] * 20, 80), Prompt([0] * 60, 40)]
    # A token of an answer takes 10 ms, one of a prompt 5: 0.8 s of the mean, 0.2 s of its prompt.
    assert prompt_weight(prompts, 1 / 0.8, 1 / 0.2) == pytest.approx(0.5)
    given = Given("GPT", Path(), {"answers": prompts}, {"answers": [80, 40]})
    assert given.work("answers", 0.5) == [90, 70]


def test_of_an_answer_that_comes_after_the_arrivals_counts_what_came_before() -> None:
    half = Seen(Arrival(0.0, 0, "a"), OK, seconds=3.0, first=1.0)
    none = Seen(Arrival(1.5, 0, "a"), OK, seconds=2.0, first=1.0)
    late = Seen(Arrival(0.0, 0, "a"), OK, seconds=5.0, first=1.0)
    found = statistics([Turn([half, none, late], 1.0)], 2.0, 4.0, tokens=[50])
    assert found["goodput_tokens_of_capacity"] == 0.25
    assert found["goodput_of_capacity"] == 0.0


def test_what_is_split_over_processes_stays_whole() -> None:
    assert parts_of(64, 3) == [22, 21, 21]
    assert parts_of(1, 2) == [1, 0]


def test_what_the_server_took_and_let_expire_is_no_refusal() -> None:
    late, refused = "timeout: got a request whose time has passed", "queue: got 3 s of work"
    for of in (overload_ways.refusal, overload_ways._without_code):
        assert (of(late).outcome, of(refused).outcome) == (EXPIRED, REFUSED)
    assert overload_ways.refusal("Exceeds maximum queue size").outcome == REFUSED
    assert overload_ways._without_code("out of memory").outcome == FAILED


def test_the_first_token_counts_from_when_the_request_was_due() -> None:
    found = offered(Slow(0.1), Load(ARRIVALS, 1.0, True, True, None, False))
    assert all(each.first is not None and 0.1 <= each.first <= each.seconds for each in found)
    ms = statistics([Turn(found, 10.0)], 1.0, 1.0, tokens=[50])["first_ms_p50"]
    assert 100 <= ms < 300


def test_the_table_has_a_line_for_each_system() -> None:
    row = {"load": "48 words", "protocol": "grpc", "system": "fifo", "share": 1.0}
    goodput = "goodput_tokens_of_capacity"
    row["possible_of_capacity"] = 1.0
    rows = [row | {goodput: 0.5}, row | {"share": 3.0, goodput: 0.01}]
    rows.append(row | {"system": "fusewire", "share": 3.0, goodput: 0.97})
    lines = overload_report.table(rows).splitlines()
    assert lines[0] == "| load | protocol | system | 1 x | 3 x |"
    assert lines[2:] == ["| 48 words | grpc | fifo | 50.0% | 1.0% |",
                         "| 48 words | grpc | fusewire |  | 97.0% |"]  # fmt: skip
    rows[0]["possible_of_capacity"] = 0.9
    assert overload_report.table(rows).splitlines()[-1] == (
        "| 48 words |  | possible | 90.0% | 100.0% |"
    )


def row(system: str, share: float, **changes: object) -> dict[str, object]:
    """Of a run whose server had two cores."""
    numbers = {
        "goodput_tokens_of_capacity": 0.5,
        "possible_of_capacity": 1.0,
        "jain": 1.0,
        "recovered_s": 0.62,
        "requests": 100,
    }
    numbers |= {"expired_requests": 25, "resident_mib_before": 280.0, "resident_mib_after": 281.0}
    where = {"load": "48 words", "protocol": "grpc", "system": system, "share": share}
    run = {"model": "MiniLM-L6", "server_cores": [0, 1], "seconds": 16.0, "deadline_s": 1.0}
    run["capacity"] = [90.0, 100.0, 95.0, 98.0]
    return {"case": f"{system}, {share:g} x", **where, **run, **numbers, **changes}


def test_the_documentation_has_the_rest_at_the_least_and_at_the_highest_load() -> None:
    rows = [row("fifo", 0.7, accepted_ms_p99=120.4), row("fifo", 3.0, accepted_ms_p99=99.96)]
    text = overload_report.tables([*rows, row("fusewire", 3.0, refused_ms_p99=8.04)])
    assert "the server on 2 cores; requests arrive 3 x 16 s at" in text
    lines = text.split("The same runs:\n\n")[1].splitlines()
    assert lines[2:] == [
        "| 48 words | grpc | fifo | 120 | 100 | none | 25% | 1.00 | 0.6 | 280 → 281 |",
        "| 48 words | grpc | fusewire |  | none | 8.0 | 25% | 1.00 | 0.6 | 280 → 281 |",
    ]


def test_rows_of_clients_that_could_not_keep_up_are_named() -> None:
    rows = [row("fifo", 3.0, client_lag_ms_p99=10.1), row("count", 3.0, client_lag_ms_p99=9.9)]
    assert overload_report.late(rows) == ["fifo, 3 x"]
