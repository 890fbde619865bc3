"""Text, ids or images in, answer out: what each task checks, asks of the model, and replies."""

from fusewire.tasks.contract import TASKS, TensorContract, contract

__all__ = ["TASKS", "TensorContract", "contract"]
