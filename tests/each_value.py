"""Selects the cases of parametrised tests that have a new value: `pytest --each-value`.

For repeated runs, with the module of another compiler or another version of a library: each value
of each parameter is tested once on each target, instead of all combinations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import pytest


def chosen(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """Yields the items with a parameter value that no earlier case of the same test has."""
    seen: defaultdict[str, set[tuple]] = defaultdict(set)
    for item in items:
        test = item.nodeid.partition("[")[0]
        values = _values(item)
        if not values <= seen[test]:
            seen[test] |= values
            yield item


def _values(item: pytest.Item) -> set[tuple]:
    """The values of an item's parameters, by identity: not all are hashable, and cases share
    them."""
    given = item.callspec.params if hasattr(item, "callspec") else {}
    # What needs a GPU may be skipped, and stands for nothing that does not.
    target = id(given.get("place")), item.get_closest_marker("gpu") is not None
    return {target, *((target, name, id(value)) for name, value in given.items())}
