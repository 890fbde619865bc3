"""Stop strings in a growing text: found across the borders of pieces, never leaked into the output.

An Aho-Corasick automaton ("Efficient string matching: an aid to bibliographic search", 1975) reads
each character once, however many strings there are. Its state is the longest end of the text that
could begin a stop string, which is exactly what must be held back.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """The automaton of a request's stop strings, shared by all of its sequences.

    State 0 is the empty beginning; `depth[state]` is how many characters the state stands for.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        """`strings`: none of them empty; no strings: nothing ever matches."""
        if "" in strings:
            raise ValueError("stop strings: got an empty string, wanted at least 1 character each")
        self._next: list[dict[str, int]] = [{}]
        self._count = len(strings)
        self.depth = [0]
        # The longest stop string that is an end of the state's characters; 0: none is.
        self.match_length = [0]
        for string in strings:
            self._add(string)
        self.beginnings = self._next[0].keys()  # first characters
        self._fail = [0] * len(self.depth)
        self._link()

    def __len__(self) -> int:
        return self._count

    def step(self, state: int, character: str) -> int:
        """The state after one more character. Amortised constant time over a text."""
        while state and character not in self._next[state]:
            state = self._fail[state]
        return self._next[state].get(character, 0)

    def _add(self, string: str) -> None:
        state = 0
        for character in string:
            if character not in self._next[state]:
                self._next[state][character] = len(self.depth)
                self._next.append({})
                self.depth.append(self.depth[state] + 1)
                self.match_length.append(0)
            state = self._next[state][character]
        self.match_length[state] = len(string)

    def _link(self) -> None:
        """Breadth first, so that a state's failure (its longest proper end that is a state too) is
        complete before it is asked for."""
        level = list(self._next[0].values())
        while level:
            below = []
            for state in level:
                self.match_length[state] = max(
                    self.match_length[state], self.match_length[self._fail[state]]
                )
                for character, child in self._next[state].items():
                    self._fail[child] = self.step(self._fail[state], character)
                    below.append(child)
            level = below


class StopMatcher:
    """Reads one sequence's text piece by piece and lets out what is certain to stay.

    The text stops where a stop string is first complete; of several that end there the longest
    counts. So the result does not depend on how the text was cut into pieces.
    """

    def __init__(self, strings: StopStrings, *, include_stop: bool = False) -> None:
        """`include_stop`: the stop string that was found belongs to the output."""
        self.strings = strings
        self._include_stop = include_stop
        self._state = 0
        self._held = ""  # as long as depth[state]
        self.matched: str | None = None

    def feed(self, piece: str) -> str:
        """What of the text so far may be let out now. Once `matched` is set, nothing more is."""
        if self.matched is not None:
            return ""
        if not self._state and self.strings.beginnings.isdisjoint(piece):
            return piece
        text = self._held + piece
        state = self._state
        for index, character in enumerate(piece, start=len(self._held) + 1):
            state = self.strings.step(state, character)
            if length := self.strings.match_length[state]:
                self.matched = text[index - length : index]
                self._held = ""
                return text[: index if self._include_stop else index - length]
        self._state = state
        certain = len(text) - self.strings.depth[state]
        self._held = text[certain:]
        return text[:certain]

    def pass_through(self, piece: str) -> str:
        """Lets text out in which no stop string counts, not even its beginning: that of the first
        `min_new_tokens` tokens, before anything was fed."""
        self._state = 0
        released, self._held = self._held + piece, ""
        return released

    def flush(self) -> str:
        """At the end of generation: what was held back and did not become a stop string."""
        released, self._held, self._state = self._held, "", 0
        return released
