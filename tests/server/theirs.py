"""What transformers answers from the folder that is served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

CLASSES = {
    "embed": transformers.AutoModel,
    "classify": transformers.AutoModelForSequenceClassification,
    "tag": transformers.AutoModelForTokenClassification,
    "answer": transformers.AutoModelForQuestionAnswering,
    "fill": transformers.AutoModelForMaskedLM,
}


@dataclass
class Theirs:
    """transformers' model of a folder: fp32, eager attention."""

    folder: Path
    task: str

    @cached_property
    def reference(self) -> Any:
        loaded = CLASSES[self.task].from_pretrained(self.folder, attn_implementation="eager")
        return loaded.float().eval()

    @cached_property
    def tokenizer(self) -> Any:
        return transformers.AutoTokenizer.from_pretrained(self.folder)

    def pipeline(self, name: str, **arguments: Any) -> Any:
        return transformers.pipeline(
            name, model=self.reference, tokenizer=self.tokenizer, device="cpu", **arguments
        )

    def states(self, input_ids: Sequence[int], **others: Sequence[int]) -> np.ndarray:
        """[tokens, hidden] of one sequence."""
        named = {"input_ids": input_ids, **others}
        with torch.no_grad():
            output = self.reference(**{name: torch.tensor([row]) for name, row in named.items()})
        return output.last_hidden_state[0].numpy()

    def mean(
        self, input_ids: Sequence[int], normalize: bool = False, **others: Sequence[int]
    ) -> np.ndarray:
        mean = self.states(input_ids, **others).mean(0)
        return mean / np.linalg.norm(mean) if normalize else mean
