"""Which of the waiting sequences are computed next: policy over the cost table, no kernels."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from math import inf

from fusewire.engine.costs import CostTable
from fusewire.engine.request import Work
from fusewire.engine.scheduler import Limits, Turn, deal, free_to_choose, split

# A micro-batch of the waiting is as large as is computed in this time, which those that come
# meanwhile may have to wait.
MICRO_BATCH_S = 0.1
# Micro-batches that are left free of a request's time: the one that runs when it comes, and its
# own. With less, what is due next leaves room for small ones only, which take longer per token, so
# that still less is left.
_FREE_MICRO_BATCHES = 2
# Most sequences for which it is worth planning how to split them.
_MOST_SPLIT = 64


def margin_s(costs: CostTable) -> float:
    """Seconds of a request's time that admission leaves free, so that large micro-batches make none
    late."""
    return _FREE_MICRO_BATCHES * min(MICRO_BATCH_S, costs.largest_s)


def next_batch(
    ready: Sequence[Work],
    now: float,
    slack_s: float,
    costs: CostTable,
    max_batch_tokens: int,
    served: Mapping[str, float],
    others_due: float = inf,
) -> list[Work]:
    """The works whose next sequence the next micro-batch takes, one for each sequence. `ready`:
    works in order of what is due. `slack_s`: seconds by which all that waits may begin later, with
    none late; `served`: the seconds that each tenant had; `others_due`: when the first is due of
    others that wait as well.

    While there is slack for a batch that is large enough to be efficient, tenants, priorities and
    requests share it (`deal`). Where there is less, those share it that are due before it gets
    tight, and what is due next follows in order. A batch ends before the earliest deadline, unless
    that is past.
    """
    if not ready:
        return []
    dues = [work.due - now for work in ready]
    most_s = min(MICRO_BATCH_S, dues[0]) if dues[0] > 0 else MICRO_BATCH_S
    free = len(ready)
    if costs.efficient_s <= slack_s < most_s:
        most_s = slack_s
    elif slack_s < most_s:
        free = free_to_choose([work.predicted_s for work in ready], dues, most_s)
        free = max(1, min(free, bisect_right(dues, others_due - now)))
    turns = [Turn(work.lengths_left, work.request.tenant, work.request.priority) for work in ready]
    limits = Limits(max_batch_tokens, most_s, costs.seconds, costs.share)
    dealt = deal(turns[:free], limits, served)
    if free < len(turns) and len(dealt) == sum(len(turn.lengths) for turn in turns[:free]):
        dealt += _following(turns, free, limits)
    if len(dealt) == sum(len(turn.lengths) for turn in turns):  # more that wait gain by size
        dealt = _split(turns, dealt, dues, costs)
    return [ready[index] for index in dealt]


def _following(turns: Sequence[Turn], taken: int, limits: Limits) -> list[int]:
    """What else fits in order of deadlines, where all of the first `taken` are in the batch."""
    lengths = [length for turn in turns[:taken] for length in turn.lengths]
    tokens, squares = sum(lengths), float(sum(length * length for length in lengths))
    found: list[int] = []
    for index in range(taken, len(turns)):
        for length in turns[index].lengths:
            tokens, squares = tokens + length, squares + length * length
            if tokens > limits.max_batch_tokens or limits.seconds(tokens, squares) > limits.max_s:
                return found
            found.append(index)
    return found


def _split(
    turns: Sequence[Turn], dealt: list[int], dues: Sequence[float], costs: CostTable
) -> list[int]:
    """The first of the batches into which all that waits is best split; all of it where a token
    costs about the same in any."""
    if costs.linear or not 1 < len(dealt) <= _MOST_SPLIT:
        return dealt
    following = [iter(turn.lengths) for turn in turns]
    lengths = [next(following[index]) for index in dealt]
    return dealt[: split(lengths, [dues[index] for index in dealt], costs.seconds_of)[0]]
