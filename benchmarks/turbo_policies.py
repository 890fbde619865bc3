"""Which of the waiting requests run together: the policies of TurboTransformers' experiment.

A policy takes the numbers of the waiting requests, in order of arrival, and the length of each. It
returns batches of numbers, which run one after the other before it is called again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

Policy = Callable[[Collection[int], Sequence[int]], list[list[int]]]
Costs = Callable[[int], NDArray[np.float64]]  # longest length -> seconds of a batch by its size


def in_order(most: int) -> Policy:
    """Returns the policy of batches in order of arrival, at most `most` requests each; 1: no
    batching."""
    return lambda waiting, lengths: [list(islice(waiting, most))]


def measured(
    lengths: Sequence[int], sizes: Sequence[int], seconds: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Returns costs [0..longest, 0..most], linearly interpolated between the measured `seconds`
    [lengths, sizes]; both ascend to their maximum."""
    every_size = [np.interp(np.arange(sizes[-1] + 1), sizes, row) for row in seconds]
    columns = np.stack(every_size, 1)  # [size, measured length]
    return np.stack([np.interp(np.arange(lengths[-1] + 1), lengths, each) for each in columns], 1)


def dynamic_program(costs: Costs, most: int) -> Policy:
    """Returns the policy with the cheapest batches of all waiting requests, whose members are
    neighbours by length, the shortest first (the batch scheduler of TurboTransformers, Fang et al.,
    PPoPP 2021): the minimal cost of the first i by length is the minimum, over the size of the last
    batch, of the cost of those before it and its own."""

    def batches(waiting: Collection[int], lengths: Sequence[int]) -> list[list[int]]:
        order = sorted(waiting, key=lengths.__getitem__)
        least = np.zeros(len(order) + 1)  # minimal cost of the first i
        last = [0] * (len(order) + 1)  # the size of their last batch
        for count, number in enumerate(order, 1):
            sizes = min(most, count)
            before = least[count - sizes : count][::-1]
            every = before + costs(lengths[number])[1 : sizes + 1]
            last[count] = 1 + int(every.argmin())
            least[count] = every[last[count] - 1]
        found: list[list[int]] = []
        end = len(order)
        while end:
            found.append(order[end - last[end] : end])
            end -= last[end]
        return found[::-1]

    return batches
