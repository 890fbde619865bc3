"""The texts of the load, seeded: sentences of very different lengths, as real traffic has."""

from __future__ import annotations

import random

_WORDS = (  # noqa: SIM905  a list of literals would be a line a word
    "server batch token river light morning engine answer paper garden winter signal cloud "
    "market number winding harbour letter question memory bridge silver music planet quick "
    "brown careful distant gentle heavy open quiet sudden usual yellow carry follow gather "
    "listen measure notice prefer remember travel whisper above across beneath during toward"
).split()


def texts(count: int, seed: int, longest: int = 120) -> list[str]:
    """`count` texts of 1 to `longest` words, short ones as often as long ones."""
    draw = random.Random(seed)
    # Evenly on a logarithmic scale: most are short, some are long.
    lengths = [round(longest ** draw.random()) for _ in range(count)]
    return [" ".join(draw.choices(_WORDS, k=length)) for length in lengths]
