"""The one decoder behind every architecture: builds a DecoderBlueprint's layers and runs steps.

Nothing here knows an architecture by name. A step is any mix of prompts, parts of prompts and
single tokens, packed: each sequence at its own position, its past in the cache's pages. Hidden
states live in one [tokens, hidden] matrix that each layer updates in place; intermediates live in
the model's workspace; only rows whose logits are wanted are normed and meet the vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakMethod

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.errors import InvalidInput
from fusewire.models.assemble import Weights, build_decoder_layer, rope_table, token_tables
from fusewire.models.decoder_blueprint import DecoderBlueprint
from fusewire.models.decoder_cache import DecoderCache
from fusewire.models.step_batch import StepBatch, StepInput
from fusewire.models.step_replay import StepReplays
from fusewire.models.warm_up_prompts import warm_up_prompts
from fusewire.placement import BYTES, Placement
from fusewire.weights import Checkpoint

__all__ = ["DecoderCache", "DecoderModel"]


class DecoderModel:
    """A loaded decoder with its language-modelling head.

    Serves one caller at a time: the workspace is shared between steps.
    """

    def __init__(
        self,
        blueprint: DecoderBlueprint,
        checkpoint: Checkpoint,
        place: Placement,
        *,
        config: dict[str, Any],
        folder: Path | None,
    ) -> None:
        """CheckpointError when the checkpoint does not hold exactly the blueprint's tensors."""
        blueprint = _with_own_head(blueprint, checkpoint)
        checkpoint.check(blueprint.tensors(), blueprint.unread)
        self.place = place
        self.config = config
        self.folder = folder
        self.max_length = blueprint.max_length
        self.hidden_size = blueprint.hidden_size
        self.vocab_size = blueprint.head[-1].outputs
        self.eos_token_ids = blueprint.eos_token_ids
        self._blueprint = blueprint
        # Steps of every size come by turns: an arena that shrank would grow again.
        self._workspace = kernels.Workspace(
            kernels.default_allocator(place.device), shrink_after=2**31 - 1
        )

        place.reserve(sum(map(math.prod, blueprint.tensors().values())), "weights")
        weights = Weights(checkpoint, place)
        self._word, self._position = token_tables(blueprint.embeddings, weights)
        angles = {
            rope: rope_table(rope, self.max_length, place)
            for rope in {layer.rope for layer in blueprint.layers}
        }
        self._layers = [
            (build_decoder_layer(blueprint, layer, weights), angles[layer.rope])
            for layer in blueprint.layers
        ]
        self._final_norm = weights.norm(blueprint.final_norm) if blueprint.final_norm else None
        self._replays: StepReplays | None = None
        self._head = [(weights.linear(dense), dense.outputs) for dense in blueprint.head]

    @property
    def bytes_per_token(self) -> int:
        """Of keys and values, over all layers."""
        shape = self._blueprint
        numbers = 2 * len(shape.layers) * shape.kv_heads * shape.head_dim
        return numbers * BYTES[self.place.dtype]

    @property
    def replay_counts(self) -> tuple[int, int, int]:
        """So far: steps that replayed a recorded one, those that found none and could have, and
        padding tokens that replays computed."""
        replays = self._replays
        return (
            (0, 0, 0) if replays is None else (replays.hits, replays.misses, replays.padding_tokens)
        )

    def new_cache(self, pages: int, page_size: int) -> DecoderCache:
        """Room for pages * page_size tokens."""
        shape = self._blueprint
        return DecoderCache(
            self.place, len(shape.layers), pages, page_size, shape.kv_heads, shape.head_dim
        )

    def record_steps(self, cache: DecoderCache, max_sequences: int, max_tokens: int) -> None:
        """From now on steps with this cache of one token a sequence replay a recorded one, where
        the device can record (CUDA graphs); logits then hold until the next `step`. Takes seconds:
        runs prompts of up to `max_tokens`, so that kernels are chosen and the arena is as large as
        it gets, and records steps of every number of sequences up to `max_sequences`. Overwrites
        pages of the cache."""
        if not self.place.stream.can_capture:
            return
        for step in warm_up_prompts(max_tokens, self.max_length, cache):
            self.step(step, cache)
        # Weakly: without a cycle a model goes with its last user, not when Python collects.
        ours = WeakMethod(self._recorded)

        def forward(
            inputs: StepInput,
            batch: kernels.PagedBatch,
            cache: DecoderCache,
            rooms: list[kernels.Tensor],
        ) -> None:
            bound = ours()
            assert bound is not None
            bound(inputs, batch, cache, rooms)

        widths = [self.hidden_size, *(outputs for _, outputs in self._head)]
        self._replays = StepReplays(
            self.place, forward, self._workspace, cache, widths, max_sequences
        )
        self._replays.warm_up()

    def step(self, tokens: StepBatch, cache: DecoderCache) -> kernels.Tensor:
        """Runs the tokens and stores their keys and values. The logits of the rows that are
        wanted, [len(logit_rows), vocabulary], where the model is placed; with recorded steps they
        hold until the next `step`.

        Raises InvalidInput when an id, a position or a row is out of range, kernels.Error when the
        pages do not fit the contexts.
        """
        self._check(tokens)
        if self._replays is not None and self._replays.cache is cache:
            logits = self._replays.run(tokens)
            if logits is not None:
                return logits
        hidden, inputs = self._hidden(tokens, cache)
        return self._logits(hidden, inputs.logit_rows)

    def forward(self, tokens: StepBatch, cache: DecoderCache) -> kernels.Tensor:
        """As `step`, but gives the hidden states [tokens, hidden] that `logits` takes."""
        self._check(tokens)
        return self._hidden(tokens, cache)[0]

    def logits(self, hidden: kernels.Tensor, rows: NDArray[np.int64]) -> kernels.Tensor:
        """[len(rows), vocabulary] of rows of a step's hidden states, which stay as they are."""
        return self._logits(hidden, self.place.exact(rows, np.int64))

    def workspace_stats(self) -> dict[str, int]:
        """The arena's counters, as the kernel library reports them."""
        return self._workspace.stats()

    def _hidden(self, tokens: StepBatch, cache: DecoderCache) -> tuple[kernels.Tensor, StepInput]:
        inputs = StepInput.upload(tokens, self.place)
        x = self.place.empty(tokens.tokens, self.hidden_size)
        self._forward(inputs, inputs.batch(tokens, cache.page_size), x, cache)
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

    def _forward(
        self, inputs: StepInput, batch: kernels.PagedBatch, x: kernels.Tensor, cache: DecoderCache
    ) -> None:
        """Fills x [tokens, hidden]. Takes memory from the workspace alone."""
        stream = self.place.stream
        positions = None if self._position is None else inputs.positions
        scale = self._blueprint.embeddings.scale
        kernels.embed(x, inputs.ids, positions, self._word, self._position, scale, stream)
        for (layer, angles), (keys, values) in zip(self._layers, cache.layers, strict=True):
            layer.forward_cached(
                x,
                batch,
                keys,
                values,
                self._workspace,
                None if angles is None else (*angles, inputs.positions),
                None,
                stream,
            )

    def _recorded(
        self,
        inputs: StepInput,
        batch: kernels.PagedBatch,
        cache: DecoderCache,
        rooms: list[kernels.Tensor],
    ) -> None:
        """A step whose every token is its sequence's last. Takes memory from the workspace alone:
        it can be recorded."""
        self._forward(inputs, batch, rooms[0], cache)
        self._score(rooms[0], rooms[1:])

    def _score(self, x: kernels.Tensor, rooms: list[kernels.Tensor]) -> None:
        """Fills rooms, what each matrix of the head makes of hidden states x [rows, hidden], which
        are normed in place; the last are the logits."""
        stream = self.place.stream
        if self._final_norm is not None:
            weight, bias = self._final_norm
            if self._blueprint.norm == "rms_norm":
                kernels.rms_norm(x, x, weight, self._blueprint.norm_eps, stream)
            else:
                kernels.layer_norm(x, x, weight, bias, self._blueprint.norm_eps, stream)
        for (linear, _), y in zip(self._head, rooms, strict=True):
            kernels.linear(y, x, linear, "none", stream)
            x = y
        if self._blueprint.final_soft_cap:
            kernels.soft_cap(x, x, self._blueprint.final_soft_cap, stream)

    def _check(self, step: StepBatch) -> None:
        """What no kernel can check on a device."""
        _within("input_ids", step.input_ids, self.vocab_size, "use the tokenizer of this model")
        _within("positions", step.positions, self.max_length, "end the sequence")
        if step.logit_rows.size:
            _within("logit_rows", step.logit_rows, step.tokens, "name rows of the step")


def _within(field: str, values: NDArray[Any], end: int, remedy: str) -> None:
    if values.size == 0:
        raise InvalidInput(field, "nothing", "1 token or more", "leave the step out")
    # As unsigned numbers negative ones are large: one look at each, at every step.
    if int(values.view(f"u{values.itemsize}").max()) >= end:
        wrong = values[(values < 0) | (values >= end)][0]
        raise InvalidInput(field, int(wrong), f"0..{end - 1}", remedy)


def _with_own_head(blueprint: DecoderBlueprint, checkpoint: Checkpoint) -> DecoderBlueprint:
    """A head that is tied to the word embeddings, and yet stored with other values, is its own, as
    transformers has it."""
    *chain, last = blueprint.head
    word = blueprint.embeddings.word.name
    own = checkpoint.twice(word) if word == f"{last.names[0]}.weight" else None
    if own is None:
        return blueprint
    return replace(blueprint, head=(*chain, replace(last, names=(own.removesuffix(".weight"),))))
