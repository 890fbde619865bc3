"""What waits of each tenant, and the seconds that each had: whose turn it is."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class TenantQueues(Generic[T]):
    """A sorted queue for each tenant that waits. One thread at a time.

    The turn is the tenant's that had the fewest seconds. One that newly waits counts as if it had
    had no fewer than those that wait: nobody saves up (start-time fair queueing; Goyal, Vin and
    Cheng, 1996).
    """

    def __init__(self, tenant: Callable[[T], str], rank: Callable[[T], Any]) -> None:
        """`tenant`, `rank`: give those of an item, which stay the same as long as it is here; the
        items of a tenant are in order of rank."""
        self._tenant, self._rank = tenant, rank
        self.queues: dict[str, list[T]] = {}
        self.served: dict[str, float] = {}  # seconds

    def __len__(self) -> int:
        return sum(map(len, self.queues.values()))

    def __iter__(self) -> Iterator[T]:
        for queue in self.queues.values():
            yield from queue

    def add(self, item: T) -> None:
        """Adds an item after those of the same rank."""
        tenant = self._tenant(item)
        if tenant not in self.queues:
            least = min((self.served[other] for other in self.queues), default=0.0)
            self.queues[tenant] = []
            self.served[tenant] = max(self.served.get(tenant, 0.0), least)
        queue, rank = self.queues[tenant], self._rank
        if not queue or rank(queue[-1]) <= rank(item):  # as most come
            queue.append(item)
        else:
            insort(queue, item, key=rank)

    def charge(self, item: T, seconds: float) -> None:
        """Adds `seconds` to those that the item's tenant, which waits, had."""
        self.served[self._tenant(item)] += seconds

    def remove(self, item: T) -> None:
        """Removes an item, which may have gone already."""
        tenant = self._tenant(item)
        queue = self.queues.get(tenant)
        if queue is None:
            return
        at = 0
        if queue[0] is not item:  # as one is whose turn it is
            at = bisect_left(queue, self._rank(item), key=self._rank)
            while at < len(queue) and queue[at] is not item:
                at += 1
            if at == len(queue):
                return
        del queue[at]
        if not queue:
            del self.queues[tenant]
            self._forget()

    def clear(self) -> None:
        self.queues.clear()
        self._forget()

    def _forget(self) -> None:
        """Forgets tenants who would be lifted to others' seconds anyway: clients choose their
        names."""
        least = min((self.served[other] for other in self.queues), default=None)
        if least is None:
            self.served.clear()
        elif len(self.served) > 2 * len(self.queues):
            self.served = {
                tenant: had
                for tenant, had in self.served.items()
                if had > least or tenant in self.queues
            }
