"""What a step of generation costs: measured at load, as an encoder's micro-batches are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fusewire.engine.costs import CostTable, measure
from fusewire.engine.generation_scheduler import GenerationScheduler
from fusewire.engine.generation_sequence import GenerationSequence
from fusewire.engine.kv_cache import Source
from fusewire.engine.packing import pack, pack_sources
from fusewire.models.seq2seq_model import Seq2SeqModel
from fusewire.models.speech_model import SpeechModel
from fusewire.models.step_batch import SourceTable

if TYPE_CHECKING:
    from fusewire.models.decoder import DecoderModel
    from fusewire.models.decoder_cache import DecoderCache

# Most tokens of a prompt, and of a step, that are measured; what larger ones cost shows in their
# steps.
_LONGEST = 64
_MOST_TOKENS = 512
# Steps of few sequences cost less than those of many, and correct only what such steps cost.
_FEWEST_TOKENS = 1
_BUDGET_S = 0.6


def measure_steps(
    model: DecoderModel,
    memory: DecoderCache,
    scheduler: GenerationScheduler,
    max_tokens: int,
    max_sequences: int,
) -> CostTable:
    """Times steps over prompts, in about half a second, where nothing else runs or waits. A step of
    sequences that go on costs as one of prompts of as many tokens, until it was seen."""
    # What it costs to encode audio, of which there is always as much, shows in the first steps.
    encoder = model if isinstance(model, Seq2SeqModel) else None
    if isinstance(model, SpeechModel):
        encoder = None
    longest = min(_LONGEST, model.max_length - 1)
    if encoder is not None:
        longest = min(longest, encoder.max_source_length)

    def run(lengths: Sequence[int]) -> None:
        sequences = [
            GenerationSequence([0] * (1 if encoder else n), 2 if encoder else n + 1)
            for n in lengths
        ]
        for index, (sequence, n) in enumerate(zip(sequences, lengths, strict=True)):
            if encoder is not None:
                sequence.source = Source([index] * n)  # equal ones would be encoded once
            scheduler.add(sequence)
        try:
            step = scheduler.plan(0.0)
            if encoder is not None:
                encoder.encode(pack_sources(step), memory)
            if step.prompts:
                batch, _, _ = pack(step)
                if isinstance(model, SpeechModel):
                    batch = replace(batch, sources=_any_source(batch.sequences))
                model.step(batch, memory)
            model.place.stream.synchronize()
        finally:
            for sequence in sequences:
                scheduler.finish(sequence)

    most = min(max_tokens, _MOST_TOKENS, longest * max_sequences)
    if encoder is not None:  # room for the token that each decoder begins with
        most = max(1, most - most // longest - 1)
    return measure(run, most, longest, _BUDGET_S, time.perf_counter, fewest=_FEWEST_TOKENS)


def _any_source(sequences: int) -> SourceTable:
    """A source of one position in page 0 for each sequence, whatever is there."""
    return SourceTable(np.ones(sequences, np.int32), np.zeros((sequences, 1), np.int32))
