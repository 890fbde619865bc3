"""The result of a comparison, and what passes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fusewire.errors import ConfigurationError
from fusewire.parity.agreement import Difference


@dataclass(frozen=True)
class Floors:
    """The quality to be kept, relative to the reference; None: no requirement. Any of them replaces
    the default tolerance."""

    min_cosine: float | None = None  # of every row of every result
    max_perplexity_ratio: float | None = None
    max_spearman_loss: float | None = None

    @property
    def given(self) -> bool:
        return any(value is not None for value in vars(self).values())

    def check(self, *, perplexity: bool, pairs: bool) -> None:
        """Raises ConfigurationError for a requirement on something that is not measured."""
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
    """The differences of a model from its reference. Values that do not apply to the model and the
    input are None; perplexities are those of given texts, Spearman's correlations those of given
    pairs."""

    architecture: str
    task: str
    dtype: str
    against: str  # what it was compared with
    sequences: int
    tokens: int  # of the input
    differences: Mapping[str, Difference]  # by result name
    allowed: Mapping[str, float]  # result name -> limit of the largest difference; missing: none
    floors: Floors
    greedy_tokens: int = 0  # tokens that a decoder generated or read
    greedy_equal: int = 0  # those where both have the same most likely token
    kl_divergence: float | None = None  # nats per token, of the reference's distribution from ours
    perplexity: float | None = None
    reference_perplexity: float | None = None
    spearman: float | None = None  # of cosines with the gold scores
    reference_spearman: float | None = None

    @property
    def largest(self) -> float:
        """The largest difference over all results; NaN if one of them is NaN."""
        worst = [each.largest for each in self.differences.values()]
        return math.nan if any(map(math.isnan, worst)) else max(worst)

    @property
    def perplexity_ratio(self) -> float | None:
        """Our perplexity divided by the reference's."""
        if self.perplexity is None or self.reference_perplexity is None:
            return None
        return self.perplexity / self.reference_perplexity

    @property
    def spearman_loss(self) -> float | None:
        """The reference's correlation minus ours."""
        if self.spearman is None or self.reference_spearman is None:
            return None
        return self.reference_spearman - self.spearman

    @property
    def failures(self) -> list[str]:
        """Messages for everything that does not pass."""
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
        """Returns the values for JSON, which has no infinity and NaN: they become None."""
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
