"""Plans for texts that an encoder-decoder model writes for texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .calls import Plan
from .generation import generate
from .plans import Settings, model_for


def translate(
    settings: Settings,
    /,
    texts: str | Sequence[str],
    *,
    details: bool = False,
    stream: bool = False,
    max_new_tokens: int | None = None,
    model: str | None = None,
    version: str = "",
    timeout_s: float | None = None,
    **parameters: Any,
) -> Plan[Any]:
    """Translates a text, or each text of a list, with an encoder-decoder model.

    The encoder gets the text as it is: T5 needs its task prefix in the text.

    Args:
        texts: A text, or a list of them; those of a list run concurrently, answered in order.
        details: As for `generate`.
        stream: As for `generate`, for one text.
        max_new_tokens: Maximum number of tokens of each translation. Default: the model's.
        model: Its name; default: the server's only encoder-decoder model.
        version: Version of the model; default: the server's choice.
        timeout_s: Timeout of this call, or of each text of a list, in seconds; default: the
            client's.
        **parameters: Further parameters of generation, checked by the server.

    Returns:
        As `generate`.

    Raises:
        ClientError: With the server's message.
    """
    named = yield from model_for(settings, model, "translate", timeout_s)
    return (
        yield from generate(
            settings,
            texts,
            details=details,
            stream=stream,
            max_new_tokens=max_new_tokens,
            model=named,
            version=version,
            timeout_s=timeout_s,
            **parameters,
        )
    )


def summarise(
    settings: Settings,
    /,
    texts: str | Sequence[str],
    *,
    model: str | None = None,
    timeout_s: float | None = None,
    **given: Any,
) -> Plan[Any]:
    """Summarises a text, or each text of a list, with an encoder-decoder model. Arguments, results
    and errors are those of `translate`."""
    named = yield from model_for(settings, model, "summarise", timeout_s)
    return (yield from translate(settings, texts, model=named, timeout_s=timeout_s, **given))
