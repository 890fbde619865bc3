"""Requests that are tokenised and wait: by deadline, for each tenant."""

from __future__ import annotations

from heapq import merge
from itertools import islice
from math import inf
from operator import attrgetter

from fusewire.engine.request import Work
from fusewire.engine.tenant_queues import TenantQueues

_due = attrgetter("due")


class ReadyQueue(TenantQueues[Work]):
    """Works with sequences to give to the device. One thread at a time."""

    def __init__(self) -> None:
        super().__init__(lambda work: work.request.tenant, _due)

    def first(self, most: int) -> list[Work]:
        """The works with the earliest deadlines, `most` in all and as many of each tenant, at least
        one; of a tenant's equal ones those that came first."""
        own = self._of_each(most)
        return list(merge(*(islice(queue, own) for queue in self.queues.values()), key=_due))

    def first_left_out(self, most: int) -> float:
        """When the first of those is due that `first` leaves out; inf where there are none."""
        own = self._of_each(most)
        return min((q[own].due for q in self.queues.values() if len(q) > own), default=inf)

    def _of_each(self, most: int) -> int:
        return max(1, most // max(1, len(self.queues)))
