"""Checks types and shapes of the tensors of a request, and splits them into rows.

An InvalidInput names the field, its value, the allowed values and a remedy. Whether the ids are in
the model's vocabulary is checked in `text_encoder`, with those of texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fusewire.errors import InvalidInput, counted, type_name
from fusewire.settings import EngineSettings
from fusewire.tasks.contract import contract
from fusewire.tasks.rows import IdRow, Query, TextRow
from fusewire.text.tokenizer_files import WANTED

Pairs = Literal["refused", "optional", "required"]

# Limit of a text: tokenisation takes hundreds of bytes of memory per character.
MOST_CHARACTERS = 1 << 24
_TEXT_FIELDS = ("text_input", "text_pair")
_ID_FIELDS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True)
class InputRules:
    """What the task and the model accept."""

    task: str
    pairs: Pairs
    has_tokenizer: bool
    max_length: int
    ranks: bool = False  # an empty second text counts as a text


class TextInputs:
    """Implements Inputs (task.py) for models of texts."""

    def __init__(self, rules: InputRules, prompt: Callable[[EngineSettings], str]) -> None:
        """`prompt`: returns the prefix of every text; may raise InvalidInput."""
        self.rules = rules
        self._prompt = prompt

    def read(
        self,
        inputs: Mapping[str, NDArray[Any]],
        given: Iterable[str],
        settings: EngineSettings,
    ) -> Query:
        """See Inputs."""
        rules = self.rules
        if settings.max_length is not None:
            rules = replace(rules, max_length=settings.max_length)
        rows = read_rows(inputs, rules)
        for name in {"prompt", "prompt_name"} & set(given):
            if isinstance(rows[0], IdRow):
                got, wanted = "it together with input_ids", "it only with texts"
                raise InvalidInput(name, got, wanted, "put the prompt's ids before the others")
        return Query(settings, rows, self._prompt(settings))


def read_rows(inputs: Mapping[str, NDArray[Any]], rules: InputRules) -> list[TextRow] | list[IdRow]:
    """Returns the request's rows, one or more, in order."""
    known = [tensor.name for tensor in contract(rules.task)[0]]
    for name in inputs:
        if name not in known:
            raise InvalidInput(
                name, "an input", f"one of {', '.join(known)} for {rules.task}", "leave it out"
            )
    texts = [name for name in _TEXT_FIELDS if name in inputs]
    ids = [name for name in _ID_FIELDS if name in inputs]
    if texts and ids:
        raise InvalidInput(
            texts[0], f"{' and '.join(texts + ids)} together", "texts or ids", "send one of the two"
        )
    if "text_input" in inputs:
        return _text_rows(inputs, rules)
    if "input_ids" in inputs:
        return _id_rows(inputs, rules)
    if texts or ids:
        alone, needed = (texts or ids)[0], "text_input" if texts else "input_ids"
        raise InvalidInput(alone, f"{alone} alone", f"{needed} with it", f"send {needed} too")
    raise InvalidInput(
        "text_input", "neither text_input nor input_ids", "one of them", "send a text or its ids"
    )


def _text_rows(inputs: Mapping[str, NDArray[Any]], rules: InputRules) -> list[TextRow]:
    if not rules.has_tokenizer:
        raise InvalidInput(
            "text_input",
            "a text for a model without a tokenizer",
            "input_ids",
            f"tokenize at the client, or put the tokenizer into the model folder: {WANTED}",
        )
    texts = _texts("text_input", inputs["text_input"])
    if "text_pair" not in inputs:
        if rules.pairs == "required":
            raise InvalidInput(
                "text_pair",
                "nothing",
                f"a second text, which {rules.task} needs",
                "send text_pair with a text for each text_input",
            )
        return [TextRow(text) for text in texts]
    if rules.pairs == "refused":
        raise InvalidInput(
            "text_pair", "a second text", f"none, as {rules.task} takes one text", "leave it out"
        )
    pairs = _texts("text_pair", inputs["text_pair"])
    if len(pairs) != len(texts):
        raise InvalidInput(
            "text_pair",
            counted(len(pairs), "texts"),
            f"{len(texts)}, as many as text_input",
            "send a second text for each first",
        )
    rows = zip(texts, pairs, strict=True)
    if rules.pairs == "required" or rules.ranks:
        return [TextRow(text, pair) for text, pair in rows]
    # As in transformers' pipelines, an empty second text does not become a second segment.
    return [TextRow(text, pair or None) for text, pair in rows]


