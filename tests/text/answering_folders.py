"""Whole folders whose tokenizers are read without tokenizer.json, for `fusewire.LLM`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fusewire
import torch

from tests.text.sentencepiece_models import TEXTS


def assert_answers_are_transformers(folder: Path, tokenizer: Any, model: Any) -> None:
    """Asserts that texts are answered as by the model and tokenizer of transformers for the
    folder."""
    with fusewire.LLM(folder, device="cpu") as llm:
        for text in TEXTS[:4]:
            with torch.no_grad():
                source = torch.tensor([tokenizer(text)["input_ids"]])
                wanted = model.generate(source, max_new_tokens=16)
            (answer,) = llm.generate(text, max_new_tokens=16)
            right = tokenizer.decode(wanted[0], skip_special_tokens=True)
            assert answer.outputs[0].text == right
