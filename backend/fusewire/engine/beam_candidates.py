"""The candidates of a step: memory for what the kernel is told of each search and what it finds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.placement import Placement

# For a group in a step: `kernels.beam_candidates` sorts no more.
MOST_CANDIDATES = 2048
_ALIGNMENT = 8  # bytes


def forced(
    candidates: NDArray[np.int32], scores: NDArray[np.float32], tokens: Sequence[int]
) -> NDArray[np.int32]:
    """Forced tokens in place of `candidates` [4, searches, most]: each of the `tokens` after each
    beam, with the beam's score (`scores` [searches, beams]). A search whose logits were not finite
    keeps its own."""
    beams = scores.shape[1]
    count = min(beams * len(tokens), candidates.shape[2])
    found = np.full(candidates.shape, -1, np.int32)
    of_scores = found[0].view(np.float32)
    of_scores[:] = -np.inf
    of_scores[:, :count] = scores.repeat(len(tokens), axis=1)[:, :count]
    found[1] = 0  # the bits of 0.0 too
    found[2, :, :count] = np.arange(beams).repeat(len(tokens))[:count]
    found[3, :, :count] = np.tile(tokens, beams)[:count]
    broken = np.isnan(candidates[0].view(np.float32)[:, 0])
    found[:, broken] = candidates[:, broken]
    return found


class BeamCandidates:
    """Finds candidates of searches, wanted[i] for search i, whose beams are the rows offsets[i] to
    offsets[i + 1]. Memory is taken once for as many steps as these stay the same."""

    def __init__(
        self, place: Placement, offsets: NDArray[np.int32], wanted: NDArray[np.int32]
    ) -> None:
        self.offsets, self.wanted = offsets, wanted
        self._place = place
        searches, rows, most = len(wanted), int(offsets[-1]), int(wanted.max())
        ends = [0]
        for count in (searches + 1, searches, rows):
            ends.append(ends[-1] + -(-4 * count // _ALIGNMENT) * _ALIGNMENT)
        self._host = np.zeros(ends[-1], np.uint8)
        self._host[: offsets.nbytes].view(np.int32)[:] = offsets
        self._host[ends[1] : ends[1] + wanted.nbytes].view(np.int32)[:] = wanted
        self._scores = self._host[ends[2] : ends[2] + 4 * rows].view(np.float32)
        self._given = kernels.Tensor.from_numpy(self._host)
        self._there = place.empty(ends[-1], dtype="uint8")
        kernels.write(self._there, self._given, place.stream)
        self._inputs = [
            self._there.section(ends[0], [searches + 1], "int32"),
            self._there.section(ends[1], [searches], "int32"),
            self._there.section(ends[2], [rows], "float32"),
        ]
        self._out = place.empty(4, searches, most, dtype="int32")  # read in one piece
        self._outputs = [
            self._out.section(part * 4 * searches * most, [searches, most], dtype)
            for part, dtype in enumerate(("float32", "float32", "int32", "int32"))
        ]

    @property
    def scores(self) -> kernels.Tensor:
        """Scores of the beams, [rows], on the model's device: what `begin_there` reads."""
        return self._inputs[2]

    @property
    def found(self) -> list[kernels.Tensor]:
        """Scores, beams and tokens of the candidates found last, [searches, most] each, on the
        device."""
        scores, _, beams, tokens = self._outputs
        return [scores, beams, tokens]

    def fits(self, offsets: NDArray[np.int32]) -> bool:
        """Whether its rows have these offsets."""
        return self.offsets is offsets or (
            self.offsets.size == offsets.size and not (self.offsets != offsets).any()
        )

    def begin(
        self, logits: kernels.Tensor, scores: NDArray[np.float32], *, normalized: bool = False
    ) -> kernels.Readback:
        """Begins to find candidates by logits [rows, vocab] and the beams' scores. Reads back
        values int32 [4, searches, most]: scores and log_probs (the bits of float32), beams, tokens.
        `normalized`: logits are log-probabilities already."""
        self._scores[:] = scores
        kernels.write(self._there, self._given, self._place.stream)
        return self.begin_there(logits, normalized=normalized)

    def begin_there(self, logits: kernels.Tensor, *, normalized: bool = False) -> kernels.Readback:
        """As `begin`, by the `scores` that are on the device."""
        stream = self._place.stream
        kernels.beam_candidates(*self._outputs, logits, *self._inputs, normalized, stream)
        return self._place.readback(self._out)

    def find(
        self, logits: kernels.Tensor, scores: NDArray[np.float32], *, normalized: bool = False
    ) -> NDArray[np.int32]:
        """As `begin`, and waits for the values."""
        found: NDArray[np.int32] = self.begin(logits, scores, normalized=normalized).wait().numpy()
        return found
