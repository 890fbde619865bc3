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


def shares(lengths: Sequence[Sequence[int]], max_batch_tokens: int) -> list[int]:
    """How many of each request's next sequences the next micro-batch takes, of at most
    `max_batch_tokens` tokens; `lengths` of the sequences each has left, one or more, the requests
    in order of arrival.

    Dealt out in rounds, one sequence to each request (Nagle, 1987), so that one of a single short
    sequence is not kept waiting by those of a hundred. One whose next sequence has no room waits
    for the next micro-batch. The first takes one in any case, so every request's turn comes.
    """
    taken = [0] * len(lengths)
    room = max_batch_tokens
    dealing = list(range(len(lengths)))
    while dealing:
        left = []
        for request in dealing:
            length = lengths[request][taken[request]]
            if length <= room or (request == 0 and not taken[0]):
                taken[request] += 1
                room -= length
                if taken[request] < len(lengths[request]):
                    left.append(request)
        dealing = left
    return taken


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
