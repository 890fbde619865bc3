"""Which of the requests that wait run together: the policies of TurboTransformers' experiment. A
policy takes the lengths of those that wait, in order of arrival, and gives batches of their
indices, which run one after the other before it is asked again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Policy = Callable[[Sequence[int]], list[list[int]]]


def in_order(most: int) -> Policy:
    """As many as may, in order of arrival; 1: no batching."""
    return lambda lengths: [list(range(min(most, len(lengths))))]


class PaddedCosts:
    """Seconds of a padded batch by its longest sequence and its size, between those measured."""

    def __init__(self, lengths: Sequence[int], sizes: Sequence[int], seconds: NDArray) -> None:
        """`seconds` [lengths, sizes], both ascending; the last of each is the most there is."""
        by_size = [
            np.interp(np.arange(sizes[-1] + 1), sizes, each * 1.0) for each in np.asarray(seconds)
        ]
        columns = np.stack(by_size, 1)  # [size, measured length]
        self._seconds = np.stack(
            [np.interp(np.arange(lengths[-1] + 1), lengths, column) for column in columns], 1
        )

    def __call__(self, longest: int, size: int) -> float:
        return float(self._seconds[longest, size])


def dynamic_program(costs: Callable[[int, int], float], most: int) -> Policy:
    """The cheapest batches of all that wait, whose members are neighbours by length, the shortest
    first (Fang et al., TurboTransformers, PPoPP 2021, section 5): the best cost of the first i by
    length is the least, over the size of the last batch, of what came before it and its own.
    `costs(longest, size)`: seconds of a padded batch."""

    def batches(lengths: Sequence[int]) -> list[list[int]]:
        order = sorted(range(len(lengths)), key=lambda index: lengths[index])
        least, last = [0.0], [0]  # of the first i: the cost, and the size of their last batch
        for count, index in enumerate(order, 1):
            longest = lengths[index]
            cost, size = min(
                (least[count - size] + costs(longest, size), size)
                for size in range(1, min(most, count) + 1)
            )
            least.append(cost)
            last.append(size)
        found: list[list[int]] = []
        end = len(order)
        while end:
            found.insert(0, order[end - last[end] : end])
            end -= last[end]
        return found

    return batches
