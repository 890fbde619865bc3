"""When a request would begin to run, by all that runs and waits: gone through once for all that ask
within a moment, in which those that are taken are added. So who is refused costs O(1), however many
wait."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from operator import attrgetter

from fusewire.engine.forecast import End, Forecast, Forecasts
from fusewire.engine.place import Place
from fusewire.engine.sequence_times import SequenceTimes
from fusewire.engine.tenant_shares import TenantShares

# How long a forecast is kept.
KEPT_S = 0.05
# How long after a refusal admission counts as refusing.
_REFUSING_S = 2.0
_NOTHING = Forecasts(Forecast(-inf, 0, 0.0))


class QueueForecast:
    """Forecasts of the places that are taken, by `times`, and what waits of each of the `tenants`.
    One thread at a time."""

    def __init__(self, times: SequenceTimes, tenants: TenantShares) -> None:
        self.kept: Forecasts | None = None  # None: to be made, when somebody asks
        self.refused_at = -inf  # when a request was last refused
        self._made_at = -inf
        self._before = _NOTHING  # the last ones, which say since when there has been no room
        self._times = times
        self._tenants = tenants

    @property
    def kept_until(self) -> float:
        return self._made_at + KEPT_S

    def fresh(self, now: float) -> Forecasts | None:
        """What is kept, unless it was made too long ago."""
        return None if now - self._made_at > KEPT_S else self.kept

    def make(self, places: Iterable[Place], taken: int, now: float) -> Forecasts:
        """Goes through the places, in order of arrival, which have `taken` sequences in all."""
        times, step_s = self._times, self._times.step_s(taken)
        running = Forecast(now, times.max_sequences, times.pages)
        waiting = []
        for place in places:
            if place.runs:
                end = now + times.left_s(place, step_s)
                running.run(End(end, place.slots, times.pages_of(place)))
            else:
                waiting.append(place)
        forecasts = Forecasts(running)
        self._tenants.forget_waiting()
        for place in sorted(waiting, key=attrgetter("priority", "deadline")):
            self._wait(forecasts, place, taken)
        forecasts.go_on(self._before, now, refusing=self._is_refusing(now))
        self.kept = self._before = forecasts
        self._made_at = now
        return forecasts

    def add(self, place: Place, taken: int) -> bool:
        """Adds a place that was taken, when `taken` sequences are here; returns whether there is a
        forecast to add it to."""
        if self.kept is None:
            return False
        self._wait(self.kept, place, taken)
        return True

    def forget(self) -> None:
        """None need wait, and few are gone through when somebody asks."""
        self.kept = None

    def emptied(self, now: float) -> None:
        """Nothing is here: a queue that stood before has gone, unless others are refused."""
        if not self._is_refusing(now):
            self._before = _NOTHING

    def _wait(self, forecasts: Forecasts, place: Place, taken: int) -> None:
        """Adds a request that waits to the forecasts, in its turn."""
        begin_by = place.deadline - self._times.run_s(place, taken + place.slots)
        need = self._times.need(place, taken)
        forecasts.wait(place.priority, place.deadline, begin_by, need)
        if place.is_shared:
            self._tenants.wait(place.tenant, place.cost_s)

    def _is_refusing(self, now: float) -> bool:
        return now - self.refused_at < _REFUSING_S
