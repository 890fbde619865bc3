"""Training on the kernels that serve: torch modules, optimizer, criterion (docs/training.md)."""

from fusewire.train.adam import Adam
from fusewire.train.cross_entropy import CrossEntropy, cross_entropy
from fusewire.train.packing import PackingCollator, TokenBudgetSampler
from fusewire.train.replace import replace

__all__ = [
    "Adam",
    "CrossEntropy",
    "PackingCollator",
    "TokenBudgetSampler",
    "cross_entropy",
    "replace",
]
