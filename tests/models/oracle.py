"""The outputs of transformers for ragged sequences, computed one at a time, and those of
fusewire."""

from __future__ import annotations

from collections.abc import Sequence as Sequences
from typing import Any

import numpy as np
import torch
from fusewire.batch import Batch, Sequence
from fusewire.models import EncoderModel
from numpy.typing import NDArray

from tests.places import TORCH_DTYPES
from tests.tolerance import Allowed, allowed_error

# On tiny models, two thread pools that compete for the cores are slower than one thread.
torch.set_num_threads(1)

RAGGED = (1, 2, 64, 5, 33, 17)

Answers = list[dict[str, NDArray[np.float32]]]  # one dictionary per sequence


def random_sequences(model: EncoderModel, lengths: Sequences[int], seed: int = 0) -> list[Sequence]:
    """Returns ids from the whole vocabulary, so that padding and other special ids appear as tokens
    too."""
    rng = np.random.default_rng(seed)
    types = max(1, model.type_vocab_size)
    return [
        Sequence(
            rng.integers(0, model.vocab_size, length),
            rng.integers(0, types, length).astype(np.int32),
        )
        for length in lengths
    ]


def fusewire_answers(model: EncoderModel, sequences: list[Sequence], task: str) -> Answers:
    """Returns one dictionary per sequence, with transformers' names."""
    batch = Batch.pack(sequences)
    hidden = model.encode(batch)
    values = {"last_hidden_state": model.place.numpy(hidden)}
    if task == "fill":
        values["logits"] = model.place.numpy(model.fill_logits(hidden, np.arange(batch.tokens)))
    elif model.has_head:
        values["logits"] = model.logits(hidden, batch)
    # One row of logits per sequence, otherwise one per token.
    pooled = task in ("hidden", "classify")
    answers = []
    for index in range(batch.sequences):
        rows = batch.rows(index)
        answer = {"last_hidden_state": values["last_hidden_state"][rows].copy()}
        if "logits" in values:
            answer["logits"] = values["logits"][index if pooled else rows].copy()
        answers.append(answer)
    return answers


def transformers_answers(reference: Any, model: EncoderModel, sequences: list[Sequence]) -> Answers:
    """Returns the same as `fusewire_answers`, computed on the device and in the dtype of the
    weights, then converted."""
    answers = []
    device = next(reference.parameters()).device

    def fp32(tensor: torch.Tensor) -> NDArray[np.float32]:
        return tensor.float().cpu().numpy()

    for sequence in sequences:
        inputs = {"input_ids": torch.from_numpy(sequence.input_ids[None]).to(device)}
        if model.uses_token_types:
            types = torch.from_numpy(sequence.token_type_ids[None]).long()
            inputs["token_type_ids"] = types.to(device)
        with torch.no_grad():
            output = reference(**inputs, output_hidden_states=True)
        answer = {"last_hidden_state": fp32(output.hidden_states[-1][0])}
        if "start_logits" in output:
            both = torch.stack([output.start_logits[0], output.end_logits[0]], dim=1)
            answer["logits"] = fp32(both)
        elif "logits" in output:
            answer["logits"] = fp32(output.logits[0])
        elif output.get("pooler_output") is not None:
            answer["logits"] = fp32(output.pooler_output[0])
        answers.append(answer)
    return answers


def differences(ours: Answers, theirs: Answers) -> dict[str, float]:
    """Returns the largest difference over all sequences, by result; both sides must have the same
    results."""
    worst: dict[str, float] = {}
    for got, wanted in zip(ours, theirs, strict=True):
        assert got.keys() == wanted.keys()
        for name, value in wanted.items():
            assert got[name].shape == value.shape, name
            assert np.isfinite(got[name]).all(), name
            difference = float(np.abs(got[name] - value).max())
            worst[name] = max(worst.get(name, 0.0), difference)
    return worst


def rows(answers: Answers, name: str) -> NDArray[np.float64]:
    """Returns one result of all sequences."""
    return np.concatenate([np.atleast_2d(answer[name]) for answer in answers]).astype(np.float64)


def allowed_errors(
    reference: Any, model: EncoderModel, sequences: list[Sequence]
) -> dict[str, Allowed]:
    """Returns, by result, the allowed error of answers in the model's dtype from those of the
    reference, which is left in that dtype."""
    dtype = model.place.dtype
    truth = transformers_answers(reference, model, sequences)
    same = transformers_answers(reference.to(TORCH_DTYPES[dtype]), model, sequences)
    terms = max(reference.config.hidden_size, *map(len, sequences))
    return {
        name: allowed_error(rows(truth, name), rows(same, name), dtype, terms) for name in truth[0]
    }


def excess(answers: Answers, allowed: dict[str, Allowed]) -> dict[str, str]:
    """Returns, by result, where answers exceed their allowed error."""
    found = {name: each.excess(rows(answers, name)) for name, each in allowed.items()}
    return {name: what for name, what in found.items() if what}


def largest_difference(
    reference: Any, model: EncoderModel, task: str, lengths: Sequences[int] = RAGGED, seed: int = 0
) -> float:
    """Returns the largest difference over all results and sequences."""
    sequences = random_sequences(model, lengths, seed)
    ours = fusewire_answers(model, sequences, task)
    theirs = transformers_answers(reference, model, sequences)
    return max(differences(ours, theirs).values())
