"""Training on the kernels that serve: torch modules, optimizer, criterion (docs/training.md)."""

from fusewire.train.adam import Adam
from fusewire.train.cross_entropy import CrossEntropy, cross_entropy
from fusewire.train.int8 import Int8Conv1D, Int8Linear, int8_layers, save_int8
from fusewire.train.packing import PackingCollator, TokenBudgetSampler
from fusewire.train.replace import replace
from fusewire.train.step import Step

__all__ = [
    "Adam",
    "CrossEntropy",
    "Int8Conv1D",
    "Int8Linear",
    "PackingCollator",
    "Step",
    "TokenBudgetSampler",
    "cross_entropy",
    "int8_layers",
    "replace",
    "save_int8",
]
