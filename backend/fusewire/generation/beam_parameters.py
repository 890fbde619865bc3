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
        description="Beam search with this many beams, as Hugging Face's; 1: none. Default: the "
        "folder's, unless the request samples or names what does not go with beams. "
        "`use_beam_search: true`, as in vLLM: best_of or n of them.",
    )
    length_penalty: Real = Field(
        default=1.0,
        ge=LEAST_LENGTH_PENALTY,
        le=MOST_LENGTH_PENALTY,
        description="With beams: texts rank by the sum of their log-probabilities divided by their "
        "number of tokens to this power, the end-of-sequence token counted. 0: by the sum; above: "
        "longer texts gain. Default: the folder's.",
    )
    early_stopping: Annotated[bool | Literal["never"], flag_or("never")] = Field(
        default=False,
        description="With beams, when num_beams texts are found: true: end. false: end unless "
        'a beam at its present length could still be among the best. "never": unless it could '
        "at any length. Default: the folder's.",
    )
    num_beam_groups: Whole = Field(
        default=1,
        ge=1,
        le=MOST_BEAMS,
        description="With beams: this many groups of num_beams / num_beam_groups search by "
        "themselves (diverse beam search), as in transformers 4.56. 1: none. Default: the "
        "folder's.",
    )
    diversity_penalty: Real = Field(
        default=0.0,
        ge=0,
        le=100,
        description="With num_beam_groups: subtracted from a token's log-probability for each "
        "beam of an earlier group that took it in the same step; refused without. Default: the "
        "folder's.",
    )
    patience: Real = Field(
        default=1.0,
        gt=0,
        le=MOST_PATIENCE,
        description="With beams: a search waits for round(num_beams * patience) finished texts "
        "where it else waits for num_beams, as CTranslate2's (Kasai et al., 2022); with groups for "
        "as many of each.",
    )
    renormalize_logits: Flag = Field(
        default=False,
        description="With beams: log-probabilities are normalised again after biases, bans and "
        "penalties. Default: the folder's.",
    )

    @property
    def searches(self) -> bool:
        """Whether by beam search."""
        return self.num_beams > 1
