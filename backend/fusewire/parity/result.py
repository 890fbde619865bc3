"""What a comparison found, and what passes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fusewire.errors import ConfigurationError
from fusewire.parity.agreement import Difference


@dataclass(frozen=True)
class Floors:
    """What is to be left of the reference's quality; None: not asked for. Any of them takes the
    place of the default tolerance."""

    min_cosine: float | None = None  # of every row of every result
    max_perplexity_ratio: float | None = None
    max_spearman_loss: float | None = None

    @property
    def given(self) -> bool:
        return any(value is not None for value in vars(self).values())

    def check(self, *, perplexity: bool, pairs: bool) -> None:
        """ConfigurationError for a floor of what is not measured."""
        for name, measured, remedy in (
            ("max_perplexity_ratio", perplexity, "texts, and a model that continues texts"),
            ("max_spearman_loss", pairs, "pairs, and a model that embeds texts"),
        ):
            if getattr(self, name) is not None and not measured:
                raise ConfigurationError(
                    f"{name}: got {getattr(self, name)} where it is not measured, wanted {remedy}; "
                    "give these, or leave it out"
                )


@dataclass(frozen=True)
class Parity:
    """How far a model is from its reference. A value that the model and the input have none of is
    None; perplexities are of given texts, Spearman's correlations of given pairs."""

    architecture: str
    task: str
    dtype: str
    against: str  # what it was compared with
    sequences: int
    tokens: int  # of the input
    differences: Mapping[str, Difference]  # by result name
    allowed: Mapping[str, float]  # result name -> how large the largest may be; none: any size
    floors: Floors
    greedy_tokens: int = 0  # that a decoder wrote or read
    greedy_equal: int = 0  # those where both find the same one the likeliest
    kl_divergence: float | None = None  # nats a token, of the reference's next token from ours
    perplexity: float | None = None
    reference_perplexity: float | None = None
    spearman: float | None = None  # of cosines with the gold scores
    reference_spearman: float | None = None

    @property
    def largest(self) -> float:
        """Difference of any result; NaN where there is one."""
        worst = [each.largest for each in self.differences.values()]
        return math.nan if any(map(math.isnan, worst)) else max(worst)

    @property
    def perplexity_ratio(self) -> float | None:
        """Ours to the reference's."""
        if self.perplexity is None or self.reference_perplexity is None:
            return None
        return self.perplexity / self.reference_perplexity

    @property
    def spearman_loss(self) -> float | None:
        """The reference's less ours."""
        if self.spearman is None or self.reference_spearman is None:
            return None
        return self.reference_spearman - self.spearman

    @property
    def failures(self) -> list[str]:
        """What does not pass, in words."""
        found = []
        for name, each in self.differences.items():
            allowed = self.allowed.get(name)
            if not math.isfinite(each.largest):
                found.append(f"{name}: got {each.largest}, wanted numbers")
            elif allowed is not None and not each.largest <= allowed:
                found.append(
                    f"{name}: largest difference: got {each.largest:.2e}, wanted at most "
                    f"{allowed:.2e}"
                )
            least = self.floors.min_cosine
            if least is not None and not each.least_cosine >= least:
                found.append(
                    f"{name}: least cosine: got {each.least_cosine:.6f}, wanted at least {least}"
                )
        for name in ("perplexity_ratio", "spearman_loss"):
            most, value = getattr(self.floors, f"max_{name}"), getattr(self, name)
            if most is not None and not value <= most:
                found.append(f"{name}: got {value:.6f}, wanted at most {most}")
        return found

    @property
    def passed(self) -> bool:
        return not self.failures

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which cannot write infinity and NaN: they become None."""
        found: dict[str, Any] = _finite(
            {
                **asdict(self),
                "perplexity_ratio": self.perplexity_ratio,
                "spearman_loss": self.spearman_loss,
            }
        )
        return {**found, "passed": self.passed}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
