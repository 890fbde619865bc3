"""Tokenized examples of any length as one packed row, and batches by number of tokens instead of
examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import Sampler

from fusewire.errors import ConfigurationError, InvalidInput


class PackingCollator:
    """Concatenates examples to one row without padding, with the keywords of transformers'
    DataCollatorWithFlattening with `return_flash_attn_kwargs`: models of transformers take it.

    An example has `input_ids` and optionally `labels` (one per token), `token_type_ids`, and an
    `attention_mask`, whose zeros are tokens to drop. `causal`: for models that predict the next
    token and shift labels themselves. Where an example has no labels, its tokens are the labels;
    the first label of a sequence becomes `ignore_index`, as it would follow the last token of
    another sequence. Otherwise (masked language models, one label per token) labels are packed as
    they are. `first_position`: the position of the first token of a sequence; 2 for RoBERTa, whose
    positions begin after the padding id.

    The batch: `input_ids`, `position_ids`, `labels`, `token_type_ids` int64 [1, tokens],
    `cu_seq_lens_q` and `cu_seq_lens_k` int32 [sequences + 1], `max_length_q` and `max_length_k`.
    Raises InvalidInput with the number of an example that does not fit.
    """

    def __init__(
        self, *, causal: bool = True, ignore_index: int = -100, first_position: int = 0
    ) -> None:
        self.causal, self.ignore_index = causal, ignore_index
        self.first_position = first_position

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        if not examples:
            raise InvalidInput("examples", "none", "one or more", "leave empty batches out")
        columns: dict[str, list[torch.Tensor]] = {}
        for number, example in enumerate(examples):
            for name, values in self._columns(number, example).items():
                columns.setdefault(name, []).append(values)
        for name, parts in columns.items():
            if len(parts) < len(examples):
                raise InvalidInput(
                    name, f"it in {len(parts)} of {len(examples)} examples", "all or none", "add it"
                )
        lengths = [len(ids) for ids in columns["input_ids"]]
        positions = [torch.arange(n) + self.first_position for n in lengths]
        boundaries = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
        batch: dict[str, Any] = {name: torch.cat(parts)[None] for name, parts in columns.items()}
        batch["position_ids"] = torch.cat(positions)[None]
        batch["cu_seq_lens_q"] = batch["cu_seq_lens_k"] = boundaries
        batch["max_length_q"] = batch["max_length_k"] = max(lengths)
        return batch

    def _columns(self, number: int, example: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The columns of an example with one entry per token, int64 [tokens]."""
        if not isinstance(example, Mapping):
            raise InvalidInput(
                "examples",
                f"a {type(example).__name__} as example {number}",
                "a list of mappings with input_ids",
                "name the tokens: {'input_ids': tokens}",
            )
        found = {
            name: _tensor(number, name, example[name])
            for name in ("input_ids", "labels", "token_type_ids", "attention_mask")
            if example.get(name) is not None
        }
        if "input_ids" not in found:
            raise InvalidInput(
                "input_ids", f"none in example {number}", "a list of tokens", "tokenize it"
            )
        shape = found["input_ids"].shape
        for name, values in found.items():
            fractions = values.is_floating_point() and values.numel() > 0
            if values.ndim != 1 or values.shape != shape or fractions:
                raise InvalidInput(
                    name,
                    f"{values.dtype} of shape {list(values.shape)} in example {number}",
                    f"integers, one for each of {shape.numel()} tokens",
                    "pack what is labelled by token; sequences with one label are padded, and "
                    "replaced models pack them",
                )
        kept = found.pop("attention_mask", torch.ones(shape)).bool()
        columns = {name: values[kept].to(torch.int64) for name, values in found.items()}
        if not len(columns["input_ids"]):
            raise InvalidInput(
                "input_ids", f"no token in example {number}", "one or more", "leave it out"
            )
        if self.causal:
            labels = columns.get("labels", columns["input_ids"]).clone()
            labels[0] = self.ignore_index
            columns["labels"] = labels
        return columns


def _tensor(number: int, name: str, values: Any) -> torch.Tensor:
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInput(
            name,
            f"a {type(values).__name__} that is no row of numbers in example {number}",
            "integers, one for each token",
            "tokenize it",
        ) from None


class TokenBudgetSampler(Sampler[list[int]]):
    """Batches of as many examples as fit in `max_tokens`, for the `batch_sampler` of a DataLoader.

        sampler = TokenBudgetSampler(lengths, max_tokens=4096)
        loader = DataLoader(examples, batch_sampler=sampler, collate_fn=PackingCollator())

    Examples are taken in an order given by `seed` and the epoch (`set_epoch`), or with
    `shuffle=False` in their own. A batch ends where the next example would exceed the budget. With
    several processes each takes every `world_size`-th batch, all the same number: up to
    `world_size` - 1 batches are left out. Raises ConfigurationError for settings out of range and
    for an example longer than the budget.
    """

    def __init__(
        self,
        lengths: Iterable[int],
        max_tokens: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if world_size < 1:
            raise ConfigurationError(f"world_size: got {world_size}, wanted 1 or more processes")
        if not 0 <= rank < world_size:
            raise ConfigurationError(f"rank: got {rank}, wanted [0, {world_size}), of world_size")
        self._lengths, self._max_tokens = list(lengths), max_tokens
        for number, length in enumerate(self._lengths):
            if not 0 < length <= max_tokens:
                raise ConfigurationError(
                    f"lengths: got {length} tokens in example {number}, wanted 1 to {max_tokens}; "
                    "cut the example, or raise max_tokens"
                )
        self._shuffle, self._seed, self._epoch = shuffle, seed, 0
        self._rank, self._world_size = rank, world_size

    def set_epoch(self, epoch: int) -> None:
        """Changes the order, equally in all processes."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        batches = list(self._batches())
        even = len(batches) - len(batches) % self._world_size
        return iter(batches[self._rank : even : self._world_size])

    def __len__(self) -> int:
        """The number of batches of this process in this epoch."""
        return sum(1 for _ in self._batches()) // self._world_size

    def _batches(self) -> Iterator[list[int]]:
        batch: list[int] = []
        tokens = 0
        for number in self._order():
            if tokens + self._lengths[number] > self._max_tokens:
                yield batch
                batch, tokens = [], 0
            batch.append(number)
            tokens += self._lengths[number]
        if batch:
            yield batch

    def _order(self) -> list[int]:
        if not self._shuffle:
            return list(range(len(self._lengths)))
        generator = torch.Generator().manual_seed(self._seed + self._epoch)
        order: list[int] = torch.randperm(len(self._lengths), generator=generator).tolist()
        return order
