"""Whole folders whose tokenizers are read without tokenizer.json, as `fusewire.LLM` answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fusewire
import torch

from tests.text.sentencepiece_models import TEXTS


def assert_answers_are_transformers(folder: Path, tokenizer: Any, model: Any) -> None:
    """Texts to texts, with the model and tokenizer of transformers that the folder is of."""
    with fusewire.LLM(folder, device="cpu") as llm:
        for text in TEXTS[:4]:
            with torch.no_grad():
                source = torch.tensor([tokenizer(text)["input_ids"]])
                wanted = model.generate(source, max_new_tokens=16)
            (answer,) = llm.generate(text, max_new_tokens=16)
            right = tokenizer.decode(wanted[0], skip_special_tokens=True)
            assert answer.outputs[0].text == right
