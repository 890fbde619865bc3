"""Which modules the `targets` and `ignore` of compressed-tensors name: one module, a class of
modules (Linear), or all modules whose names a regular expression (`re:...`) matches.

A pattern comes with the folder, so one that could take very long to match is refused.
"""

from __future__ import annotations

import math
import re

from fusewire.weights.quantized.settings import Settings, fault

_PATTERN = "re:"
_MOST_REPEATS = 6
_MOST_STEPS = 50_000_000  # to match a name: some seconds


def is_pattern(target: str) -> bool:
    return target.startswith(_PATTERN)


def is_class(target: str) -> bool:
    """Whether it names a class of modules."""
    return not is_pattern(target) and "." not in target and target[:1].isupper()


def check_target(target: str, settings: Settings) -> None:
    """CheckpointError for a pattern that is wrong, or could take very long: one that repeats a
    group (blanks could hide it in a verbose pattern), or repeats much."""
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
    """Whether it names this module, by its name or a pattern. CheckpointError where matching could
    take too long."""
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
    """The most ways that matching a name of this length can try, where no group is repeated: of
    splitting it among the repeats, of taking optional parts or not, and of alternatives."""
    repeats = len(re.findall(r"[*+{]", pattern))
    alternatives = math.prod(1 + part.count("|") for part in pattern.split(")"))
    return math.comb(length + repeats, repeats) * alternatives << pattern.count("?")
