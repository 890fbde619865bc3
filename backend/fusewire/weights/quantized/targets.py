"""Matches modules with the `targets` and `ignore` of compressed-tensors: the name of a module, a
class of modules (Linear), or a regular expression of names (`re:...`).

Patterns come with the folder, so one that could take very long to match is refused.
"""

from __future__ import annotations

import math
import re

from fusewire.weights.quantized.settings import Settings, fault

_PATTERN = "re:"
_MOST_REPEATS = 6
_MOST_STEPS = 50_000_000  # to match a name; takes some seconds


def is_pattern(target: str) -> bool:
    return target.startswith(_PATTERN)


def is_class(target: str) -> bool:
    """Whether the target names a class of modules."""
    return not is_pattern(target) and "." not in target and target[:1].isupper()


def check_target(target: str, settings: Settings) -> None:
    """Raises CheckpointError for a pattern that is invalid, or could take very long: one that
    repeats a group (which whitespace could hide in a verbose pattern), or has too many repeats."""
    pattern = target.removeprefix(_PATTERN)
    if is_pattern(target):
        try:
            re.compile(pattern)
            ok = not re.search(r"\)[*+{]|\s", pattern)
            ok &= len(re.findall(r"[*+{]", pattern)) <= _MOST_REPEATS
        except (re.error, RecursionError, OverflowError):
            ok = False
        if not ok:
            raise fault(
                f"{settings.path}: targets or ignore",
                target,
                "a regular expression without blanks that repeats no group, and at most "
                f"{_MOST_REPEATS} times",
            )


def matches(name: str, target: str) -> bool:
    """Whether the target matches this module, by its name or by a pattern. Raises CheckpointError
    if matching could take too long."""
    if not is_pattern(target):
        return name == target
    pattern = target.removeprefix(_PATTERN)
    if _steps(pattern, len(name)) > _MOST_STEPS:
        raise fault(
            "quantization_config: targets or ignore",
            target,
            f"a regular expression with fewer choices, for a name of {len(name)} characters",
        )
    return re.match(pattern, name) is not None


def _steps(pattern: str, length: int) -> int:
    """Returns an upper bound of the ways that matching a name of this length can try, if no group
    is repeated: of splitting it among the repeats, of taking optional parts or not, and of
    alternatives."""
    repeats = len(re.findall(r"[*+{]", pattern))
    alternatives = math.prod(1 + part.count("|") for part in pattern.split(")"))
    return math.comb(length + repeats, repeats) * alternatives << pattern.count("?")
