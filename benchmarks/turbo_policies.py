"""Which of the requests that wait run together: the policies of TurboTransformers' experiment.

A policy takes the numbers of those that wait, in order of arrival, and the length of each number.
It gives batches of numbers, which run one after the other before it is asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

Policy = Callable[[Collection[int], Sequence[int]], list[list[int]]]
Costs = Callable[[int], NDArray[np.float64]]  # of the longest: seconds of a batch by its size


def in_order(most: int) -> Policy:
    """As many as may, in order of arrival; 1: no batching."""
    return lambda waiting, lengths: [list(islice(waiting, most))]


def measured(
    lengths: Sequence[int], sizes: Sequence[int], seconds: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Costs [0..longest, 0..most], linear between those measured, `seconds` [lengths, sizes]; both
    ascend to the most there is."""
    every_size = [np.interp(np.arange(sizes[-1] + 1), sizes, row) for row in seconds]
    columns = np.stack(every_size, 1)  # [size, measured length]
    return np.stack([np.interp(np.arange(lengths[-1] + 1), lengths, each) for each in columns], 1)


def dynamic_program(costs: Costs, most: int) -> Policy:
    """The cheapest batches of all that wait, whose members are neighbours by length, the shortest
    first (the batch scheduler of TurboTransformers, Fang et al., PPoPP 2021): the best cost of the
    first i by length is the least, over the size of the last batch, of what came before it and its
    own."""

    def batches(waiting: Collection[int], lengths: Sequence[int]) -> list[list[int]]:
        order = sorted(waiting, key=lengths.__getitem__)
        least = np.zeros(len(order) + 1)  # of the first i
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
