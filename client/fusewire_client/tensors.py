"""Converts texts and token ids to input tensors, one dict per request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .errors import InvalidArgument, type_name

Inputs = dict[str, np.ndarray]
Ids = Sequence[Sequence[int]] | np.ndarray


def text_tensor(texts: Sequence[str]) -> np.ndarray:
    """Returns a STRING tensor [n, 1]."""
    return np.array([[text.encode()] for text in texts], dtype=np.object_)


def text_requests(
    texts: Sequence[str], pairs: Sequence[str] | None, texts_per_request: int
) -> list[Inputs]:
    """Returns texts, with their second texts, in requests of at most `texts_per_request`."""
    _check_texts("texts", texts)
    if pairs is not None:
        _check_texts("pairs", pairs)
        if len(pairs) != len(texts):
            raise InvalidArgument(
                f"pairs: got {len(pairs)}, wanted {len(texts)}; give one second text for each text"
            )
    requests = []
    for begin in range(0, len(texts), texts_per_request):
        part = slice(begin, begin + texts_per_request)
        inputs = {"text_input": text_tensor(texts[part])}
        if pairs is not None:
            inputs["text_pair"] = text_tensor(pairs[part])
        requests.append(inputs)
    return requests


def id_requests(ids: Ids, mask: Ids | None, types: Ids | None) -> list[Inputs]:
    """Returns the requests of token ids: a 2-D array is one request, a list is one request per
    sequence, so no padding is sent."""
    rows = _rows("ids", ids)
    requests = [{"input_ids": row} for row in rows]
    for field, tensor, values in (
        ("attention_mask", "attention_mask", mask),
        ("token_type_ids", "token_type_ids", types),
    ):
        if values is None:
            continue
        columns = _rows(field, values)
        if [c.shape for c in columns] != [r.shape for r in rows]:
            raise InvalidArgument(
                f"{field}: got shapes {_shapes(columns)}, wanted {_shapes(rows)}; "
                "give one value for each id"
            )
        for request, column in zip(requests, columns, strict=True):
            request[tensor] = column
    return requests


def requests_of(
    texts: Sequence[str] | None,
    pairs: Sequence[str] | None,
    ids: Ids | None,
    mask: Ids | None,
    types: Ids | None,
    texts_per_request: int,
) -> list[Inputs]:
    """Returns the requests of one method call, in the order of its sequences."""
    if (texts is None) == (ids is None):
        got = "both" if texts is not None else "neither"
        raise InvalidArgument(f"texts, ids: got {got}, wanted one of them; give texts or ids=…")
    if texts is not None:
        if mask is not None or types is not None:
            raise InvalidArgument(
                "attention_mask, token_type_ids: got them with texts, wanted them with ids; "
                "leave them out, the server tokenises"
            )
        return text_requests(texts, pairs, texts_per_request)
    assert ids is not None
    if pairs is not None:
        raise InvalidArgument(
            "pairs: got them with ids, wanted them with texts; "
            "join the pair's ids yourself and give token_type_ids"
        )
    return id_requests(ids, mask, types)


def _check_texts(field: str, texts: Sequence[str]) -> None:
    if isinstance(texts, (str, bytes)):
        raise InvalidArgument(f"{field}: got one string, wanted a list of them; write [text]")
    if isinstance(texts, Mapping) or not hasattr(texts, "__getitem__"):
        got = type_name(texts)
        raise InvalidArgument(f"{field}: got {got}, wanted a list of texts; make one of it")
    if len(texts) == 0:
        raise InvalidArgument(f"{field}: got an empty list, wanted at least one text; add one")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidArgument(
                f"{field}[{i}]: got {type_name(text)}, wanted str; convert or decode it"
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(
                f"{field}[{i}]: got a lone surrogate at {error.start}, wanted a text that "
                "UTF-8 can carry; decode it with errors='replace'"
            ) from None


def _rows(field: str, values: Ids) -> list[np.ndarray]:
    """Returns int64 arrays [rows, length]."""
    if isinstance(values, np.ndarray):
        if values.ndim != 2 or values.dtype.kind not in "iu":
            raise InvalidArgument(
                f"{field}: got {values.dtype} of shape {values.shape}, wanted integers of shape "
                "[sequences, length]; reshape, or give a list of lists"
            )
        return [np.ascontiguousarray(values, dtype=np.int64)]
    if len(values) == 0:
        raise InvalidArgument(f"{field}: got an empty list, wanted at least one sequence; add one")
    rows = []
    for i, row in enumerate(values):
        array = np.asarray(row)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise InvalidArgument(
                f"{field}[{i}]: got {array.dtype} of shape {array.shape}, wanted a flat list of "
                "integers; give one list of ids for each sequence"
            )
        rows.append(array.astype(np.int64).reshape(1, -1))
    return rows


def _shapes(arrays: list[np.ndarray]) -> str:
    return ", ".join(str(list(a.shape)) for a in arrays[:4]) + (", …" if len(arrays) > 4 else "")
