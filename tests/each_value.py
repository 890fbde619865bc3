"""Of a parametrised test the cases that bring something new: `pytest --each-value`.

For a run that repeats tests which have run already, with another compiler's module or another
version of a library: each value of each parameter is tested once on each target, and not in all
combinations with the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import pytest


def chosen(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """Those with a value that no case of the same test before them has."""
    seen: defaultdict[str, set[tuple]] = defaultdict(set)
    for item in items:
        test = item.nodeid.partition("[")[0]
        values = _values(item)
        if not values <= seen[test]:
            seen[test] |= values
            yield item


def _values(item: pytest.Item) -> set[tuple]:
    """A value is known by its identity: not all are hashable, and cases share them."""
    given = item.callspec.params if hasattr(item, "callspec") else {}
    # What needs a GPU may be skipped, and stands for nothing that does not.
    target = id(given.get("place")), item.get_closest_marker("gpu") is not None
    return {target, *((target, name, id(value)) for name, value in given.items())}
