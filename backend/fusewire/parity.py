"""How far fusewire and transformers differ on the same random input: `fusewire check`.

Encoders are compared by their results. Decoders write: every token by our step with a cache, and
transformers, given the same text whole, says what it would have written at each place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire.errors import ConfigurationError
from fusewire.interop import load
from fusewire.models import DecoderModel, EncoderModel, load_decoder, read_config, tasks_of
from fusewire.models.step_batch import StepBatch
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
    greedy_tokens: int = 0  # that a decoder wrote
    greedy_equal: int = 0  # those that transformers finds the likeliest, too

    @property
    def largest(self) -> float:
        return float(np.max(list(self.differences.values())))


def parity(
    folder: Path | str,
    task: str | None = None,
    device: Any = "cpu",
    dtype: str = "auto",
    *,
    sequences: int = 8,
    seed: int = 0,
) -> Parity:
    """Runs random ragged sequences (one token up to 512 or the model's limit) through fusewire on
    `device` as one batch and through transformers (CPU, eager attention, fp32) one by one.

    Needs torch and transformers; ConfigurationError where they are not installed.
    """
    try:
        import torch
        import transformers
    except ImportError as error:
        raise ConfigurationError(
            f"parity: got no module {error.name!r}, wanted torch and transformers to compare with; "
            "install both: `pip install '.[torch]'` in fusewire's folder"
        ) from None

    def reference(task: str) -> Any:
        model = getattr(transformers, _AUTO_CLASSES[task]).from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32, local_files_only=True
        )
        return model.eval()

    place = Placement(device, dtype)
    random = np.random.default_rng(seed)
    task = task or tasks_of(read_config(folder))
    if task == "generate":
        decoder = load_decoder(folder, place)
        with torch.no_grad():
            return _decoder_parity(decoder, reference(task), sequences, random)
    ours = load(folder, task, device, dtype)
    with torch.no_grad():
        return _encoder_parity(ours, reference(ours.task), sequences, random)


def _encoder_parity(
    ours: Any, reference: Any, sequences: int, random: np.random.Generator
) -> Parity:
    import torch

    ids, types, mask = _random_input(ours.model, sequences, random)
    result = ours(ids, mask, types if ours.model.uses_token_types else None)
    differences = dict.fromkeys(result, 0.0)
    for row, length in enumerate(mask.sum(axis=1)):
        inputs = {"input_ids": torch.from_numpy(ids[row : row + 1, :length])}
        if ours.model.uses_token_types:
            inputs["token_type_ids"] = torch.from_numpy(types[row : row + 1, :length])
        expected = reference(**inputs)
        for name, values in result.items():
            wanted = expected[name][0].numpy()
            got = values[row] if values[row].shape == wanted.shape else values[row][:length]
            # Not max(): a NaN on either side must come through.
            worst = np.maximum(differences[name], np.abs(got - wanted).max())
            differences[name] = float(worst)
    return Parity(
        type(reference).__name__,
        ours.task,
        ours.model.place.dtype,
        sequences,
        int(mask.sum()),
        differences,
    )


def _decoder_parity(
    model: DecoderModel, reference: Any, sequences: int, random: np.random.Generator
) -> Parity:
    import torch

    longest = min(model.max_length, _LONGEST)
    written = min(_WRITTEN, longest - 1)
    lengths = _ragged(longest - written, sequences, random)
    prompts = [random.integers(0, model.vocab_size, length) for length in lengths]
    tokens, logits = _greedy(model, prompts, written)
    worst, equal = 0.0, 0
    for prompt, added, got in zip(prompts, tokens, logits, strict=True):
        text = torch.from_numpy(np.concatenate([prompt, added[:-1]]))[None]
        wanted = reference(text, use_cache=False).logits[0, -written:].numpy()
        worst = float(np.maximum(worst, np.abs(got - wanted).max()))
        numbers = ~np.isnan(got).any(-1) & ~np.isnan(wanted).any(-1)
        equal += int((numbers & (wanted.argmax(-1) == added)).sum())
    return Parity(
        type(reference).__name__,
        "generate",
        model.place.dtype,
        sequences,
        int(sum(lengths)),
        {"logits": worst},
        sequences * written,
        equal,
    )


def _greedy(
    model: DecoderModel, prompts: list[NDArray[np.int64]], written: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The likeliest tokens after each prompt [prompts, written], all prompts in the same steps, and
    the logits that they were chosen by [prompts, written, vocabulary]."""
    contexts = np.array([prompt.size for prompt in prompts], np.int32)
    each = -(-(int(contexts.max()) + written) // _PAGE_SIZE)
    table = np.arange(len(prompts) * each, dtype=np.int32).reshape(-1, each)
    cache = model.new_cache(table.size, _PAGE_SIZE)
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
