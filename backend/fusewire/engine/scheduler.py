"""Which sequences run together: pure policy, no kernels.

Kernels without padding cost the same per token whatever lengths meet in a batch, so memory limits a
batch by its tokens, and waiting by its seconds. How large batches of what waits should be is a
question only where small ones cost more per token: on GPUs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


def plan(lengths: Sequence[int], max_batch_tokens: int) -> list[list[int]]:
    """Splits sequences (by index) into micro-batches of at most `max_batch_tokens` tokens.

    First-fit over decreasing lengths: at most 11/9 of the fewest batches possible, plus one
    (Johnson, 1973), and the longest sequences come first, which spreads attention best over
    threads. No sequence is split; one longer than the budget runs alone. Every index appears once;
    ties keep their order, so a plan depends on the lengths alone.
    """
    batches: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        length = lengths[index]
        for batch, left in enumerate(room):
            if length <= left:
                batches[batch].append(index)
                room[batch] -= length
                break
        else:
            batches.append([index])
            room.append(max_batch_tokens - length)
    return batches


class Turn(NamedTuple):
    """A request that waits: the `lengths` of the sequences that it has left, one or more."""

    lengths: Sequence[int]
    tenant: str = ""
    priority: int = 0


class Limits(NamedTuple):
    """The limits of a micro-batch. `seconds(tokens, squares)` is what one takes, `share(tokens,
    squares)` what a part of it takes; squares are the sum of the squared lengths."""

    max_batch_tokens: int
    max_s: float = inf
    seconds: Callable[[int, float], float] = lambda tokens, squares: 0.0
    share: Callable[[int, float], float] = lambda tokens, squares: 0.0


def deal(turns: Sequence[Turn], limits: Limits, served: Mapping[str, float]) -> list[int]:
    """The requests whose next sequence the next micro-batch takes, one for each sequence: indices
    of `turns`, which are in order of their deadlines. `served`: the seconds that each tenant had so
    far.

    Each sequence is given to the tenant that had the fewest seconds (start-time fair queueing;
    Goyal, Vin and Cheng, 1996). Of a tenant, requests of the lowest priority number come first, and
    are dealt a sequence each in rounds (Nagle, 1987), so that one of a single short sequence is not
    kept waiting by those of a hundred. One whose next sequence has no room waits for the next
    micro-batch. The first request takes one in any case, so that every request's turn comes.
    """
    dealt: list[int] = []
    taken = [0] * len(turns)
    tokens, squares = 0, 0.0
    seconds = {turn.tenant: served.get(turn.tenant, 0.0) for turn in turns}
    rounds: dict[str, dict[int, deque[int]]] = {}  # by tenant, then by priority
    for index, turn in enumerate(turns):
        rounds.setdefault(turn.tenant, {}).setdefault(turn.priority, deque()).append(index)
    tenants = [(seconds[tenant], place, tenant) for place, tenant in enumerate(rounds)]
    if turns:
        tenants.append((-inf, -1, turns[0].tenant))
    heapify(tenants)
    while tenants:
        had, place, tenant = heappop(tenants)
        if -inf < had < seconds[tenant]:  # by what the first took
            heappush(tenants, (seconds[tenant], place, tenant))
            continue
        levels = rounds[tenant]
        if not levels:
            continue
        level = min(levels) if dealt else turns[0].priority
        requests = levels[level]
        index = requests.popleft()
        turn = turns[index]
        length = turn.lengths[taken[index]]
        after, squares_after = tokens + length, squares + float(length * length)
        if not dealt or (
            after <= limits.max_batch_tokens
            and (limits.max_s == inf or limits.seconds(after, squares_after) <= limits.max_s)
        ):
            seconds[tenant] += limits.share(length, squares_after - squares)
            tokens, squares = after, squares_after
            dealt.append(index)
            taken[index] += 1
            if taken[index] < len(turn.lengths):
                requests.append(index)
        if not requests:
            del levels[level]
        if place >= 0:
            heappush(tenants, (seconds[tenant], place, tenant))
    return dealt


def free_to_choose(costs: Sequence[float], dues: Sequence[float], batch_s: float) -> int:
    """How many of the first requests a micro-batch of `batch_s` seconds may choose from, so that
    whatever it takes of them makes none late that was in time: up to the first that has no time
    for work which is due later. `costs` in seconds and `dues` in seconds from now, the earliest
    first."""
    before = 0.0
    for index, (cost, due) in enumerate(zip(costs, dues, strict=True)):
        before += cost
        if due - before < batch_s:
            return index + 1
    return len(costs)


def split(
    lengths: Sequence[int],
    dues: Sequence[float],
    seconds: Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]],
) -> list[int]:
    """The sizes of the micro-batches that sequences, computed in this order, wait the least in,
    over all of them; `dues` in seconds from now, `seconds(tokens, squares)` for arrays.

    TurboTransformers' dynamic program (arXiv 2010.05680, section 5) for packed batches, over the
    time waited instead of the time computed, as all that is not yet done waits for a batch:
    f[i] = min over j < i of f[j] + t(j..i) (n - j). What makes a sequence late is left out; where
    nothing else is left all are one batch. O(n^2).

    The order is kept: packed, a batch costs the same whatever lengths meet in it, and an order by
    length would keep the longest waiting for as long as shorter ones come.
    """
    n = len(lengths)
    tokens = np.concatenate([[0.0], np.cumsum(lengths, dtype=np.float64)])
    squares = np.concatenate([[0.0], np.cumsum(np.square(lengths, dtype=np.float64))])
    least = np.full(n + 1, inf)
    elapsed = np.zeros(n + 1)
    came_from = [0] * (n + 1)
    least[0] = 0.0
    first_due = np.asarray(dues, np.float64)
    for i in range(1, n + 1):
        t = seconds(tokens[i] - tokens[:i], squares[i] - squares[:i])
        due = np.minimum.accumulate(first_due[:i][::-1])[::-1]
        waited = np.where(elapsed[:i] + t <= due, least[:i] + t * (n - np.arange(i)), inf)
        j = int(np.argmin(waited))
        least[i], elapsed[i], came_from[i] = waited[j], elapsed[j] + t[j], j
    if least[n] == inf:
        return [n]
    sizes = []
    i = n
    while i:
        sizes.append(i - came_from[i])
        i = came_from[i]
    return sizes[::-1]


def halves(indices: Sequence[int], lengths: Sequence[int]) -> tuple[list[int], list[int]]:
    """Splits a micro-batch of two or more into two of about equal tokens, neither empty.

    Deals in order, each sequence to the lighter side; with decreasing lengths the sides differ by
    at most the longest sequence.
    """
    if len(indices) < 2:
        raise ValueError(f"indices: got {list(indices)}, wanted two or more")
    left, right = [indices[0]], [indices[1]]
    balance = lengths[indices[0]] - lengths[indices[1]]
    for index in indices[2:]:
        if balance <= 0:
            left.append(index)
            balance += lengths[index]
        else:
            right.append(index)
            balance -= lengths[index]
    return left, right
