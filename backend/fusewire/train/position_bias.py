"""A bias by distance that trains: torch looks it up, kernels add it and give its gradient back."""

from __future__ import annotations

import torch
from torch.nn.functional import embedding

from fusewire.models.blueprint import PositionBias
from fusewire.models.positions import relative_buckets
from fusewire.train.flat import FlatParameters


class TrainedBias:
    """The table of `bias`, whose name follows `prefix` in the module of `flat`: a node of torch's
    graph of its own, so that all segments may read it."""

    def __init__(self, flat: FlatParameters, prefix: str, bias: PositionBias) -> None:
        self.name = f"{prefix}{bias.table.name}"
        self._flat = flat
        # Kernels let distances beyond a table take its ends, and these share a bucket each.
        buckets = relative_buckets(
            bias.max_distance + 1, bias.table.rows, bias.max_distance, causal=bias.causal
        )
        self._buckets = torch.from_numpy(buckets).to(flat.values.device)

    def __call__(self) -> torch.Tensor:
        """fp32 [heads, distances]."""
        return embedding(self._buckets, self._flat.parameter(self.name)).t().contiguous()
