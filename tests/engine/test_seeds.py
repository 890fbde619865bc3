"""Every continuation of every request draws by its own random numbers."""

from __future__ import annotations

from fusewire.engine.seeds import _mixed, seed_of


def test_the_mixing_is_splitmix64():
    state, drawn = 1234567, []
    for _ in range(3):
        drawn.append(_mixed(state))
        state += 0x9E3779B97F4A7C15
    assert drawn == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_the_first_continuation_has_the_seed_that_was_asked_for():
    assert [seed_of(seed, 0) for seed in (0, -5, 2**63 - 1)] == [0, -5, 2**63 - 1]


def test_no_continuation_of_neighbouring_requests_has_another_ones_seed():
    seeds = [seed_of(seed, index) % 2**64 for seed in range(-500, 500) for index in range(64)]
    assert len(set(seeds)) == len(seeds)
