"""The references that a model is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from fusewire.errors import ConfigurationError
from fusewire.parity.agreement import Results
from fusewire.placement import Placement


class Compared(Protocol):
    """A folder opened for a task, and the input of both sides, whose results are computed a
    sequence at a time."""

    @property
    def folder(self) -> Path: ...
    @property
    def place(self) -> Placement: ...
    @property
    def sequences(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def following(self) -> Sequence[NDArray[Any]] | None:
        """The token after each position that has logits; None for a model that does not
        generate."""

    @property
    def continues_texts(self) -> bool:
        """Whether these tokens are from given texts."""

    @property
    def transformers_class(self) -> tuple[str, bool]: ...
    def ours(self) -> Iterator[Results]: ...
    def ours_at(self, place: Placement) -> Iterator[Results]: ...
    def theirs(self, model: Any) -> Iterator[Results]: ...


class Reference(Protocol):
    architecture: str | None  # class of the reference model; None: fusewire's own

    def results(self, compared: Compared, dtype: str = "float32") -> Iterator[Results]:
        """Yields the results for each sequence. The model is held in memory until the last."""


class Transformers:
    """The model in transformers, on the CPU, with eager attention."""

    architecture: str | None = None  # class of the last model that was opened

    def __init__(self) -> None:
        """Raises ConfigurationError if torch or transformers is missing."""
        try:
            import torch  # noqa: F401
            import transformers  # noqa: F401
        except ImportError as error:
            raise ConfigurationError(
                f"check: got no module {error.name!r}, wanted torch and transformers to compare "
                "with; install both (`pip install torch transformers`), or compare with fusewire "
                "itself (--against fp32)"
            ) from None

    def results(self, compared: Compared, dtype: str = "float32") -> Iterator[Results]:
        import torch
        import transformers

        kind, encoder_alone = compared.transformers_class
        try:
            model: Any = getattr(transformers, kind).from_pretrained(
                compared.folder,
                attn_implementation="eager",
                dtype=getattr(torch, dtype),
                local_files_only=True,
                trust_remote_code=False,
            )
        except ImportError as error:  # the format of the weights needs a further package
            reason = str(error).strip().partition("\n")[0]
            raise ConfigurationError(
                f"check: transformers cannot load {compared.folder}: {reason}; install what it "
                "needs, or compare with fusewire itself (--against fp32)"
            ) from None
        model = (model.get_encoder() if encoder_alone else model).eval().requires_grad_(False)
        self.architecture = type(model).__name__
        yield from compared.theirs(model)


class OwnFp32:
    """fusewire in fp32, on the model's device: it shows the cost of the model's own precision.
    Matrices that a folder has in fewer bits are dequantised."""

    architecture: str | None = None

    def results(self, compared: Compared, dtype: str = "float32") -> Iterator[Results]:
        place = Placement(compared.place.device, dtype, quantize_skip=compared.place.formats)
        return compared.ours_at(place)


REFERENCES: dict[str, Callable[[], Reference]] = {
    "transformers": Transformers,
    "fp32": OwnFp32,
}
