"""Converts prompts to input tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .errors import InvalidArgument, type_name
from .plans import Arrays

Prompts = str | Sequence[str] | None
Ids = Sequence[int] | np.ndarray | None
Messages = Sequence[Mapping[str, Any]]


def prompt_inputs(prompt: Prompts, ids: Ids) -> tuple[list[Arrays], bool]:
    """Returns the tensors of a request for each prompt, and whether a list was given."""
    if (prompt is None) == (ids is None):
        got = "neither" if prompt is None else "both"
        raise InvalidArgument(f"prompt, ids: got {got}, wanted one of them; give a text or ids=…")
    if ids is not None:
        return [_ids(ids)], False
    if isinstance(prompt, str):
        return [_string("text_input", "prompt", prompt)], False
    if not isinstance(prompt, Sequence) or isinstance(prompt, (bytes, bytearray)):
        raise _no_text("prompt", prompt)
    return [_string("text_input", f"prompt[{i}]", each) for i, each in enumerate(prompt)], True


def messages_input(messages: Messages) -> Arrays:
    """Returns the tensors of a conversation."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        got = type_name(messages)
        raise InvalidArgument(f"messages: got {got}, wanted a list of objects; give [{{…}}, …]")
    return _string("messages", "messages", json_text("messages", list(messages)))


def _ids(ids: Sequence[int] | np.ndarray) -> Arrays:
    try:
        array = np.asarray(ids)
    except ValueError:  # lists of different lengths
        array = np.array(ids, object)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        got = f"{array.dtype} of shape {list(array.shape)}"
        raise InvalidArgument(f"ids: got {got}, wanted a flat list of integers; send one prompt")
    return {"input_ids": array.astype(np.int64)}


def _string(tensor: str, name: str, text: object) -> Arrays:
    if not isinstance(text, str):
        raise _no_text(name, text)
    try:
        return {tensor: np.array([text.encode()], np.object_)}
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{name}: got a lone surrogate at {error.start}, wanted a text that UTF-8 can "
            "carry; decode it with errors='replace'"
        ) from None


def json_text(name: str, value: object) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"{name}: got values that are not JSON ({error}), wanted values that are; convert them"
        ) from None


def _no_text(name: str, got: object) -> InvalidArgument:
    is_bytes = isinstance(got, (bytes, bytearray))
    remedy = "decode it" if is_bytes else "give a text, or token ids as ids=…"
    return InvalidArgument(f"{name}: got {type_name(got)}, wanted str; {remedy}")
