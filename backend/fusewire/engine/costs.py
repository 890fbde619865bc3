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

# A batch is efficient from where a token costs at most so much more than in the largest.
_EFFICIENT = 1.1
# Of predicted seconds, what the ratio remembers of the batches before the last.
_DECAY = 0.9
# The ratio starts as if so much had been computed exactly as predicted.
_PRIOR_S = 0.02
# One batch counts as at most so many times its prediction: a machine that stood still says nothing
# about the next batch.
_MOST_OF_ONE = 4.0
_MOST_RATIO = 8.0  # and as little: a machine may have been busy while it was measured

_FEWEST_TOKENS = 16
_SHORT, _LONG = 64, 512  # lengths that tell the two costs apart
_WARM_RUNS = 2  # a GPU records a shape when it comes again
_TIMED_RUNS = 3
_SLOWEST_S = 0.5  # of a last, larger batch, which is timed once


class CostTable:
    """Seconds by tokens and squared lengths. The thread that computes corrects it, any reads it."""

    def __init__(
        self,
        points: Sequence[tuple[int, float]] = (),
        per_square: float = 0.0,
        max_batch_tokens: int = 1 << 24,
    ) -> None:
        """`points`: (tokens, seconds without the squares' share), tokens ascending; made
        monotone. None: everything costs nothing until a batch was observed, and from then on in
        proportion to its tokens as those that were."""
        self._tokens = [tokens for tokens, _ in points]
        self._seconds = list(accumulate((seconds for _, seconds in points), max))
        self._per_square = per_square
        self._most = max_batch_tokens
        self._measured = bool(points)
        self._actual_s = self._predicted_s = _PRIOR_S
        self.ratio = 1.0  # of observed to measured seconds
        self._settle()

    @property
    def points(self) -> list[tuple[int, float]]:
        """(tokens, seconds) as measured."""
        return list(zip(self._tokens, self._seconds, strict=True))

    @property
    def per_square(self) -> float:
        """Seconds of a squared length of 1, as measured."""
        return self._per_square

    def seconds(self, tokens: int, squares: float) -> float:
        """Of a micro-batch of `tokens`, whose squared lengths sum to `squares`."""
        return self.ratio * (self._base(tokens) + self._per_square * squares)

    def seconds_of(
        self, tokens: NDArray[np.float64], squares: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """As `seconds`, of many micro-batches."""
        if not self._tokens:
            return np.zeros_like(tokens)
        base = np.interp(tokens, self._tokens, self._seconds)
        base *= np.maximum(1.0, tokens / self._tokens[-1])
        return self.ratio * (base + self._per_square * squares)

    def share(self, tokens: float, squares: float) -> float:
        """The seconds that these add to a batch of efficient size: what they cost while others
        wait."""
        return self.ratio * (self._rate * tokens + self._per_square * squares)

    @property
    def efficient_s(self) -> float:
        """Seconds of the smallest batch that is about as fast per token as the largest."""
        return self.ratio * self._base(self.efficient_tokens) if self._tokens else 0.0

    @property
    def linear(self) -> bool:
        """Whether batches gain little by being large: then only memory bounds them."""
        return self.efficient_tokens <= _FEWEST_TOKENS * 16

    def observe(self, tokens: int, squares: float, seconds: float) -> None:
        """A micro-batch was computed in so many seconds."""
        if not self._measured:
            self._learn(tokens, seconds)
            return
        measured = self._base(tokens) + self._per_square * squares
        most = _MOST_OF_ONE * self.ratio * measured
        self._actual_s = _DECAY * self._actual_s + min(seconds, most)
        self._predicted_s = _DECAY * self._predicted_s + measured
        ratio = self._actual_s / self._predicted_s
        self.ratio = min(max(ratio, 1 / _MOST_RATIO), _MOST_RATIO)

    def _learn(self, tokens: int, seconds: float) -> None:
        """Where nothing was measured: the rate of the last batches."""
        if self._tokens:
            seconds = min(seconds, _MOST_OF_ONE * self._base(tokens))
            tokens += int(_DECAY * self._tokens[1])
            seconds += _DECAY * self._seconds[1]
        self._tokens, self._seconds = [0, tokens], [0.0, seconds]
        self._settle()

    def _settle(self) -> None:
        """Finds the efficient size, and what a token costs at it."""
        self.efficient_tokens, self._rate = 1, 0.0
        if not self._tokens:
            return
        most = min(self._most, self._tokens[-1])
        best = _EFFICIENT * self._base(most) / most
        sizes = [tokens for tokens in self._tokens if 0 < tokens < most]
        fast = (tokens for tokens in sizes if self._base(tokens) <= best * tokens)
        self.efficient_tokens = next(fast, most)
        self._rate = self._base(self.efficient_tokens) / self.efficient_tokens

    def _base(self, tokens: float) -> float:
        """Between two points linear; below the first as it; beyond the last in proportion."""
        at = bisect_left(self._tokens, tokens)
        if at == len(self._tokens):
            return self._seconds[-1] * tokens / self._tokens[-1] if at else 0.0
        if at == 0:
            return self._seconds[0]
        left, right = self._tokens[at - 1], self._tokens[at]
        below, above = self._seconds[at - 1], self._seconds[at]
        return below + (above - below) * (tokens - left) / (right - left)


def measure(
    run: Callable[[Sequence[int]], None],
    max_tokens: int,
    max_length: int,
    budget_s: float = 0.4,
    clock: Callable[[], float] = time.perf_counter,
) -> CostTable:
    """Times batches of doubling size until `max_tokens` or until `budget_s` would be exceeded, and
    one long sequence, which shows what squares cost. `run`: computes a batch of sequences of these
    lengths and returns when it is done."""
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

    run([min(_FEWEST_TOKENS, max_tokens, max_length)])  # weights are read for the first time
    short = min(_SHORT, max_length)
    found: dict[int, tuple[float, int]] = {}  # tokens -> (seconds, squares)
    tokens = min(_FEWEST_TOKENS, max_tokens)
    while True:
        lengths = _cut(tokens, short)
        found[tokens] = timed(lengths), sum(length * length for length in lengths)
        following = min(2 * tokens, max_tokens)
        # It takes twice as long, two times at least.
        if following == tokens or clock() - began + 4 * found[tokens][0] > budget_s:
            break
        tokens = following
    # A slow model has a size at which tokens are cheap, too: the largest that takes little.
    larger = min(_LONG, max_tokens, int(tokens * max(1.0, _SLOWEST_S / found[tokens][0])))
    if tokens < larger:
        tokens, lengths = larger, _cut(larger, short)
        start = clock()
        run(lengths)
        found[tokens] = clock() - start, sum(length * length for length in lengths)
    per_square = 0.0
    long = min(_LONG, max_length, tokens)
    if long > short:
        plain = CostTable([(size, seconds) for size, (seconds, _) in found.items()])
        squares = sum(length * length for length in _cut(long, short))
        extra = timed([long]) - plain.seconds(long, 0)
        # What another program took meanwhile is no attention, which costs less than all the rest.
        most = plain.seconds(long, 0) / (long * _LONG)
        per_square = min(max(0.0, extra / (long * long - squares)), most)
    points = [
        (size, max(seconds - per_square * squares, seconds / 2))
        for size, (seconds, squares) in found.items()
    ]
    return CostTable(points, per_square, max_tokens)


def _cut(tokens: int, length: int) -> list[int]:
    """Sequences of `length`, the last one shorter."""
    return [length] * (tokens // length) + [tokens % length] * bool(tokens % length)
