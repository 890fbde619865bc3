"""Which sequences run together: pure policy, no kernels.

Kernels without padding cost the same per token whatever lengths meet in a batch, so the only limit
worth planning for is memory: a budget of tokens. (Grouping by like lengths, as TurboTransformers'
dynamic program does, pays where batches are padded to their longest member; nothing here is.)
"""

from __future__ import annotations

from collections.abc import Sequence


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
