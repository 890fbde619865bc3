"""How far fusewire and transformers differ on the same random input: `fusewire check`.

Encoders are compared by their results, those of images on pixel values. Decoders write: every token
by our step with a cache, and transformers, given the same text whole, says what it would have
written at each place; encoder-decoder models do so after sources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire.agreement import Results, allowed_differences, differences
from fusewire.errors import ConfigurationError
from fusewire.hub import model_folder
from fusewire.image_parity import ComparedImages
from fusewire.interop import load
from fusewire.models import (
    DecoderModel,
    EncoderModel,
    Seq2SeqModel,
    SourceBatch,
    load_decoder,
    read_config,
    reads_images,
    tasks_of,
)
from fusewire.models.registry import SEQ2SEQ_ENCODERS
from fusewire.models.step_batch import SourceTable, StepBatch
from fusewire.placement import Placement

# Task -> the transformers class that answers it.
_AUTO_CLASSES = {
    "embed": "AutoModel",
    "hidden": "AutoModel",
    "classify": "AutoModelForSequenceClassification",
    "tag": "AutoModelForTokenClassification",
    "answer": "AutoModelForQuestionAnswering",
    "fill": "AutoModelForMaskedLM",
    "generate": "AutoModelForCausalLM",
}
_LONGEST = 512  # tokens
_WRITTEN = 16  # tokens after each prompt
_PAGE_SIZE = 16


@dataclass(frozen=True)
class Parity:
    """How far the two differ."""

    architecture: str
    task: str
    dtype: str
    sequences: int
    tokens: int  # of the input
    differences: Mapping[str, float]  # result name -> largest absolute difference
    allowed: Mapping[str, float]  # result name -> how large that may be
    greedy_tokens: int = 0  # that a decoder wrote
    greedy_equal: int = 0  # those that transformers finds the likeliest, too

    @property
    def largest(self) -> float:
        return float(np.max(list(self.differences.values())))

    @property
    def passed(self) -> bool:
        return all(worst <= self.allowed[name] for name, worst in self.differences.items())


def parity(
    model: Path | str,
    task: str | None = None,
    device: Any = "cpu",
    dtype: str = "auto",
    *,
    sequences: int = 8,
    seed: int = 0,
) -> Parity:
    """Runs random ragged sequences (one token up to 512 or the model's limit), or images, through
    fusewire on `device` as one batch and through transformers (CPU, eager attention) one by one.
    `model`: a folder or an id (`hub.model_folder`).

    Needs torch and transformers; ConfigurationError where they are not installed.
    """
    try:
        import torch
        import transformers
    except ImportError as error:
        raise ConfigurationError(
            f"check: got no module {error.name!r}, wanted torch and transformers to compare with; "
            "install both: `pip install torch transformers`"
        ) from None

    place = Placement(device, dtype)
    folder = model_folder(model)
    random = np.random.default_rng(seed)
    config = read_config(folder)
    task = task or tasks_of(config)
    compare: Callable[..., Parity]
    ours: Any
    if reads_images(config):
        ours = ComparedImages.of(folder, task, place, sequences, random)
        kind, compare = ours.transformers_class, partial(_image_parity, task=task)
    elif task == "generate":
        ours, compare = load_decoder(folder, place), _decoder_parity
        sourced = isinstance(ours, Seq2SeqModel)
        kind = "AutoModelForSeq2SeqLM" if sourced else _AUTO_CLASSES[task]
    else:
        ours, compare = load(folder, task, device, dtype), _encoder_parity
        kind = _AUTO_CLASSES[task]
        if config["model_type"] in SEQ2SEQ_ENCODERS:  # the encoder alone
            half = SEQ2SEQ_ENCODERS[config["model_type"]]
            kind = "AutoModelForTextEncoding" if half.classes else "AutoModelForSeq2SeqLM"

    def reference(dtype: str) -> Any:
        model: Any = getattr(transformers, kind).from_pretrained(
            folder,
            attn_implementation="eager",
            dtype=getattr(torch, dtype),
            local_files_only=True,
            trust_remote_code=False,
        )
        encoder_alone = task != "generate" and kind == "AutoModelForSeq2SeqLM"
        return (model.get_encoder() if encoder_alone else model).eval()

    with torch.no_grad():
        return compare(ours, reference, sequences, random)


def _encoder_parity(
    ours: Any, reference: Callable[[str], Any], sequences: int, random: np.random.Generator
) -> Parity:
    import torch

    ids, types, mask = _random_input(ours.model, sequences, random)
    result = ours(ids, mask, types if ours.model.uses_token_types else None)
    lengths = mask.sum(axis=1)

    def theirs(model: Any) -> list[Results]:
        rows = []
        for row, length in enumerate(lengths):
            inputs = {"input_ids": torch.from_numpy(ids[row : row + 1, :length])}
            if ours.model.uses_token_types:
                inputs["token_type_ids"] = torch.from_numpy(types[row : row + 1, :length])
            found = model(**inputs)
            rows.append({name: found[name][0].float().numpy() for name in result})
        return rows

    def own(row: int, wanted: Results) -> Results:
        whole = {name: values[row] for name, values in result.items()}
        return {
            name: values if values.shape == wanted[name].shape else values[: lengths[row]]
            for name, values in whole.items()
        }

    dtype = ours.model.place.dtype
    model = reference("float32")
    architecture, truth = type(model).__name__, theirs(model)
    del model  # before it comes in another precision
    got = [own(row, wanted) for row, wanted in enumerate(truth)]
    return Parity(
        architecture,
        ours.task,
        dtype,
        sequences,
        int(mask.sum()),
        differences(got, truth),
        allowed_differences(truth, dtype, lambda: theirs(reference(dtype))),
    )


def _image_parity(
    ours: ComparedImages,
    reference: Callable[[str], Any],
    sequences: int,
    random: np.random.Generator,
    *,
    task: str,
) -> Parity:
    dtype = ours.model.place.dtype
    model = reference("float32")
    architecture, truth = type(model).__name__, ours.theirs(model)
    del model  # before it comes in another precision
    return Parity(
        architecture,
        task,
        dtype,
        sequences,
        ours.tokens,
        differences(ours.ours(), truth),
        allowed_differences(truth, dtype, lambda: ours.theirs(reference(dtype))),
    )


def _decoder_parity(
    ours: DecoderModel, reference: Callable[[str], Any], sequences: int, random: np.random.Generator
) -> Parity:
    import torch

    longest = min(ours.max_length, _LONGEST)
    written = min(_WRITTEN, longest - 1)
    lengths = _ragged(longest - written, sequences, random)
    prompts = [random.integers(0, ours.vocab_size, length) for length in lengths]
    sources: list[NDArray[np.int64]] = []
    if isinstance(ours, Seq2SeqModel):
        source_lengths = _ragged(min(ours.max_source_length, _LONGEST), sequences, random)
        sources = [random.integers(0, ours.source_vocab_size, n) for n in source_lengths]
        # Transformers does not count padding in a text that it is given whole (M2M-100).
        padding = ours.config.get("pad_token_id")
        if padding is not None:
            start = ours.decoder_start_token_id
            prompts = [np.where(prompt == padding, start, prompt) for prompt in prompts]
    tokens, logits = _greedy(ours, prompts, written, sources)
    texts = [np.concatenate([p, added[:-1]]) for p, added in zip(prompts, tokens, strict=True)]

    def theirs(model: Any) -> list[Results]:
        given = [{"input_ids": text} for text in texts]
        if sources:
            pairs = zip(sources, texts, strict=True)
            given = [{"input_ids": source, "decoder_input_ids": text} for source, text in pairs]
        found = []
        for arrays in given:
            inputs = {name: torch.from_numpy(ids)[None] for name, ids in arrays.items()}
            logits = model(**inputs, use_cache=False).logits
            found.append({"logits": logits[0, -written:].float().numpy()})
        return found

    dtype = ours.place.dtype
    model = reference("float32")
    architecture, truth = type(model).__name__, theirs(model)
    del model  # before it comes in another precision
    equal = 0
    for added, got, wanted in zip(tokens, logits, truth, strict=True):
        likeliest = wanted["logits"].argmax(-1)
        numbers = ~np.isnan(got).any(-1) & ~np.isnan(wanted["logits"]).any(-1)
        equal += int((numbers & (likeliest == added)).sum())
    return Parity(
        architecture,
        "generate",
        dtype,
        sequences,
        int(sum(lengths)) + sum(source.size for source in sources),
        differences([{"logits": each} for each in logits], truth),
        allowed_differences(truth, dtype, lambda: theirs(reference(dtype))),
        sequences * written,
        equal,
    )


def _greedy(
    model: DecoderModel,
    prompts: list[NDArray[np.int64]],
    written: int,
    sources: list[NDArray[np.int64]],
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The likeliest tokens after each prompt [prompts, written], all prompts in the same steps, and
    the logits that they were chosen by [prompts, written, vocabulary]. `sources`: of each prompt,
    of an encoder-decoder model."""
    contexts = np.array([prompt.size for prompt in prompts], np.int32)
    each = -(-(int(contexts.max()) + written) // _PAGE_SIZE)
    table = np.arange(len(prompts) * each, dtype=np.int32).reshape(-1, each)
    source_lengths = np.array([source.size for source in sources], np.int32)
    source_each = -(-int(source_lengths.max(initial=0)) // _PAGE_SIZE)
    cache = model.new_cache(table.size + len(sources) * source_each, _PAGE_SIZE)
    source_table = None
    if isinstance(model, Seq2SeqModel):
        pages = np.arange(table.size, cache.pages, dtype=np.int32).reshape(-1, source_each)
        source_table = SourceTable(source_lengths, pages)
        ends = np.cumsum(source_lengths)
        offsets = np.concatenate([[0], ends]).astype(np.int32)
        model.encode(SourceBatch(np.concatenate(sources), offsets, pages), cache)
    tokens, logits, new = [], [], prompts
    for _ in range(written):
        ends = np.cumsum([ids.size for ids in new])
        spans = zip(new, contexts, strict=True)
        step = StepBatch(
            input_ids=np.concatenate(new),
            positions=np.concatenate(
                [np.arange(end - ids.size, end, dtype=np.int32) for ids, end in spans]
            ),
            cu_seqlens=np.concatenate([[0], ends]).astype(np.int32),
            context_lengths=contexts,
            block_table=table,
            logit_rows=ends - 1,
            sources=source_table,
        )
        logits.append(model.place.numpy(model.step(step, cache)).copy())
        tokens.append(logits[-1].argmax(-1))
        new = list(tokens[-1][:, None])
        contexts = contexts + np.int32(1)
    return np.stack(tokens, 1), np.stack(logits, 1)


def _random_input(
    model: EncoderModel, sequences: int, random: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    lengths = _ragged(min(model.max_length, _LONGEST), sequences, random)
    mask = np.arange(lengths[-1]) < lengths[:, None]
    ids = random.integers(0, model.vocab_size, mask.shape)
    types = random.integers(0, max(1, model.type_vocab_size), mask.shape)
    return ids, types, mask.astype(np.int64)


def _ragged(longest: int, sequences: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Lengths: the first 1, the last the longest."""
    lengths = random.integers(1, max(2, longest // 4), sequences)
    lengths[0] = 1
    lengths[-1] = longest
    return lengths
