"""What a micro-batch costs, in seconds: measured where it will run, corrected while it runs.

A packed batch costs by its tokens (matrix products) and by the sum of its squared lengths
(attention): t(T, S) = base(T) + per_square * S. TurboTransformers (arXiv 2010.05680, section 5)
keeps a table by length and batch size, because it pads; without padding these two say it all.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

# A batch is efficient if a token costs at most this many times what it costs in the largest.
_EFFICIENT = 1.1
# Share that a ratio keeps of the seconds of batches before the last.
_DECAY = 0.9
# Seconds that a ratio starts with, as if they had been computed exactly as measured.
_PRIOR_S = 0.02
# Seconds that all batches so far count as, after a while without one.
_OLD_S = 0.005
# One batch counts as at most this many times its prediction: a machine that stood still says
# nothing about the next batch.
_MOST_OF_ONE = 4.0
_MOST_RATIO = 8.0  # and as little: a machine may have been busy while it was measured

_FEWEST_TOKENS = 16
_SHORT, _LONG = 64, 512  # lengths that tell the two costs apart
_WARM_RUNS = 2  # a GPU records a shape when it comes again
_TIMED_RUNS = 3
_SLOWEST_S = 0.5  # most seconds of a last, larger batch, which is timed once


class CostTable:
    """Seconds by tokens and squared lengths. The thread that computes corrects it, any reads it.

    Every measured point has a ratio of its own, of what batches of about its size took to what was
    measured: where small batches take longer, because of what the host does for each, large ones
    do not. Between two points a batch counts for both, for the nearer more.
    """

    def __init__(
        self,
        points: Sequence[tuple[int, float]] = (),
        per_square: float = 0.0,
        max_batch_tokens: int = 1 << 24,
    ) -> None:
        """`points`: (tokens, seconds without the squares' share), tokens ascending; made monotone.
        Without any everything costs nothing until a batch was observed, and from then on in
        proportion to its tokens, as those observed."""
        self._tokens = [tokens for tokens, _ in points]
        self._measured = list(accumulate((seconds for _, seconds in points), max))
        self._per_square = per_square
        self._most = max_batch_tokens
        self._learns = not points
        # For each point, since it was measured: what batches took, and what they were to take.
        self._actual_s = [_PRIOR_S] * len(points)
        self._expected_s = [_PRIOR_S] * len(points)
        self._seconds = self._measured  # corrected
        self._squares = [per_square] * len(points)  # corrected: seconds of a squared length of 1
        self._settle()

    @property
    def points(self) -> list[tuple[int, float]]:
        """(tokens, seconds) as measured."""
        return list(zip(self._tokens, self._measured, strict=True))

    @property
    def per_square(self) -> float:
        """Seconds of a squared length of 1, as measured."""
        return self._per_square

    def seconds(self, tokens: int, squares: float) -> float:
        """Seconds of a micro-batch of `tokens`, whose squared lengths sum to `squares`."""
        if not self._tokens:
            return 0.0
        left, right, part, beyond = self._place(tokens)
        seconds, each = self._seconds, self._squares
        base = seconds[left] + (seconds[right] - seconds[left]) * part
        return base * beyond + (each[left] + (each[right] - each[left]) * part) * squares

    def seconds_of(
        self, tokens: NDArray[np.float64], squares: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """As `seconds`, for arrays of micro-batches."""
        if not self._tokens:
            return np.zeros_like(tokens)
        base = np.interp(tokens, self._tokens, self._seconds)
        base *= np.maximum(1.0, tokens / self._tokens[-1])
        found: NDArray[np.float64] = base + squares * np.interp(tokens, self._tokens, self._squares)
        return found

    def share(self, tokens: float, squares: float) -> float:
        """Seconds that `tokens` and `squares` add to a batch of efficient size: what they cost
        while others wait."""
        return self._rate * tokens + self._rate_of_squares * squares

    @property
    def rates(self) -> tuple[float, float]:
        """Seconds that a token and a squared length of 1 add to a batch of efficient size."""
        return self._rate, self._rate_of_squares

    @property
    def efficient_s(self) -> float:
        """Seconds of the smallest batch that is about as fast per token as the largest."""
        return self._rate * self.efficient_tokens

    @property
    def largest_s(self) -> float:
        """Seconds of a batch of as many tokens as fit into one."""
        return self._base(self._most)

    @property
    def linear(self) -> bool:
        """Whether batches gain little by being large: then only memory bounds them."""
        return self.efficient_tokens <= _FEWEST_TOKENS * 16

    def observe(self, tokens: int, squares: float, seconds: float) -> None:
        """Corrects the costs by a micro-batch that took `seconds`."""
        if self._learns:
            self._learn(tokens, seconds)
            return
        left, right, part, beyond = self._place(tokens)
        base = self._measured[left] + (self._measured[right] - self._measured[left]) * part
        measured = base * beyond + self._per_square * squares
        seconds = min(seconds, _MOST_OF_ONE * self.seconds(tokens, squares))
        for point, weight in ((left, 1.0 - part), (right, part)):
            kept = 1.0 - (1.0 - _DECAY) * weight
            self._actual_s[point] = kept * self._actual_s[point] + weight * seconds
            self._expected_s[point] = kept * self._expected_s[point] + weight * measured
        ratios = [
            min(max(actual / expected, 1 / _MOST_RATIO), _MOST_RATIO)
            for actual, expected in zip(self._actual_s, self._expected_s, strict=True)
        ]
        corrected = (s * ratio for s, ratio in zip(self._measured, ratios, strict=True))
        self._seconds = list(accumulate(corrected, max))
        self._squares = [self._per_square * ratio for ratio in ratios]
        self._price()

    def forget(self) -> None:
        """Lets the next batches count for more than those before: nothing was computed for a
        while."""
        for point, expected in enumerate(self._expected_s):
            if expected > _OLD_S:
                self._actual_s[point] *= _OLD_S / expected
                self._expected_s[point] = _OLD_S

    def _learn(self, tokens: int, seconds: float) -> None:
        """Learns the rate of the last batches, where nothing was measured."""
        if self._tokens:
            seconds = min(seconds, _MOST_OF_ONE * self.seconds(tokens, 0))
            tokens += int(_DECAY * self._tokens[1])
            seconds += _DECAY * self._seconds[1]
        self._tokens, self._squares = [0, tokens], [0.0, 0.0]
        self._measured = self._seconds = [0.0, seconds]
        self._settle()

    def _settle(self) -> None:
        """Finds the efficient size."""
        self.efficient_tokens = 1
        if self._tokens:
            most = min(self._most, self._tokens[-1])
            best = _EFFICIENT * self._base(most) / most
            sizes = [tokens for tokens in self._tokens if 0 < tokens < most]
            fast = (tokens for tokens in sizes if self._base(tokens) <= best * tokens)
            self.efficient_tokens = next(fast, most)
        self._price()

    def _price(self) -> None:
        """Finds what tokens and squares cost at the efficient size."""
        size = self.efficient_tokens
        self._rate = self._base(size) / size
        self._rate_of_squares = self.seconds(size, 1.0) - self._base(size)

    def _base(self, tokens: int) -> float:
        return self.seconds(tokens, 0.0)

    def _place(self, tokens: float) -> tuple[int, int, float, float]:
        """(the points left and right, the part of the way from the one to the other, how many times
        as many tokens as the last point has). Between two points linear; below the first as it;
        beyond the last in proportion."""
        at = bisect_left(self._tokens, tokens)
        if at == len(self._tokens):
            return at - 1, at - 1, 0.0, tokens / self._tokens[-1]
        if at == 0:
            return 0, 0, 0.0, 1.0
        begin = self._tokens[at - 1]
        return at - 1, at, (tokens - begin) / (self._tokens[at] - begin), 1.0


def measure(
    run: Callable[[Sequence[int]], None],
    max_tokens: int,
    max_length: int,
    budget_s: float = 0.4,
    clock: Callable[[], float] = time.perf_counter,
    *,
    length: int | None = None,
    fewest: int = _FEWEST_TOKENS,
) -> CostTable:
    """Times batches of doubling size, from `fewest` tokens on, until `max_tokens` or until
    `budget_s` would be exceeded, and one long sequence, which shows what squares cost. `run`:
    computes a batch of sequences of these lengths and returns when it is done. `length`: that of
    all sequences, where they have but one, as images; then squares grow with the tokens, and cost
    nothing of their own."""
    began = clock()

    def timed(lengths: Sequence[int]) -> float:
        times = []
        for _ in range(_WARM_RUNS + _TIMED_RUNS):
            start = clock()
            run(lengths)
            times.append(clock() - start)
            if sum(times[1:]) > budget_s / 8:  # one that warms up, one that counts
                break
        return min(times)

    unit = length or 1  # one sequence runs alone, however long it is
    most = max(max_tokens // unit, 1) * unit
    short = length or min(_SHORT, max_length)
    tokens = length or min(fewest, max_tokens)
    run([min(tokens, max_length)])  # weights are read for the first time
    found: dict[int, tuple[float, int]] = {}  # tokens -> (seconds, squares)
    while True:
        lengths = _cut(tokens, short)
        found[tokens] = timed(lengths), sum(length * length for length in lengths)
        following = min(2 * tokens, most)
        # It takes twice as long, two times at least.
        if following == tokens or clock() - began + 4 * found[tokens][0] > budget_s:
            break
        tokens = following
    # A slow model has a size at which tokens are cheap, too: the largest that takes little.
    larger = min(_LONG, most, int(tokens * max(1.0, _SLOWEST_S / found[tokens][0])))
    larger -= larger % unit
    if tokens < larger:
        tokens, lengths = larger, _cut(larger, short)
        start = clock()
        run(lengths)
        found[tokens] = clock() - start, sum(length * length for length in lengths)
    per_square = 0.0
    long = min(_LONG, max_length, tokens)
    if length is None and long > short:
        plain = CostTable([(size, seconds) for size, (seconds, _) in found.items()])
        squares = sum(length * length for length in _cut(long, short))
        extra = timed([long]) - plain.seconds(long, 0)
        # What another program took meanwhile is no attention, which costs less than all the rest.
        most_each = plain.seconds(long, 0) / (long * _LONG)
        per_square = min(max(0.0, extra / (long * long - squares)), most_each)
    points = [
        (size, max(seconds - per_square * squares, seconds / 2))
        for size, (seconds, squares) in found.items()
    ]
    return CostTable(points, per_square, max_tokens)


def _cut(tokens: int, length: int) -> list[int]:
    """Sequences of `length`, the last one shorter."""
    return [length] * (tokens // length) + [tokens % length] * bool(tokens % length)
