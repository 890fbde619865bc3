"""Generated text: what to ask, and what the pieces of an answer say. Nothing here waits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from .calls import Infer, Plan
from .errors import InvalidArgument, ServerError
from .plans import Settings, model_for

_TEXT = "text_output"


def request(
    settings: Settings,
    /,
    prompt: str | None,
    ids: Sequence[int] | None,
    stream: bool,
    model: str | None,
    version: str,
    timeout_s: float | None,
    parameters: dict[str, Any],
) -> Plan[Infer]:
    """The call of a prompt, or of its token ids."""
    inputs = _prompt(prompt, ids)
    if parameters.get("n", 1) != 1:
        raise InvalidArgument(f"n: got {parameters['n']!r}, wanted 1; call generate for each text")
    try:
        encoded = json.dumps(parameters, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"parameters: got what is no JSON ({error}), wanted values that are; convert them"
        ) from None
    name = yield from model_for(settings, model, "generate", timeout_s)
    flags = {"stream": stream, "exclude_input_in_output": True}
    inputs |= {flag: np.array([value]) for flag, value in flags.items()}
    inputs["sampling_parameters"] = np.array([encoded], np.object_)
    return Infer(name, inputs, (_TEXT,), {}, version, "", timeout_s)


def piece(outputs: dict[str, np.ndarray]) -> str:
    """The text of one response."""
    texts = outputs.get(_TEXT)
    if texts is None or texts.size != 1:
        got = "nothing" if texts is None else f"{texts.size} texts"
        raise ServerError(f"{_TEXT}: got {got}, wanted one text; is it a model that generates?")
    return str(texts.reshape(-1)[0].decode())


def _prompt(prompt: str | None, ids: Sequence[int] | None) -> dict[str, np.ndarray]:
    if (prompt is None) == (ids is None):
        got = "neither" if prompt is None else "both"
        raise InvalidArgument(f"prompt, ids: got {got}, wanted one of them; give a text or ids=…")
    if ids is not None:
        array = np.asarray(ids)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            got = f"{array.dtype} of shape {list(array.shape)}"
            raise InvalidArgument(f"ids: got {got}, wanted a flat list of integers; one prompt")
        return {"input_ids": array.astype(np.int64)}
    if not isinstance(prompt, str):
        raise InvalidArgument(f"prompt: got {type(prompt).__name__}, wanted str; decode it")
    try:
        return {"text_input": np.array([prompt.encode()], np.object_)}
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"prompt: got half a surrogate pair at {error.start}, wanted a text that UTF-8 can "
            "carry; decode it with errors='replace'"
        ) from None
