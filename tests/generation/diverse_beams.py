"""Diverse beam search as in its paper (Vijayakumar et al., 2018, algorithm 1, Hamming diversity),
with the stopping rules of transformers 4.56 (BeamSearchScorer)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Text = tuple[int, ...]
Rows = NDArray[np.float32]  # [texts, vocabulary]


@dataclass(frozen=True)
class DiverseSearch:
    num_beams: int
    num_beam_groups: int
    diversity_penalty: float
    max_new_tokens: int
    eos: Sequence[int]
    length_penalty: float = 1.0
    early_stopping: bool | str = False

    @property
    def beams(self) -> int:
        """The number of beams of a group."""
        return self.num_beams // self.num_beam_groups

    def texts(
        self,
        log_probs: Callable[[list[Text]], Rows],
        process: Callable[[Rows, list[Text]], Rows] = lambda rows, texts: rows,
    ) -> list[tuple[float, Text]]:
        """Returns (score, text), best first. `process`: what is applied after the diversity
        penalty."""
        groups = [_Group([(0.0, ())], []) for _ in range(self.num_beam_groups)]
        for length in range(1, self.max_new_tokens + 1):
            taken: Counter[int] = Counter()
            for group in groups:
                if group.done:
                    continue
                texts = [text for _, text in group.live]
                rows = log_probs(texts)
                for token, times in taken.items():
                    rows[:, token] -= np.float32(self.diversity_penalty * times)
                self._step(group, process(rows, texts), length)
                taken.update(text[-1] for _, text in group.live)
        for group in groups:
            if not group.done:
                self._finish(group, group.live, self.max_new_tokens)
        return sorted((each for group in groups for each in group.finished), key=lambda f: -f[0])

    def _step(self, group: _Group, rows: Rows, length: int) -> None:
        sums = (rows + np.array([[score] for score, _ in group.live], np.float32)).reshape(-1)
        order = np.argsort(-sums, kind="stable")[: max(2, 1 + len(self.eos)) * self.beams]
        candidates = [
            (float(sums[at]), (*group.live[at // rows.shape[1]][1], int(at % rows.shape[1])))
            for at in order
            if np.isfinite(sums[at])
        ]
        first = candidates[: self.beams]
        self._finish(group, [each for each in first if each[1][-1] in self.eos], length)
        group.live = [each for each in candidates if each[1][-1] not in self.eos][: self.beams]
        if len(group.finished) == self.beams:
            longest = self.early_stopping == "never" and self.length_penalty > 0
            reach = self._score(candidates[0][0], self.max_new_tokens if longest else length)
            group.done = self.early_stopping is True or group.finished[-1][0] >= reach

    def _finish(self, group: _Group, texts: list[tuple[float, Text]], length: int) -> None:
        scored = [(self._score(total, length), text) for total, text in texts]
        group.finished = sorted(group.finished + scored, key=lambda f: -f[0])[: self.beams]

    def _score(self, total: float, length: int) -> float:
        return float(np.float32(total) / np.float32(length**self.length_penalty))


@dataclass
class _Group:
    live: list[tuple[float, Text]]  # sorted by their sums
    finished: list[tuple[float, Text]]
    done: bool = False
