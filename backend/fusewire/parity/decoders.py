"""Compares generating models with their reference, by the logits of next tokens.

For random prompts, our model generates every token by a step with a cache. The reference reads the
resulting text at once, and gives the logits at each of these positions. Encoder-decoder models do
so after sources. Given texts are read at once by both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire.errors import ConfigurationError
from fusewire.models import DecoderModel, PagedTexts, Seq2SeqModel, SpeechModel, load_decoder
from fusewire.parity.agreement import Results
from fusewire.parity.text_files import Line
from fusewire.parity.tokens import LONGEST, ragged, tokenized
from fusewire.placement import Placement

_WRITTEN = 16  # tokens generated after each prompt

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class ComparedDecoder:
    """A generating model, and the input of both sides. Results are `logits` [positions, vocabulary]
    at the last positions of each text."""

    model: DecoderModel
    folder: Path
    texts: list[Ids]
    following: list[Ids]  # [positions] of each text: the tokens after them, given or generated
    sources: list[Any]  # of each text, for an encoder-decoder model: ids, or features of audio
    tokens: int  # number of tokens that were given or drawn at random
    written: NDArray[np.float32] | None = None  # our logits of generated tokens, of each text

    @staticmethod
    def random(
        folder: Path, place: Placement, count: int, random: np.random.Generator
    ) -> ComparedDecoder:
        """Builds random prompts, from one token up to LONGEST or the model's limit, generated
        tokens included."""
        model = load_decoder(folder, place)
        longest = min(model.max_length, LONGEST)
        written = min(_WRITTEN, longest - 1)
        lengths = ragged(longest - written, count, random)
        prompts = [random.integers(0, model.vocab_size, length) for length in lengths]
        sources: list[Any] = []
        if isinstance(model, SpeechModel):
            shape = model.features_shape
            sources = [random.normal(0, 0.6, shape).astype(np.float32) for _ in range(count)]
        elif isinstance(model, Seq2SeqModel):
            source_lengths = ragged(min(model.max_source_length, LONGEST), count, random)
            sources = [random.integers(0, model.source_vocab_size, n) for n in source_lengths]
            # transformers does not count padding in a text that it reads at once (M2M-100).
            padding = model.config.get("pad_token_id")
            if padding is not None:
                start = model.decoder_start_token_id
                prompts = [np.where(prompt == padding, start, prompt) for prompt in prompts]
        return _after_prompts(model, folder, prompts, written, sources)

    @staticmethod
    def of_texts(folder: Path, place: Placement, lines: list[Line]) -> ComparedDecoder:
        """Builds the input from given texts; for an encoder-decoder model they are the sources."""
        model = load_decoder(folder, place)
        if isinstance(model, SpeechModel):
            raise ConfigurationError(
                "texts: got a model of speech, wanted one that reads texts; leave them out"
            )
        if isinstance(model, Seq2SeqModel):
            longest, vocab_size = model.max_source_length, model.source_vocab_size
        else:
            longest, vocab_size = model.max_length, model.vocab_size
        inputs = tokenized(lines, folder, max_length=longest, vocab_size=vocab_size)
        ids = [sequence.input_ids for sequence in inputs]
        if isinstance(model, Seq2SeqModel):
            start = np.array([model.decoder_start_token_id])
            written = min(_WRITTEN, model.max_length - 1)
            return _after_prompts(model, folder, [start] * len(ids), written, ids)
        for line, each in zip(lines, ids, strict=True):
            if each.size < 2:
                raise ConfigurationError(
                    f"{line.where}: got a text of 1 token, wanted 2 or more, as each is predicted "
                    "from those before it; lengthen or remove the line"
                )
        tokens = sum(each.size for each in ids)
        following = [each[1:] for each in ids]
        return ComparedDecoder(model, folder, [each[:-1] for each in ids], following, [], tokens)

    @property
    def place(self) -> Placement:
        return self.model.place

    @property
    def sequences(self) -> int:
        return len(self.texts)

    @property
    def continues_texts(self) -> bool:
        return self.written is None

    @property
    def transformers_class(self) -> tuple[str, bool]:
        """The class that opens the folder, and False: the whole model is compared."""
        if isinstance(self.model, SpeechModel):
            return "AutoModelForSpeechSeq2Seq", False
        sourced = isinstance(self.model, Seq2SeqModel)
        return "AutoModelForSeq2SeqLM" if sourced else "AutoModelForCausalLM", False

    def ours(self) -> Iterator[Results]:
        """Returns our results for each text."""
        if self.written is None:
            return self._whole(self.model)
        return iter([{"logits": logits} for logits in self.written])

    def ours_at(self, place: Placement) -> Iterator[Results]:
        """Returns results for the same texts, read at once by the model in another placement."""
        return self._whole(load_decoder(self.folder, place))

    def theirs(self, model: Any) -> Iterator[Results]:
        """Yields the results of transformers' model."""
        import torch

        for index, text in enumerate(self.texts):
            given: dict[str, NDArray[Any]] = {"input_ids": text}
            if isinstance(self.model, SpeechModel):
                features = np.ascontiguousarray(self.sources[index].T)
                given = {"input_features": features, "decoder_input_ids": text}
            elif self.sources:
                given = {"input_ids": self.sources[index], "decoder_input_ids": text}
            inputs = {name: torch.from_numpy(each)[None] for name, each in given.items()}
            if "input_features" in inputs:
                inputs["input_features"] = inputs["input_features"].to(model.dtype)
            logits = model(**inputs, use_cache=False).logits[0, -self.following[index].size :]
            yield {"logits": logits.float().numpy()}

    def _whole(self, model: DecoderModel) -> Iterator[Results]:
        for index, text in enumerate(self.texts):
            pages = PagedTexts(model, [text.size], self.sources[index : index + 1])
            yield {"logits": pages.step([text], self.following[index].size)}


def _after_prompts(
    model: DecoderModel, folder: Path, prompts: list[Ids], written: int, sources: list[Any]
) -> ComparedDecoder:
    """Returns texts made of prompts and the most likely tokens after them, with all prompts in the
    same steps."""
    pages = PagedTexts(model, [prompt.size + written for prompt in prompts], sources)
    tokens, logits, new = [], [], prompts
    for _ in range(written):
        logits.append(pages.step(new, 1))
        tokens.append(logits[-1].argmax(-1))
        new = list(tokens[-1][:, None])
    added = np.stack(tokens, 1)
    texts = [np.concatenate([p, each[:-1]]) for p, each in zip(prompts, added, strict=True)]
    given = sum(each.size for each in prompts)
    if isinstance(model, SpeechModel):
        given += len(sources) * model.max_source_length
    else:
        given += sum(each.size for each in sources)
    return ComparedDecoder(
        model, folder, texts, list(added), sources, given, np.stack(logits, axis=1)
    )
