"""Requests that are tokenised and wait, by deadline, for each tenant; and the next micro-batch of
them."""

from __future__ import annotations

from heapq import merge
from itertools import islice
from math import inf
from operator import attrgetter

from fusewire.engine.costs import CostTable
from fusewire.engine.next_batch import next_batch
from fusewire.engine.request import Member, Work
from fusewire.engine.tenant_queues import TenantQueues

# How many of the works that wait are looked at for a micro-batch.
_LOOKED_AT = 1024

_due = attrgetter("due")


class ReadyQueue(TenantQueues[Work]):
    """Works with sequences to give to the device. One thread at a time."""

    def __init__(self) -> None:
        super().__init__(lambda work: work.request.tenant, _due)

    def first(self) -> list[Work]:
        """The works with the earliest deadlines, some 1000 in all and as many of each tenant, at
        least one; of a tenant's equal ones those that came first."""
        own = self._of_each()
        return list(merge(*(islice(queue, own) for queue in self.queues.values()), key=_due))

    def take(
        self, now: float, slack_s: float, costs: CostTable, max_batch_tokens: int
    ) -> list[Member]:
        """The sequences of the next micro-batch, as `next_batch` has it. They are given from here
        on, and charged to their tenants; a work of which all are is here no longer."""
        members: list[Member] = []
        for work in next_batch(
            [work for work in self.first() if not work.ended],
            now,
            slack_s,
            costs,
            max_batch_tokens,
            self.served,
            self._first_left_out(),
        ):
            length = len(work.items[work.given].tokens)
            self.charge(work, costs.share(length, length * length))
            members.append((work, work.given))
            work.given += 1
        for work in dict.fromkeys(work for work, _ in members):
            if work.given == len(work.items):
                self.remove(work)
        return members

    def _first_left_out(self) -> float:
        """When the first of those is due that `first` leaves out; inf where there are none."""
        own = self._of_each()
        return min((q[own].due for q in self.queues.values() if len(q) > own), default=inf)

    def _of_each(self) -> int:
        return max(1, _LOOKED_AT // max(1, len(self.queues)))
