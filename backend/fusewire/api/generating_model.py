"""A model folder opened for generation: what `LLM` and `Transcriber` share."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from fusewire.engine.generation import GenerationEngine
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.opening import folder_for
from fusewire.text.unknown_tokens import warn_of_unknown_tokens


class GeneratingModel:
    """A context manager: on exit the model's memory is freed."""

    def _open(self, model: str | Path, revision: str | None, device: str, **settings: Any) -> None:
        """`settings`: fields of GenerationSettings; None: the default."""
        given = {name: value for name, value in settings.items() if value is not None}
        self._folder = folder_for(type(self), model, revision)
        self.engine = GenerationEngine(self._folder, GenerationSettings(**given), device)
        engine = self.engine
        known = engine.model.vocab_size if engine.speech else engine.limits.prompt_vocab_size
        warn_of_unknown_tokens(model, engine.tokenizer, known)

    def close(self) -> None:
        """Cancels the requests that are running and frees the KV cache."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
