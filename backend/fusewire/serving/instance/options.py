"""The options of a request beside the parameters of its model: the time within which its answer is
useful, its priority, its tenant, and whether it is a probe of the watchdog.

Triton reads `timeout` and `priority` of KServe requests itself. It passes the former on
(`InferenceRequest.timeout`); the latter never reaches a model, so that it has another name here.
From Triton's `generate` endpoint both arrive as ordinary parameters.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fusewire.errors import InvalidInput, sent
from fusewire.serving.probe import PARAMETER as PROBE
from fusewire.text.written import written_flag, written_whole

_LEAST_PRIORITY, _MOST_PRIORITY = -1000, 1000
_MOST_TENANT_CHARACTERS = 128
_MOST_TIMEOUT_US = 1 << 62


class Options(NamedTuple):
    timeout_s: float | None = None
    priority: int = 0  # lower numbers run first, as in vLLM and Triton
    tenant: str = ""
    probe: bool = False  # not a client's request, and not counted


def take_options(parameters: dict[str, Any]) -> Options:
    """Removes the options from a request's parameters and returns them. Raises InvalidInput."""
    if not parameters:
        return Options()
    timeout_us = _whole(parameters, "timeout", 0, _MOST_TIMEOUT_US, "microseconds")
    priority = _whole(
        parameters, "request_priority", _LEAST_PRIORITY, _MOST_PRIORITY, "lower ones first"
    )
    tenant = parameters.pop("tenant", "")
    if not isinstance(tenant, str) or len(tenant) > _MOST_TENANT_CHARACTERS:
        wanted = f"a text of at most {_MOST_TENANT_CHARACTERS} characters"
        raise InvalidInput("tenant", sent(tenant), wanted, "correct or remove it")
    probe = written_flag(parameters.pop(PROBE, False))
    if not isinstance(probe, bool):
        raise InvalidInput(PROBE, sent(probe), "true or false", "correct or remove it")
    return Options(timeout_us / 1e6 if timeout_us else None, priority, tenant, probe)


def _whole(parameters: dict[str, Any], name: str, least: int, most: int, meaning: str) -> int:
    given = parameters.pop(name, 0)
    value = written_whole(given)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        wanted = f"a whole number of {least}..{most} ({meaning})"
        raise InvalidInput(name, sent(given), wanted, "correct or remove it")
    return value
