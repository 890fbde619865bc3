"""Chooses the matrices that a quantised model keeps in its dtype: `fusewire import --quantize`.

Each matrix is quantised alone, and the results of the model for a set of texts are compared with
those of the model without quantisation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.batch import Batch
from fusewire.batch import Sequence as TokenSequence
from fusewire.calibration_texts import Ids, calibration_texts
from fusewire.errors import CheckpointError, ConfigurationError
from fusewire.matrix_formats import MatrixFormats
from fusewire.models import (
    DecoderModel,
    EncoderModel,
    PagedTexts,
    Seq2SeqModel,
    load_decoder,
    load_model,
    read_config,
    reads_images,
    reads_speech,
)
from fusewire.placement import Placement
from fusewire.precision import Precision

MOST_ERROR = 0.05  # relative error of the results that one quantised matrix may cause


@dataclass(frozen=True)
class CalibratedMatrix:
    """A matrix [out, in] of a layer or of the vocabulary; several matrices that are stacked have
    the name of the first. `error`: relative error of the model's results where this matrix alone is
    quantised, |quantised - exact| / |exact|, with 2-norms over all results. `format`: the format
    that it is to be stored in."""

    name: str
    shape: tuple[int, ...]
    error: float
    format: str


@dataclass(frozen=True)
class Calibration:
    """The result of a calibration. `error`: as that of a matrix, where every matrix is stored as
    `matrices` says."""

    matrices: tuple[CalibratedMatrix, ...]
    quantize: str
    error: float
    texts: int
    tokens: int
    skipped: list[str]  # names of the matrices that are not quantised


def calibrate(
    folder: Path,
    task: str,
    quantize: str,
    dtype: str = "auto",
    file: Path | None = None,
    *,
    device: str = "cpu",
    most_error: float = MOST_ERROR,
    done: Callable[[int, int], None] = lambda done, total: None,
) -> Calibration:
    """Measures the quantisation error of each matrix of a folder that is served for `task` on
    `device`.

    It is always measured on the CPU. For a GPU the reference is fp32, and token embeddings,
    language-model heads and 4-bit matrices are left out, since a GPU does not quantise them. Takes
    a forward pass for each matrix, and the memory of the model in both formats.

    Args:
        file: Texts, one per line; without it random ids (`calibration_texts`).
        most_error: A matrix that causes a larger error, or one that is NaN, is left in `dtype`, or
            in 4 bits if the folder has it in 4 bits.
        done: Called with the number of matrices measured so far, and of all.

    Raises:
        ConfigurationError: A model of speech, or one of images, whose towers have matrices of the
            same names.
        CheckpointError: The model's own results are NaN or infinite.
    """
    config = read_config(folder)
    if reads_images(config) or reads_speech(config):
        of = "images" if reads_images(config) else "speech"
        raise ConfigurationError(
            f"calibrate: got a model of {of} ({config['model_type']}), wanted one of texts; "
            "leave it out"
        )
    served = Precision.of(device, dtype, quantize)
    place = _PackedOnce("cpu", dtype if device == "cpu" else "auto", quantize)
    place.matrices = trials = _Trials(place.precision, place.stream)
    trials.takes_vocabulary = served.vocabulary == served.layers
    trials.takes_int4 = device == "cpu"
    load: Callable[[], DecoderModel | EncoderModel] = (
        (lambda: load_decoder(folder, place))
        if task == "generate"
        else (lambda: load_model(folder, task, place))
    )
    exact = load()
    texts = _texts(exact, folder, file)
    truth = _results(exact, texts)
    if not np.isfinite(truth).all():  # every error would be NaN
        raise CheckpointError(
            f"{folder.name}: got results that are NaN or infinite before a matrix is quantised, "
            "wanted finite ones to compare with; correct the weights, or give texts that the model "
            "can answer"
        )
    found, dtype = dict(trials.found), served.weights
    del exact

    def error(chosen: Collection[str]) -> float:
        trials.quantized = frozenset(chosen)
        off = np.linalg.norm(_results(load(), texts) - truth)
        return float(off / np.linalg.norm(truth))

    matrices, skipped = [], []
    for count, (name, (shape, quantized, exactly)) in enumerate(found.items(), 1):
        alone = error([name])
        left = not alone <= most_error
        if left:
            skipped.append(name)
        stored = (exactly or dtype) if left else quantized
        matrices.append(CalibratedMatrix(name, shape, alone, stored))
        done(count, len(found))
    together = error(found.keys() - set(skipped))
    tokens = sum(ids.size for ids in texts)
    return Calibration(tuple(matrices), quantize, together, len(texts), tokens, skipped)


class _Trials(MatrixFormats):
    """Formats of models that differ only in which matrices are `quantized`."""

    def __init__(self, precision: Precision, stream: kernels.Stream) -> None:
        super().__init__(precision, stream)
        self.quantized: frozenset[str] = frozenset()
        # Matrices that can be quantised: shape, format if quantised, format if not (None: dtype).
        self.found: dict[str, tuple[tuple[int, ...], str, str | None]] = {}
        self.takes_vocabulary = True
        self.takes_int4 = True

    def quantizes(self, name: str, shape: tuple[int, ...]) -> bool:
        return self.takes_vocabulary and super().quantizes(name, shape)

    def int4(self, name: str, shape: tuple[int, ...]) -> str:
        return super().int4(name, shape) if self.takes_int4 else "int4"

    def _choose(
        self, name: str, shape: tuple[int, ...], quantized: str, exact: str | None = None
    ) -> str:
        self.found[name] = shape, quantized, exact
        return quantized if name in self.quantized else exact or self._precision.weights


class _PackedOnce(Placement):
    """Packs each matrix of models with the same weights once per format."""

    def __init__(self, device: str, dtype: str, quantize: str) -> None:
        super().__init__(device, dtype, quantize)
        self._known: dict[tuple[str, str], kernels.Linear] = {}

    def _packed(
        self, weight: NDArray[Any], bias: NDArray[Any] | None, name: str, stored: str
    ) -> kernels.Linear:
        if (name, stored) not in self._known:
            self._known[name, stored] = super()._packed(weight, bias, name, stored)
        return self._known[name, stored]


def _results(model: DecoderModel | EncoderModel, texts: Sequence[Ids]) -> NDArray[np.float32]:
    """Returns the hidden states of an encoder [tokens, hidden], or the logits behind each text
    [texts, vocabulary] of a model that generates. An encoder-decoder model gets each text as its
    source and, shifted by one token, as the beginning of its target."""
    if isinstance(model, EncoderModel):
        rows = [TokenSequence(ids, np.zeros(ids.size, np.int32)) for ids in texts]
        return model.place.numpy(model.encode(Batch.pack(rows))).copy()
    sources: list[Ids] = []
    if isinstance(model, Seq2SeqModel):  # sources and targets have the same lengths
        sources, first = list(texts), [model.decoder_start_token_id]
        texts = [np.append(first, ids[:-1] % model.vocab_size) for ids in sources]
    return PagedTexts(model, [ids.size for ids in texts], sources).step(texts, 1)


def _texts(model: DecoderModel | EncoderModel, folder: Path, file: Path | None) -> list[Ids]:
    longest, vocab_size = model.max_length, model.vocab_size
    if isinstance(model, Seq2SeqModel):
        longest, vocab_size = min(longest, model.max_source_length), model.source_vocab_size
    return calibration_texts(folder, file, longest, vocab_size)
