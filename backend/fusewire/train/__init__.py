"""Training on the kernels that serve: torch modules, optimizer, criterion (docs/training.md)."""

from fusewire.errors import ConfigurationError

try:
    from fusewire.train.adam import Adam
    from fusewire.train.cross_entropy import CrossEntropy, cross_entropy
    from fusewire.train.int8 import Int8Conv1D, Int8Linear, int8_layers, save_int8
    from fusewire.train.optimizer_hooks import register_optimizer_hooks
    from fusewire.train.packing import PackingCollator, TokenBudgetSampler
    from fusewire.train.replace import replace
    from fusewire.train.step import Step
except ModuleNotFoundError as error:
    package = str(error.name).partition(".")[0]
    if package not in ("torch", "transformers"):
        raise
    raise ConfigurationError(
        f"{package}: got no such package, wanted it to train; run pip install 'fusewire[train]'"
    ) from None

register_optimizer_hooks()

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
