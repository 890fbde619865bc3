"""The decoder of all architectures: runs steps through a stack and a language-modelling head.

A step is any mix of prompts, parts of prompts and single tokens, packed. Each sequence is at its
own position, with its past in the pages of the KV cache. The final norm and the vocabulary's matrix
are applied only to rows whose logits are wanted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.errors import InvalidInput
from fusewire.models.assemble import Weights
from fusewire.models.blueprint import Blueprint, Stack
from fusewire.models.decoder_cache import DecoderCache
from fusewire.models.inputs import Inputs
from fusewire.models.language_head import with_stored_bias
from fusewire.models.model import Model
from fusewire.models.step_batch import PagedStep, StepBatch, paged, upload
from fusewire.models.step_replay import StepReplays, table_widths
from fusewire.models.warm_up_prompts import warm_up_prompts
from fusewire.placement import BYTES, Placement
from fusewire.weights import Checkpoint

__all__ = ["DecoderCache", "DecoderModel"]

_HEAD = "generate"


class DecoderModel(Model):
    """A loaded decoder with its language-modelling head."""

    _arena_shrinks = False  # steps of all sizes alternate: it would grow again
    _reads_sources = False  # whether steps have sources (encoder-decoder models)

    def __init__(
        self,
        blueprint: Blueprint,
        checkpoint: Checkpoint,
        place: Placement,
        *,
        config: dict[str, Any],
        folder: Path | None,
    ) -> None:
        blueprint = with_stored_bias(blueprint, checkpoint)
        super().__init__(blueprint, _HEAD, checkpoint, place, config=config, folder=folder)
        self.vocab_size = blueprint.task_heads[_HEAD].chain[-1].outputs
        self.eos_token_ids = blueprint.eos_token_ids
        self._attentions = blueprint.stack.attentions
        self._replays: StepReplays | None = None

    def _stack_of(self, blueprint: Blueprint) -> Stack:
        # The final norm is applied only to rows whose logits are wanted.
        return replace(blueprint.stack, final_norm=None)

    def _load_head(self, blueprint: Blueprint, head: str | None, weights: Weights) -> None:
        given = blueprint.task_heads[_HEAD]
        self._final_norm = weights.built_norm(blueprint.stack.final_norm)
        *before, scores = given.chain
        self._head = [(weights.linear(dense), dense.outputs) for dense in before]
        self._head.append((weights.vocabulary_linear(scores), scores.outputs))
        self._soft_cap = given.soft_cap

    @property
    def bytes_per_token(self) -> int:
        """Bytes of the keys and values of one token, over all layers."""
        numbers = sum(2 * attention.kv_width for attention in self._attentions)
        return numbers * BYTES[self.place.cache_dtype]

    @property
    def replay_counts(self) -> tuple[int, int, int]:
        """Counts so far: steps that replayed a captured one, steps that could have but found none,
        and padding tokens that replays computed."""
        replays = self._replays
        return (
            (0, 0, 0) if replays is None else (replays.hits, replays.misses, replays.padding_tokens)
        )

    def new_cache(self, pages: int, page_size: int) -> DecoderCache:
        """Returns a cache with room for pages * page_size tokens."""
        first, layers = self._attentions[0], len(self._attentions)
        heads = first.kv_heads or first.heads
        return DecoderCache(self.place, layers, pages, page_size, first.kv_width, heads)

    def table_width(self, pages: int, source_pages: int | None = None) -> int:
        """Returns the width of a block table on the device that captured steps read without
        conversion, with room for `pages`, beside sources of at most `source_pages`."""
        return table_widths(pages, source_pages)[0]

    def tune(self, cache: DecoderCache, max_sequences: int, max_tokens: int) -> None:
        """Selects the kernels of matrix products for steps of every size up to `max_tokens`, with
        logits of up to `max_sequences` rows, where there are alternatives. They are timed, which
        takes seconds on a GPU where the model is new, or else read from the file of earlier
        timings. Nothing is timed later. Overwrites pages of the cache."""
        rows = self.place.rows_to_tune(max_tokens)
        with self.place.tuning():
            for step in self._warm_up(rows, max_sequences, cache):
                self.step(step, cache)

    def record_steps(self, cache: DecoderCache, max_sequences: int, max_tokens: int) -> None:
        """Captures steps of one token per sequence with this cache as CUDA graphs, where the device
        can; from now on such steps are replayed, and their logits are valid until the next `step`.
        Takes seconds: it tunes, which grows the arena to its final size, and captures steps of
        every number of sequences up to `max_sequences`. Overwrites pages of the cache."""
        self.tune(cache, max_sequences, max_tokens)
        if not self.place.stream.can_capture:
            return
        widths = [self.hidden_size, *(outputs for _, outputs in self._head)]
        self._replays = StepReplays(
            self.place,
            self._recorded,
            self._workspace,
            cache,
            widths,
            max_sequences,
            sources=self._reads_sources,
        )
        with self.place.tuning():
            self._replays.warm_up()

    def step(self, tokens: StepBatch, cache: DecoderCache) -> kernels.Tensor:
        """Runs the tokens and stores their keys and values. Returns the logits of the wanted rows,
        [len(logit_rows), vocabulary], on the model's device; with captured steps they are valid
        until the next `step`.

        Raises InvalidInput when an id, a position or a row is out of range, kernels.Error when the
        pages do not fit the contexts.
        """
        self._check(tokens)
        if self._replays is not None and self._replays.cache is cache:
            logits = self._replays.run(tokens)
            if logits is not None:
                return logits
        hidden, inputs = self._hidden(tokens, cache)
        return self._logits(hidden, inputs["logit_rows"])

    def forward(self, tokens: StepBatch, cache: DecoderCache) -> kernels.Tensor:
        """As `step`, but returns the hidden states [tokens, hidden] that `logits` takes."""
        self._check(tokens)
        return self._hidden(tokens, cache)[0]

    def logits(self, hidden: kernels.Tensor, rows: NDArray[np.int64]) -> kernels.Tensor:
        """Returns the logits [len(rows), vocabulary] of rows of a step's hidden states, which are
        not changed."""
        return self._logits(hidden, self.place.exact(rows, np.int64))

    def _hidden(self, tokens: StepBatch, cache: DecoderCache) -> tuple[kernels.Tensor, Inputs]:
        tokens = tokens.with_table(self.place)
        inputs = upload(tokens, self.place)
        x = self.place.empty(tokens.tokens, self.hidden_size)
        self._stack.forward_cached(x, inputs, paged(inputs, tokens, cache.page_size), cache.planes)
        return x, inputs

    def _logits(self, hidden: kernels.Tensor, rows: kernels.Tensor) -> kernels.Tensor:
        (count,) = rows.shape
        if count == 0:
            return self.place.empty(0, self.vocab_size)
        wanted = self.place.empty(count, self.hidden_size)
        kernels.gather_rows(wanted, hidden, rows, self.place.stream)
        rooms = [self.place.matrix(count, outputs) for _, outputs in self._head]
        self._score(wanted, rooms)
        return rooms[-1]

    def _recorded(
        self,
        inputs: Inputs,
        step: PagedStep,
        cache: DecoderCache,
        rooms: list[kernels.Tensor],
    ) -> None:
        """Runs a step in which every token is the last of its sequence. Allocates only from the
        workspace, so it can be captured."""
        self._stack.forward_cached(rooms[0], inputs, step, cache.planes)
        self._score(rooms[0], rooms[1:])

    def _score(self, x: kernels.Tensor, rooms: list[kernels.Tensor]) -> None:
        """Writes the output of each matrix of the head, for hidden states x [rows, hidden], to
        `rooms`; the last are the logits. The final norm is applied to x in place."""
        stream = self.place.stream
        if self._final_norm is not None:
            self._final_norm.apply(x, x, stream)
        for (linear, _), y in zip(self._head, rooms, strict=True):
            kernels.linear(y, x, linear, "none", stream)
            x = y
        if self._soft_cap:
            kernels.soft_cap(x, x, self._soft_cap, stream)

    def _warm_up(
        self, sizes: list[int], max_logit_rows: int, cache: DecoderCache
    ) -> Iterator[StepBatch]:
        """Yields steps with these numbers of tokens."""
        return warm_up_prompts(sizes, self.max_length, max_logit_rows, cache)

    def _check(self, step: StepBatch) -> None:
        """Raises InvalidInput for what kernels cannot check on a device."""
        if (step.sources is not None) != self._reads_sources:
            got = "none" if step.sources is None else "some for a model without an encoder"
            wanted = "one for each sequence" if step.sources is None else "none"
            raise InvalidInput("sources", got, wanted, "give those that `encode` stored")
        if step.sampled is None or step.sampled.shape[0] < step.tokens:
            within("input_ids", step.input_ids, self.vocab_size, "use the tokenizer of this model")
        within("positions", step.positions, self.max_length, "end the sequence")
        if step.logit_rows.size:
            within("logit_rows", step.logit_rows, step.tokens, "name rows of the step")


def within(field: str, values: NDArray[Any], end: int, remedy: str) -> None:
    """Raises InvalidInput unless there are values, all of them in 0..end - 1."""
    if values.size == 0:
        raise InvalidInput(field, "nothing", "1 token or more", "leave the step out")
    # Viewed as unsigned, negative values are large: one pass per step checks both bounds.
    if int(values.view(f"u{values.itemsize}").max()) >= end:
        wrong = values[(values < 0) | (values >= end)][0]
        raise InvalidInput(field, int(wrong), f"0..{end - 1}", remedy)
