"""What groups of beams take of a step: rows, pages for the forks after it, and of those that were
preempted what their beams had stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fusewire.engine.beam_rows import BeamRowsOf
from fusewire.engine.generation_sequence import GenerationSequence
from fusewire.engine.generation_step import Step
from fusewire.engine.kv_cache import KvCache


def beams_of(groups: Sequence[GenerationSequence], cache: KvCache) -> tuple[int, list[int]]:
    """(number of running beams, pages for each group's fork after the step); the list may be empty
    where none takes any."""
    first = groups[0].rows
    if isinstance(first, BeamRowsOf) and first.step.are_of(groups):
        rows = first.step
        return rows.tokens.size, rows.pages_for_forks(1)
    beams = sum(map(len, [group.rows for group in groups if group.rows is not None]))
    return beams, pages_for_forks(groups, cache)


def pages_for_forks(groups: Iterable[GenerationSequence], cache: KvCache) -> list[int]:
    """Pages to reserve for the fork after each group's step; none for a group whose prompt or pasts
    are stored in it, which has them already."""
    known: dict[tuple[int, int], int] = {}
    found = []
    for group in groups:
        rows = group.rows
        position = group.most_tokens if rows is None else rows.position
        if position + 2 >= group.most_tokens:  # no beam goes on
            found.append(0)
            continue
        key = position, group.beams
        if key not in known:
            known[key] = cache.beams.pages_for_fork(position + 1, group.beams)
        found.append(known[key])
    return found


def to_store(sequence: GenerationSequence) -> list[GenerationSequence]:
    """What is to be stored before a sequence goes on: its prompt, or what its beams had stored."""
    if not sequence.returning:
        return [sequence]
    return [past for past in sequence.returning if past.left and past.ready]


def returns(group: GenerationSequence, step: Step) -> bool:
    """Whether all that its beams had stored is stored after this step, and was not before."""
    planned = {chunk.sequence: chunk.tokens for chunk in step.prompts}
    return all(past.left == planned.get(past, 0) for past in group.returning)
