"""Beam search, as Hugging Face has it: how many texts, how they rank, when a search ends."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from fusewire.text.written import Flag, Real, Whole, flag_or

# Rows of every step; of each step twice as many candidates, or more.
MOST_BEAMS = 512
# Finished texts that a search keeps, in multiples of its beams: they are sorted at every step.
MOST_PATIENCE = 16
# Powers of a length: neither 0 nor infinite at any length, in float64 where float32 has none.
LEAST_LENGTH_PENALTY = -5
MOST_LENGTH_PENALTY = 10


class BeamParameters(BaseModel):
    """Parameters that have an effect with beams alone, and their number."""

    num_beams: Whole = Field(
        default=1,
        ge=1,
        le=MOST_BEAMS,
        description="Number of beams for beam search, as in Hugging Face; 1: no beam search. "
        "Default: the folder's, unless the request samples or sets a parameter that beam search "
        "does not support. `use_beam_search: true`, as in vLLM, takes best_of or n as the number.",
    )
    length_penalty: Real = Field(
        default=1.0,
        ge=LEAST_LENGTH_PENALTY,
        le=MOST_LENGTH_PENALTY,
        description="Beam search: sequences are ranked by the sum of their log-probabilities "
        "divided by their length to this power; the length includes the end-of-sequence token. 0: "
        "by the sum; larger values favour longer sequences. Default: the folder's.",
    )
    early_stopping: Annotated[bool | Literal["never"], flag_or("never")] = Field(
        default=False,
        description="Beam search: whether to stop when num_beams sequences are finished. true: "
        "stop. false: stop unless a beam could still be among the best at its current length. "
        '"never": stop unless it could at any length. Default: the folder\'s.',
    )
    num_beam_groups: Whole = Field(
        default=1,
        ge=1,
        le=MOST_BEAMS,
        description="Diverse beam search: number of groups, each of which searches with num_beams "
        "/ num_beam_groups beams, as in transformers 4.56. 1: off. Default: the folder's.",
    )
    diversity_penalty: Real = Field(
        default=0.0,
        ge=0,
        le=100,
        description="Diverse beam search: subtracted from a token's log-probability for each beam "
        "of an earlier group that took it in the same step; needs num_beam_groups. Default: the "
        "folder's.",
    )
    patience: Real = Field(
        default=1.0,
        gt=0,
        le=MOST_PATIENCE,
        description="Beam search: a search waits for round(num_beams * patience) finished "
        "sequences instead of num_beams, as in CTranslate2 (Kasai et al., 2022); with groups, "
        "each group for as many of its own.",
    )
    renormalize_logits: Flag = Field(
        default=False,
        description="Beam search: normalise log-probabilities again after biases, bans and "
        "penalties. Default: the folder's.",
    )

    @property
    def searches(self) -> bool:
        """Whether by beam search."""
        return self.num_beams > 1
