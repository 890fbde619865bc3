"""Compares encoders of texts with their reference: hidden states and logits, or embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire.batch import Batch, Sequence
from fusewire.interop import Encoder
from fusewire.models import EncoderModel, load_model
from fusewire.models.registry import SEQ2SEQ_ENCODERS
from fusewire.models.task_heads import Embedding, EmbeddingOptions
from fusewire.parity.agreement import Results
from fusewire.parity.text_files import Line
from fusewire.parity.tokens import LONGEST, ragged, tokenized
from fusewire.placement import Placement
from fusewire.tasks.sentence_dense import dense_weights
from fusewire.tasks.sentence_files import SentenceFiles

# Task -> the transformers class for it.
_AUTO_CLASSES = {
    "embed": "AutoModel",
    "hidden": "AutoModel",
    "classify": "AutoModelForSequenceClassification",
    "tag": "AutoModelForTokenClassification",
    "answer": "AutoModelForQuestionAnswering",
    "fill": "AutoModelForMaskedLM",
}
_NAMES = ("last_hidden_state", "pooler_output", "logits", "start_logits", "end_logits")
_TEXTS_AT_ONCE = 8


@dataclass(frozen=True)
class ComparedEncoder:
    """A folder opened for a task, and the input of both sides. Results have the names that they
    have in transformers."""

    model: EncoderModel
    folder: Path
    task: str
    inputs: list[Sequence]
    at_once: int  # sequences per batch on our side

    @staticmethod
    def random(
        folder: Path, task: str, place: Placement, count: int, random: np.random.Generator
    ) -> ComparedEncoder:
        """Builds random tokens, from one up to LONGEST or the model's limit, computed as one
        batch."""
        model = load_model(folder, task, place, pooler=True)
        types = max(1, model.type_vocab_size)
        inputs = [
            Sequence(
                random.integers(0, model.vocab_size, length),
                random.integers(0, types, length, np.int32),
            )
            for length in ragged(min(model.max_length, LONGEST), count, random)
        ]
        return ComparedEncoder(model, folder, task, inputs, count)

    @staticmethod
    def of_texts(folder: Path, task: str, place: Placement, lines: list[Line]) -> ComparedEncoder:
        """Builds the input from given texts; embedders are compared by their embeddings."""
        model = load_model(folder, task, place, pooler=task != "embed")
        embeds = task == "embed"
        inputs = tokenized(
            lines,
            folder,
            max_length=model.max_length,
            vocab_size=model.vocab_size,
            type_vocab_size=model.type_vocab_size,
            sentences=SentenceFiles.read(folder) if embeds else None,
        )
        kind = ComparedEmbedder if embeds else ComparedEncoder
        return kind(model, folder, task, inputs, _TEXTS_AT_ONCE)

    following = None
    continues_texts = False

    @property
    def place(self) -> Placement:
        return self.model.place

    @property
    def sequences(self) -> int:
        return len(self.inputs)

    @property
    def tokens(self) -> int:
        return sum(map(len, self.inputs))

    @property
    def transformers_class(self) -> tuple[str, bool]:
        """The class that opens the folder, and whether only its encoder is compared."""
        half = SEQ2SEQ_ENCODERS.get(self.model.config["model_type"])
        if half is None:
            return _AUTO_CLASSES[self.task], False
        alone = not half.classes  # transformers has no class for the encoder
        return "AutoModelForSeq2SeqLM" if alone else "AutoModelForTextEncoding", alone

    def ours(self) -> Iterator[Results]:
        """Returns our results for each sequence."""
        return self._results(self.model)

    def ours_at(self, place: Placement) -> Iterator[Results]:
        """Returns the results of the model in another placement."""
        return self._results(load_model(self.folder, self.task, place, pooler=True))

    def theirs(self, model: Any) -> Iterator[Results]:
        """Yields the results of transformers' model, one sequence at a time."""
        import torch

        for sequence in self.inputs:
            inputs = {"input_ids": torch.from_numpy(sequence.input_ids)[None]}
            if self.model.uses_token_types:
                types = torch.from_numpy(sequence.token_type_ids.astype(np.int64))
                inputs["token_type_ids"] = types[None]
            found = model(**inputs)
            yield {name: found[name][0].float().numpy() for name in _NAMES if name in found}

    def _batches(self) -> Iterator[list[Sequence]]:
        for begin in range(0, len(self.inputs), self.at_once):
            yield self.inputs[begin : begin + self.at_once]

    def _results(self, model: EncoderModel) -> Iterator[Results]:
        encoder = Encoder(model, self.task)
        for batch in self._batches():
            ids, types, mask = _padded(batch)
            results = encoder(ids, mask, types if model.uses_token_types else None)
            for row, sequence in enumerate(batch):
                yield {
                    name: values[row, : len(sequence)] if self._by_token(name) else values[row]
                    for name, values in results.items()
                }

    def _by_token(self, name: str) -> bool:
        return name != "pooler_output" and self.task != "classify"


class ComparedEmbedder(ComparedEncoder):
    """Compares embeddings, made from hidden states as the folder's sentence-transformers files say;
    from transformers' hidden states by our pooling in fp32."""

    def theirs(self, model: Any) -> Iterator[Results]:
        place = Placement("cpu", "float32")
        head, options = self._head(place)
        for sequence, results in zip(self.inputs, super().theirs(model), strict=True):
            hidden = place.floats(results["last_hidden_state"])
            (embedding,) = head(hidden, Batch.pack([sequence]), [options])
            yield {"embedding": embedding}

    def ours_at(self, place: Placement) -> Iterator[Results]:
        return self._results(load_model(self.folder, self.task, place))

    def _results(self, model: EncoderModel) -> Iterator[Results]:
        head, options = self._head(model.place)
        for sequences in self._batches():
            batch = Batch.pack(sequences)
            for embedding in head(model.encode(batch), batch, [options] * len(sequences)):
                yield {"embedding": embedding.copy()}

    def _head(self, place: Placement) -> tuple[Embedding, EmbeddingOptions]:
        files = SentenceFiles.read(self.folder)
        weights = dense_weights(self.folder, files.dense) if files.dense else None
        head = Embedding(place, self.model.hidden_size, files.dense, weights)
        return head, files.options()


def _padded(
    batch: list[Sequence],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Returns ids, types and mask [sequences, longest]."""
    lengths = np.array([len(sequence) for sequence in batch])
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids, types = np.zeros(mask.shape, np.int64), np.zeros(mask.shape, np.int64)
    ids[mask] = np.concatenate([sequence.input_ids for sequence in batch])
    types[mask] = np.concatenate([sequence.token_type_ids for sequence in batch])
    return ids, types, mask.astype(np.int64)