def _texts(field: str, array: NDArray[Any]) -> list[str]:
    if array.dtype.kind not in "OSU":
        raise InvalidInput(field, f"dtype {array.dtype}", "strings (BYTES)", "send texts")
    if array.ndim != 2 or array.shape[1] != 1:
        raise InvalidInput(
            field, f"shape {list(array.shape)}", "shape [n, 1]", "send one text a row"
        )
    if len(array) == 0:
        raise InvalidInput(field, "no texts", "at least 1", "send a text")
    return [decoded(field, value, row_of(row, array)) for row, value in enumerate(array[:, 0])]


def decoded(field: str, value: object, row: int | None = None) -> str:
    """Returns the text in a tensor. Raises InvalidInput for bytes that are not UTF-8, lone
    surrogates, other types, and texts that are too long. `row`: see InvalidInput."""
    text = _decoded(field, value, row)
    if len(text) > MOST_CHARACTERS:
        got, wanted = f"{len(text)} characters", f"at most {MOST_CHARACTERS}"
        raise InvalidInput(field, got, wanted, "cut the text, or tokenize it at the client", row)
    return text


def _decoded(field: str, value: object, row: int | None) -> str:
    try:
        if isinstance(value, str):
            value.encode()  # raises for a lone surrogate
            return value
        if isinstance(value, (bytes, bytearray)):
            return value.decode()
    except UnicodeDecodeError as error:
        got = f"byte 0x{error.object[error.start]:02x} at offset {error.start}"
        raise InvalidInput(field, got, "UTF-8", "encode the text as UTF-8", row) from None
    except UnicodeEncodeError as error:
        got = f"a lone surrogate at offset {error.start}"
        raise InvalidInput(field, got, "text that UTF-8 can hold", "repair the text", row) from None
    raise InvalidInput(field, type_name(value), "bytes of UTF-8 text", "send texts", row)


def _id_rows(inputs: Mapping[str, NDArray[Any]], rules: InputRules) -> list[IdRow]:
    ids = _ids("input_ids", inputs["input_ids"])
    if ids.ndim != 2:
        raise InvalidInput(
            "input_ids", f"shape {list(ids.shape)}", "shape [n, length]", "send one row a sequence"
        )
    if ids.size == 0:
        raise InvalidInput(
            "input_ids", f"shape {list(ids.shape)}", "at least 1 token", "send a sequence's ids"
        )
    mask = _beside("attention_mask", inputs, ids.shape)
    types = _beside("token_type_ids", inputs, ids.shape)
    if mask is not None:
        _check_mask(mask)
    no_types = np.zeros(ids.shape[1], np.int32)
    rows = []
    for row in range(len(ids)):
        places = np.arange(ids.shape[1]) if mask is None else np.flatnonzero(mask[row])
        if places.size == 0:
            raise InvalidInput(
                "attention_mask",
                "all zeros",
                "at least one 1",
                "leave out the empty row",
                row_of(row, ids),
            )
        if places.size > rules.max_length:
            raise InvalidInput(
                "input_ids",
                f"{places.size} tokens",
                f"at most {rules.max_length}",
                "shorten the sequence (only texts can be truncated by the server)",
                row_of(row, ids),
            )
        row_types = no_types[: places.size] if types is None else types[row, places]
        rows.append(IdRow(ids[row, places], row_types, places, ids.shape[1]))
    return rows


def _beside(
    field: str, inputs: Mapping[str, NDArray[Any]], shape: tuple[int, ...]
) -> NDArray[np.int64] | None:
    if field not in inputs:
        return None
    array = _ids(field, inputs[field])
    if array.shape != shape:
        raise InvalidInput(
            field,
            f"shape {list(array.shape)}",
            f"shape {list(shape)}, that of input_ids",
            "send a value for each id",
        )
    return array


def _ids(field: str, array: NDArray[Any]) -> NDArray[np.int64]:
    if array.dtype != np.int64:
        raise InvalidInput(field, f"dtype {array.dtype}", "dtype int64", "convert to int64")
    return array


def _check_mask(mask: NDArray[np.int64]) -> None:
    others = mask[(mask < 0) | (mask > 1)]
    if others.size:
        wanted = "0 for padding, 1 for tokens"
        raise InvalidInput("attention_mask", int(others[0]), wanted, "correct the mask")


def row_of(row: int, rows: Sized) -> int | None:
    """Returns a row as errors name it: None for the only one."""
    return row if len(rows) > 1 else None
