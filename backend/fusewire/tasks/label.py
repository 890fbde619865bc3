"""Labels images: with the model's own labels, or zero-shot with the labels of a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire.errors import ConfigurationError, InvalidInput, counted
from fusewire.models import ImageTextModel
from fusewire.settings import MOST_CANDIDATES, EngineSettings
from fusewire.tasks.classify import APPLY, default_function
from fusewire.tasks.image_reader import ImageQuery
from fusewire.tasks.image_task import ImageTask
from fusewire.tasks.label_sentences import FIELD, labels_of, sentences
from fusewire.tasks.rows import Query, TextRow
from fusewire.tasks.task import Reply, strings
from fusewire.text.tokenizer import Tokenizer

# Maximum number of cached embeddings of sentences, of a few kilobytes each.
_MOST_KEPT = 4096

Vector = NDArray[np.float32]


@dataclass(eq=False)
class ZeroShotQuery(ImageQuery):
    """A request with labels. Its rows are its images, followed by the sentences whose embeddings
    were not in the cache (`known`) when it was read. `labels`, `sentences`: [image][label]."""

    labels: list[list[str]] = field(default_factory=list)
    sentences: list[list[str]] = field(default_factory=list)
    known: dict[str, Vector] = field(default_factory=dict)


class Label(ImageTask):
    """`scores` [n, labels] in the order of the labels; `label` [n, 1], the name of the best one."""

    name = "label"

    def __init__(
        self, model: ImageTextModel, tokenizer: Tokenizer | None, settings: EngineSettings
    ) -> None:
        super().__init__(model, tokenizer, settings)
        self._known: dict[str, Vector] = {}  # sentence -> its embedding, oldest first
        if model.texts is not None:
            sentences(["label"], settings.hypothesis_template)  # raises for a template without {}
            self._default = "softmax" if model.texts.competing else "sigmoid"
            return
        if settings.hypothesis_template is not None:
            raise ConfigurationError(
                f"hypothesis_template: got {settings.hypothesis_template!r} for a model that has "
                f"{counted(len(model.id2label), 'labels')} of its own, wanted none; remove it"
            )
        problem = model.config.get("problem_type")
        self._default = default_function(problem, len(model.id2label))

    def read(
        self,
        inputs: Mapping[str, NDArray[Any]],
        given: Iterable[str],
        settings: EngineSettings,
    ) -> Query:
        rows = self._inputs.rows(inputs)
        if self.model.texts is None:
            for name in {FIELD, "hypothesis_template"} & {*inputs, *given}:
                own = counted(len(self.model.id2label), "labels")
                wanted = f"none, as this model has {own} of its own"
                raise InvalidInput(name, "it", wanted, "leave it out")
            return ImageQuery(settings, rows)
        if FIELD not in inputs:
            wanted = "the labels to choose from, as this model has none of its own"
            raise InvalidInput(FIELD, "nothing", wanted, f"send {FIELD} [n, labels]")
        labels = labels_of(inputs[FIELD], len(rows))
        texts = [sentences(each, settings.hypothesis_template) for each in labels]
        distinct = dict.fromkeys(text for row in texts for text in row)
        if len(distinct) > MOST_CANDIDATES:
            got, wanted = f"{len(distinct)} labels", f"at most {MOST_CANDIDATES} in a request"
            raise InvalidInput(FIELD, got, wanted, "send fewer at once")
        known = {text: vector for text in distinct if (vector := self._known.get(text)) is not None}
        new = [TextRow(text) for text in distinct if text not in known]
        return ZeroShotQuery(
            settings,
            [*rows, *new],
            text_field=FIELD,
            labels=labels,
            sentences=texts,
            known=known,
        )

    def reply(self, query: Query, results: list[list[Any]]) -> Reply:
        apply = APPLY[query.settings.function_to_apply or self._default]
        found = [windows[0] for windows in results]
        if not isinstance(query, ZeroShotQuery):
            scores = apply(np.stack(found))
            return _reply(scores, [self.model.id2label] * len(scores))
        images = len(query.labels)
        vectors = {
            row.text: vector
            for row, vector in zip(query.rows[images:], found[images:], strict=True)
            if isinstance(row, TextRow)
        }
        self._keep(vectors)
        vectors |= query.known
        tower = self.model.texts
        assert tower is not None
        logits = [
            tower.logits_per_image(image[None], np.stack([vectors[text] for text in texts]))
            for image, texts in zip(found, query.sentences, strict=False)
        ]
        return _reply(apply(np.concatenate(logits)), query.labels)

    def _keep(self, vectors: Mapping[str, Vector]) -> None:
        self._known |= vectors
        while len(self._known) > _MOST_KEPT:
            del self._known[next(iter(self._known))]


def _reply(scores: NDArray[np.float32], labels: list[list[str]]) -> Reply:
    best = scores.argmax(axis=-1)
    return {
        "scores": scores,
        "label": strings([names[index] for names, index in zip(labels, best, strict=True)]),
    }
