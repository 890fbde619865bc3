"""Requests that are tokenised and wait: by deadline, for each tenant."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import merge
from itertools import islice
from math import inf
from operator import attrgetter

from fusewire.engine.request import Work

_due = attrgetter("due")


class ReadyQueue:
    """Works with sequences to give to the device. One thread at a time."""

    def __init__(self) -> None:
        self._queues: dict[str, list[Work]] = {}
        # Seconds that each tenant had. One that newly waits counts as if it had had no fewer than
        # those that wait: nobody saves up.
        self.served: dict[str, float] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[Work]:
        for queue in self._queues.values():
            yield from queue

    def add(self, work: Work) -> None:
        tenant = work.request.tenant
        if tenant not in self._queues:
            least = min((self.served[other] for other in self._queues), default=0.0)
            self._queues[tenant] = []
            self.served[tenant] = max(self.served.get(tenant, 0.0), least)
        insort(self._queues[tenant], work, key=_due)

    def first(self, most: int) -> list[Work]:
        """Those with the earliest deadlines, of each tenant as many; of a tenant's equal ones who
        came first."""
        own = self._of_each(most)
        return list(merge(*(islice(queue, own) for queue in self._queues.values()), key=_due))

    def first_left_out(self, most: int) -> float:
        """The earliest due of those that `first` leaves out; inf where there are none."""
        own = self._of_each(most)
        return min((q[own].due for q in self._queues.values() if len(q) > own), default=inf)

    def _of_each(self, most: int) -> int:
        return max(1, most // max(1, len(self._queues)))

    def charge(self, work: Work, seconds: float) -> None:
        """Its tenant had so many seconds."""
        self.served[work.request.tenant] += seconds

    def remove(self, work: Work) -> None:
        """It may have gone already."""
        tenant = work.request.tenant
        queue = self._queues.get(tenant, [])
        at = bisect_left(queue, work.due, key=_due)
        while at < len(queue) and queue[at] is not work:
            at += 1
        if at == len(queue):
            return
        del queue[at]
        if not queue:
            del self._queues[tenant]
            self._forget()

    def clear(self) -> None:
        self._queues.clear()
        self._forget()

    def _forget(self) -> None:
        """Those who would be lifted to others' seconds anyway: clients choose their names."""
        least = min((self.served[other] for other in self._queues), default=None)
        if least is None:
            self.served.clear()
        elif len(self.served) > 2 * len(self._queues):
            self.served = {
                tenant: had
                for tenant, had in self.served.items()
                if had > least or tenant in self._queues
            }
