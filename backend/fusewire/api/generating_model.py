"""A model folder opened for generation: what `LLM` and `Transcriber` share."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Self
from weakref import finalize

from fusewire.api.turns import Turns
from fusewire.engine.generation import GenerationEngine
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.errors import Unavailable
from fusewire.opening import folder_for
from fusewire.text.unknown_tokens import warn_of_unknown_tokens


class GeneratingModel:
    """A context manager: on exit the model's memory is freed. So it is when the object is dropped
    without having been closed."""

    def _open(
        self,
        model: str | Path,
        revision: str | None,
        device: str,
        *,
        large_steps: bool = False,
        **settings: Any,
    ) -> None:
        """`large_steps`: as of the engine. `settings`: fields of GenerationSettings; None: the
        default."""
        given = {name: value for name, value in settings.items() if value is not None}
        self._folder = folder_for(type(self), model, revision)
        engine = GenerationEngine(
            self._folder, GenerationSettings(**given), device, large_steps=large_steps
        )
        self._opened = [engine]  # empty once closed
        self._turns = Turns()
        # At the program's end the engine closes itself, while there are still threads.
        finalize(self, _drop, self._opened).atexit = False
        known = engine.model.vocab_size if engine.speech else engine.limits.prompt_vocab_size
        warn_of_unknown_tokens(model, engine.tokenizer, known)

    @property
    def engine(self) -> GenerationEngine:
        """Raises Unavailable once the model was closed."""
        for engine in self._opened:  # at most one; another thread may close it meanwhile
            return engine
        raise Unavailable("model: got a call after it was closed, wanted one before; open it again")

    def close(self) -> None:
        """Cancels the requests that are running and frees the memory of weights and KV cache, which
        goes back to the system."""
        _close(self._opened)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _drop(opened: list[GenerationEngine]) -> None:
    """Closes the engine of an object that is no more. Garbage is collected in any thread; in the
    engine's own, which may hold its locks and cannot wait for itself, another one closes it."""
    if opened and opened[0].runs_here:
        threading.Thread(target=_close, args=(opened,), name="close", daemon=True).start()
    else:
        _close(opened)


def _close(opened: list[GenerationEngine]) -> None:
    """Closes the engine, unless it was closed before, and forgets it, which frees its memory."""
    try:
        engine = opened.pop()
    except IndexError:
        return
    place = engine.model.place
    engine.close()
    del engine
    place.trim()
