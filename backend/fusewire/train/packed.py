"""Padded batches, or concatenated sequences, as the packed tokens that stacks read, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from fusewire.errors import InvalidInput
from fusewire.kernels import SequenceBatch
from fusewire.train.torch_tensors import capturing, staged, stream_of, view

# Keywords of DataCollatorWithFlattening other than input_ids, labels and position_ids.
FLATTENING = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")

SOURCE, TARGET = "", "decoder_"  # sides: prefixes of a model's argument names

_CPU = torch.device("cpu")
_PREPARED: ContextVar[Mapping[str, Packed]] = ContextVar("prepared", default=MappingProxyType({}))


class Rows(NamedTuple):
    """Some rows of a matrix, which are computed alone: int64, where each is read, and where it is
    written: behind the last row of the matrix for a row that only repeats another."""

    index: torch.Tensor
    places: torch.Tensor


class Packed:
    """Which places of a padded batch [rows, length] are tokens, and where each sequence begins.

    `mask` [rows, length]: 1 or True for tokens, 0 for padding, on any side; None: all are tokens.
    `cu_seqlens` int32 [sequences + 1]: for rows that hold several concatenated sequences, where
    `mask` is None. `device`: where the tokens are. `side`: SOURCE or TARGET. Raises
    InvalidInput for a mask that does not fit, or that has a row without a token.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        mask: torch.Tensor | None = None,
        cu_seqlens: torch.Tensor | None = None,
        device: torch.device = _CPU,
        side: str = "",
    ) -> None:
        self.shape = shape
        rows, length = shape
        if rows < 1 or length < 1:
            raise InvalidInput(
                f"{side}input_ids", f"shape {list(shape)}", "a token", "leave empty batches out"
            )
        self._index: torch.Tensor | None = None
        self.rows_begin = True  # whether the first place of every row is a token
        if mask is not None:
            there, lengths = tokens_of(mask, shape, side)
            self.rows_begin = bool(there[:, 0].all())
            if int(lengths.sum()) < rows * length:
                index = there.flatten().nonzero().squeeze(1)
                self._index = staged(index, device).to(device, non_blocking=True)
            cu_seqlens = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        elif cu_seqlens is None and capturing(device):
            offsets = torch.arange(rows + 1, dtype=torch.int32, device=device) * length
            self.batch = SequenceBatch.bucket(view(offsets), rows * length, length)
            return
        elif cu_seqlens is None:
            cu_seqlens = torch.arange(rows + 1) * length
        offsets = offsets_of(cu_seqlens, self.tokens)
        self.batch = SequenceBatch(view(offsets), stream_of(device))

    @property
    def tokens(self) -> int:
        return self.shape[0] * self.shape[1] if self._index is None else len(self._index)

    @property
    def longest(self) -> int:
        """The length of the longest sequence, in tokens."""
        return self.batch.max_seqlen

    @property
    def predicting(self) -> Rows | None:
        """The tokens among the places of all rows, where it is known that all labels of the batch
        are predicted by them, and they are fewer."""
        return None

    def pack(self, padded: torch.Tensor) -> torch.Tensor:
        """[rows, length, ...] -> [tokens, ...]; [1, length, ...] is broadcast to every row."""
        if padded.shape[:2] != self.shape:
            padded = padded.expand(*self.shape, *padded.shape[2:])
        flat = padded.reshape(-1, *padded.shape[2:])
        return flat if self._index is None else flat.index_select(0, self._index)

    def unpack(self, tokens: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] -> [rows, length, hidden], with zeros at padding."""
        hidden = tokens.shape[1]
        if self._index is None:
            return tokens.view(*self.shape, hidden)
        padded = tokens.new_zeros(self.shape[0] * self.shape[1], hidden)
        return padded.index_copy(0, self._index, tokens).view(*self.shape, hidden)


def packed(
    shape: tuple[int, int],
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    flattening: Mapping[str, Any],
    device: torch.device,
    side: str = "",
) -> Packed:
    """The tokens that a model's arguments describe. Without a mask, a row with `cu_seq_lens_q`
    holds several sequences, and so does each row whose `position_ids` (in decoders) start again, as
    in transformers.

    Raises InvalidInput for a mask that does not fit, and for a mask together with `cu_seq_lens_q`.
    In a `prepared` context it returns what was passed to that, and refuses another batch.
    """
    if (known := _PREPARED.get().get(side)) is not None:
        _expect_its_batch(known, shape, attention_mask, device, side)
        return known
    cu_seqlens = flattening.get("cu_seq_lens_q")
    if attention_mask is not None:
        if cu_seqlens is not None:
            raise two_forms()
        return Packed(shape, attention_mask, device=device, side=side)
    if cu_seqlens is None and position_ids is not None:
        begins = torch.ones(shape, dtype=torch.bool, device=position_ids.device)
        begins[:, 1:] = position_ids.diff() != 1
        end = begins.new_tensor([shape[0] * shape[1]], dtype=torch.int64)
        cu_seqlens = torch.cat([begins.flatten().nonzero().squeeze(1), end])
    return Packed(shape, None, cu_seqlens, device, side)


@contextmanager
def prepared(by_side: Mapping[str, Packed]) -> Iterator[None]:
    """Models that are called in the context use these tokens, one entry per `side`."""
    before = _PREPARED.set(by_side)
    try:
        yield
    finally:
        _PREPARED.reset(before)


@contextmanager
def only(side: str) -> Iterator[None]:
    """In the context labels are of this side, whatever shapes others have."""
    known = _PREPARED.get()
    with prepared({side: known[side]} if side in known else known):
        yield


def predicting(shape: torch.Size) -> Rows | None:
    """In a `prepared` context, the rows that labels of this shape are predicted by. None: all, or
    not known, as where both sides have that shape."""
    sides = [tokens for tokens in _PREPARED.get().values() if tokens.shape == tuple(shape)]
    return sides[0].predicting if len(sides) == 1 else None


def in_step() -> bool:
    """Whether a `prepared` context is open: code in it must not synchronise."""
    return bool(_PREPARED.get())


def _expect_its_batch(
    known: Packed,
    shape: tuple[int, int],
    mask: torch.Tensor | None,
    device: torch.device,
    side: str,
) -> None:
    """Raises InvalidInput for what is not the prepared batch. A mask is read, so that this may
    synchronise, but not while a step is captured: it ran before."""
    remedy = "put all rows that the loss needs into one batch, or write the step yourself"
    if shape != known.shape:
        raise InvalidInput(
            f"{side}input_ids",
            f"shape {list(shape)} in a Step",
            f"{list(known.shape)}, that of its batch",
            remedy,
        )
    if mask is None or capturing(device):
        return
    there = known.unpack(torch.ones(known.tokens, 1, device=device))[..., 0]
    if mask.shape != there.shape or not torch.equal(there == 1, mask.to(device) == 1):
        raise InvalidInput(
            f"{side}attention_mask", "another in a Step", "that of its batch", remedy
        )


def two_forms() -> InvalidInput:
    return InvalidInput(
        "attention_mask", "one beside cu_seq_lens_q", "either", "leave one of them out"
    )


def offsets_of(cu_seqlens: torch.Tensor, tokens: int) -> torch.Tensor:
    """`cu_seq_lens_q` of so many tokens as int32 [sequences + 1] on the CPU. Synchronises for one
    on a GPU. Raises InvalidInput unless each sequence in it has a token, and all have `tokens`."""
    offsets = cu_seqlens.to(device="cpu", dtype=torch.int32).contiguous()
    if offsets.ndim != 1 or len(offsets) < 2:
        got = f"shape {list(offsets.shape)}"
    elif int(offsets[0]) != 0 or int(offsets.diff().min()) < 1:
        got = "numbers that do not rise from 0"
    elif int(offsets[-1]) != tokens:
        got = f"{int(offsets[-1])} tokens in all"
    else:
        return offsets
    raise InvalidInput(
        "cu_seq_lens_q",
        got,
        f"where each sequence begins, and the end: {tokens}, the tokens of input_ids",
        "pass what the collator made of this batch",
    )


def tokens_of(
    mask: torch.Tensor, shape: tuple[int, int], side: str = ""
) -> tuple[torch.Tensor, torch.Tensor]:
    """On the CPU: where the tokens are, bool [rows, length], and the length of each row.
    Synchronises once for a mask on a GPU. Raises InvalidInput as Packed does."""
    there = _checked(mask, shape, side)
    lengths = there.sum(1)
    if int(lengths.min()) < 1:
        raise InvalidInput(
            f"{side}attention_mask",
            f"row {int(lengths.argmin())} of zeros alone",
            "a token in every row",
            "leave the row out",
        )
    return there, lengths


def _checked(mask: torch.Tensor, shape: tuple[int, int], side: str) -> torch.Tensor:
    name = f"{side}attention_mask"
    if tuple(mask.shape) != shape:
        raise InvalidInput(
            name,
            f"shape {list(mask.shape)}",
            f"{list(shape)} as {side}input_ids",
            "pass the tokenizer's mask",
        )
    mask = mask.cpu()
    there = mask == 1
    if not bool((there | (mask == 0)).all()):
        raise InvalidInput(name, "other values", "0 or 1", "pass the tokenizer's mask")
    return there
