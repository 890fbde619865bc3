"""Measures how much a model differs from a reference on the same input: `fusewire check`.

Encoders are compared by their results, encoders of images on pixel values, and generating models by
the logits of next tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from fusewire.errors import ConfigurationError
from fusewire.hub import model_folder
from fusewire.models import read_config, reads_images, tasks_of
from fusewire.parity.agreement import Allowance, Difference, Differences
from fusewire.parity.decoders import ComparedDecoder
from fusewire.parity.encoders import ComparedEncoder
from fusewire.parity.images import ComparedImages
from fusewire.parity.next_tokens import NextTokens
from fusewire.parity.pair_similarity import PairSimilarity
from fusewire.parity.references import REFERENCES, Compared
from fusewire.parity.result import Floors, Parity
from fusewire.parity.text_files import Line, read_pairs, read_texts
from fusewire.placement import Placement

__all__ = ["REFERENCES", "Difference", "Floors", "Parity", "parity"]

_SEQUENCES = 8
_GENERATING = ("generate", "transcribe")
# Formats of weights whose products round their input.
_ROUNDING = {"int8", "w4a8", "float8_e4m3", "float8_e4m3_blocks"}


def parity(
    model: Path | str,
    task: str | None = None,
    device: Any = "cpu",
    dtype: str = "auto",
    *,
    quantize: str = "none",
    quantize_skip: Collection[str] = (),
    kv_cache_dtype: str = "auto",
    against: str = "transformers",
    sequences: int | None = None,
    texts: Path | None = None,
    pairs: Path | None = None,
    tolerance: float | None = None,
    floors: Floors | None = None,
    seed: int = 0,
) -> Parity:
    """Compares the results of fusewire on `device`, packed, with those of a reference.

    Args:
        model: A folder or an id (`hub.model_folder`).
        quantize: Format of the layers' weight matrices on our side (`Placement`).
        quantize_skip: Names of matrices that are not quantised.
        kv_cache_dtype: Format of keys and values on our side, for a model that generates: auto or,
            on a GPU, fp8.
        against: `transformers` (CPU, fp32, eager attention, one sequence at a time), which needs
            torch and transformers, or `fp32`: fusewire itself in float32, on the same device.
        sequences: Number of random sequences (one token up to 512 or the model's limit), or of
            images. Default: 8.
        texts: A file of texts (`text_files.read_texts`) in place of random sequences.
        pairs: A file of pairs of texts with scores (`text_files.read_pairs`), for the task embed.
        tolerance: Largest absolute difference that passes. Default: that of `Allowance`; none with
            `floors`, against fp32, if our side stores weights or keys and values in a narrower
            format than it computes in, or if one side rounds activations.
        floors: Requirements in place of the default tolerance.

    Raises:
        ConfigurationError: torch or transformers is missing, arguments exclude each other,
            `quantize_skip` has a name that is not a matrix, or a line of a file is wrong; the
            message has its number.
        CheckpointError: The folder cannot be loaded.
    """
    floors = floors or Floors()
    _check(against, {"sequences": sequences, "texts": texts, "pairs": pairs})
    place = Placement(device, dtype, quantize, quantize_skip, kv_cache_dtype)
    folder = model_folder(model)
    config = read_config(folder)
    task = task or tasks_of(config)
    if kv_cache_dtype != "auto" and task not in _GENERATING:
        raise ConfigurationError(
            f"kv_cache_dtype: got {kv_cache_dtype!r} for a model of the task {task}, wanted auto, "
            "as only models that generate have a KV cache; leave it out"
        )
    if pairs is not None and (task != "embed" or reads_images(config)):
        raise ConfigurationError(
            f"pairs: got a model for {task}, wanted one that embeds texts; give texts, or another "
            "model"
        )
    given = None if pairs is None else read_pairs(pairs)
    lines = None if texts is None else read_texts(texts)
    if given is not None:
        lines = [line for pair in given for line in (pair.first, pair.second)]
    random = np.random.default_rng(seed)
    # As late as possible before weights are read: importing torch and transformers takes seconds.
    reference = REFERENCES[against]()
    compared = _opened(folder, config, task, place, lines, sequences or _SEQUENCES, random)
    place.check_skipped()
    floors.check(perplexity=compared.continues_texts, pairs=given is not None)

    dtype = compared.place.dtype
    exact = (
        compared.place.precision.stores_exactly
        and kv_cache_dtype == "auto"
        and not _rounds_activations(config, place)
    )
    grants = exact and tolerance is None and not floors.given and against == "transformers"
    # Logits of given texts take too much memory to hold; for random input one model is held at a
    # time.
    hold: Callable[[Iterable[Any]], Iterable[Any]] = iter if lines else list
    ours, truth = hold(compared.ours()), hold(reference.results(compared))
    rounded: Iterable[Any] = repeat(None, compared.sequences)
    if grants and dtype != "float32":
        rounded = hold(reference.results(compared, dtype))
    differences, allowance = Differences(), Allowance(dtype)
    next_tokens, similarity = NextTokens(), PairSimilarity()
    for index, (got, wanted, near) in enumerate(zip(ours, truth, rounded, strict=True)):
        differences.add(got, wanted)
        allowance.add({name: wanted[name] for name in got}, near)
        if compared.following is not None:
            next_tokens.add(got["logits"], wanted["logits"], compared.following[index])
        if given is not None:
            similarity.add(got["embedding"], wanted["embedding"])

    found = differences.found()
    allowed = allowance.allowed() if grants else {}
    if tolerance is not None:
        allowed = dict.fromkeys(found, tolerance)
    perplexities = next_tokens.perplexities if compared.continues_texts else (None, None)
    gold = [pair.score for pair in given or []]
    correlations = similarity.spearman(gold) if given is not None else (None, None)
    return Parity(
        reference.architecture or (config.get("architectures") or [config["model_type"]])[0],
        task,
        compared.place.described,
        against,
        compared.sequences,
        compared.tokens,
        found,
        allowed,
        floors,
        next_tokens.places,
        next_tokens.greedy_equal,
        None if compared.following is None else next_tokens.kl_divergence,
        *perplexities,
        *correlations,
    )


def _rounds_activations(config: Mapping[str, Any], place: Placement) -> bool:
    """Whether our products round their inputs, or transformers does it, for a folder of
    compressed-tensors with such settings."""
    settings = config.get("quantization_config") or config.get("compression_config") or {}
    groups = settings.get("config_groups") or {}
    named = any(each.get("input_activations") for each in groups.values())
    return named or not _ROUNDING.isdisjoint(place.formats.values())


def _check(against: str, inputs: dict[str, Any]) -> None:
    if against not in REFERENCES:
        raise ConfigurationError(
            f"against: got {against!r}, wanted one of {', '.join(REFERENCES)}; choose one of these"
        )
    named = [name for name, value in inputs.items() if value is not None]
    if len(named) > 1:
        raise ConfigurationError(
            f"{named[1]}: got it beside {named[0]}, wanted one kind of input; leave one out"
        )


def _opened(
    folder: Path,
    config: dict[str, Any],
    task: str,
    place: Placement,
    lines: list[Line] | None,
    sequences: int,
    random: np.random.Generator,
) -> Compared:
    if reads_images(config):
        if lines is not None:
            raise ConfigurationError(
                "texts: got a model that reads images, wanted one of texts; leave them out"
            )
        return ComparedImages.random(folder, task, place, sequences, random)
    if task in _GENERATING:
        if lines is not None:
            return ComparedDecoder.of_texts(folder, place, lines)
        return ComparedDecoder.random(folder, place, sequences, random)
    if lines is not None:
        return ComparedEncoder.of_texts(folder, task, place, lines)
    return ComparedEncoder.random(folder, task, place, sequences, random)
