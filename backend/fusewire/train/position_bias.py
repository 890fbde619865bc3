"""A trained bias by distance: torch looks it up, kernels add it and return its gradient."""

from __future__ import annotations

import torch
from torch.nn.functional import embedding

from fusewire.models.blueprint import PositionBias
from fusewire.models.positions import relative_buckets
from fusewire.train.flat import FlatParameters


class TrainedBias:
    """The table of `bias`, whose name follows `prefix` in the module of `flat`. It is an autograd
    node of its own, so that all segments can read it."""

    def __init__(self, flat: FlatParameters, prefix: str, bias: PositionBias) -> None:
        self.name = f"{prefix}{bias.table.name}"
        self._flat = flat
        # Kernels clamp distances to the table; those beyond either end share a bucket.
        buckets = relative_buckets(
            bias.max_distance + 1, bias.table.rows, bias.max_distance, causal=bias.causal
        )
        self._buckets = torch.from_numpy(buckets).to(flat.values.device)

    def __call__(self) -> torch.Tensor:
        """fp32 [heads, distances]."""
        table = self._flat.parameter(self.name)
        return embedding(self._buckets, table).float().t().contiguous()
