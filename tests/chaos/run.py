"""One run: models are reloaded, killed and frozen while clients ask; what was seen is judged."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tritonclient.grpc as triton
from fusewire.serving.endpoint import CONTROL_HEADER, Endpoint

from tests.attacks import traces
from tests.attacks.requests import OK as ANSWERED
from tests.attacks.requests import over_grpc
from tests.attacks.service import Service
from tests.chaos.clients import BROKEN, ENCODER, GENERATOR, LATE, OK, REFUSED, Clients, Load, Seen
from tests.chaos.faults import FREEZE, SERVER, Fault
from tests.chaos.holdings import held, settled
from tests.chaos.models import sources

WATCH_INTERVAL_S, WATCH_TIMEOUT_S = 1.0, 2.0
HEALED_S = 5.0  # beside loading, and noticing that something is frozen
_FOUND_S = WATCH_INTERVAL_S + WATCH_TIMEOUT_S
_GIVE_UP_S = 60.0
_REST_S = 1.5  # between faults, for clients to see a whole service
_STOPPED_S = 30.0
_MODELS = (ENCODER, GENERATOR)

Row = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    faults: Sequence[Fault]
    rates: dict[str, float]
    reloads: int  # of each model, by an operator
    deadline_s: float
    slack_s: float
    tokens: int
    seed: int


@dataclass(frozen=True)
class Struck:
    """A fault, or a reload by an operator (`fault` None): from when to when it was felt."""

    name: str
    began: float
    healed: float | None
    limit_s: float
    fault: Fault | None = None
    crash: str = ""  # what the watchdog said where tritonserver itself died of the fault


def rows(folder: Path, plan: Plan) -> Iterator[Row]:
    """A row for the reloads and each fault, one for what was left; `failures` says in words what
    was not as promised."""
    watch = f"--watch-interval-s={WATCH_INTERVAL_S:g}", f"--watch-timeout-s={WATCH_TIMEOUT_S:g}"
    service = Service(folder / "service", sources(folder), watch)
    try:
        began = time.monotonic()
        service.wait_ready()
        start_s = time.monotonic() - began
        load = Load(
            service.addresses, plan.rates, plan.deadline_s, plan.slack_s, plan.tokens, plan.seed
        )
        for model in _MODELS:
            _until_answered(service, model)
        clients = Clients(load, folder / "seen.jsonl")
        try:
            found, left = _strike(service, plan, start_s, clients)
        finally:
            seen = clients.stop()
        yield from _judged(found, seen, plan.deadline_s + plan.slack_s)
        began, logged = time.monotonic(), len(service.log())
        service.supervisor().terminate()
        code = service.wait(_STOPPED_S)
        failures = [f"held more: {name} {change}" for name, change in left.items()]
        failures += [] if code == 0 else [f"SIGTERM: exit code {code}, wanted 0"]
        failures += [f"left: {what}" for what in traces.left_by(service, logged)]
        yield {"name": "end", "seconds": round(time.monotonic() - began, 2), "failures": failures}
    finally:
        service.end()


def _strike(
    service: Service, plan: Plan, start_s: float, clients: Clients
) -> tuple[list[Struck], dict[str, str]]:
    while len(clients.seen()) < 20 * len(plan.rates):
        time.sleep(0.1)
    found = []
    load_s = dict.fromkeys(_MODELS, 0.0)
    for model in _MODELS * plan.reloads:
        began = time.monotonic()
        _reload(service, model)
        now = time.monotonic()
        load_s[model] = max(load_s[model], now - began)
        found.append(Struck(f"reload {model}", began, now, _GIVE_UP_S))
        time.sleep(_REST_S)
    before = settled(service, held(service))
    for fault in plan.faults:
        limit_s = HEALED_S + (start_s if fault.target == SERVER else load_s[fault.target])
        limit_s += _FOUND_S if fault.kind == FREEZE else 0.0
        began, deaths = time.monotonic(), len(_deaths(service))
        fault.strike(service)
        answered = all([_until_answered(service, model) for model in fault.stops])
        now = time.monotonic()
        crash = ""
        if fault.target != SERVER and (died := _deaths(service)[deaths:]):
            # Now and then tritonserver 2.51 crashes over a process that died (docs/operations.md).
            crash, limit_s = died[0], limit_s + start_s
        name = f"{fault.kind} {fault.target}"
        found.append(Struck(name, began, now if answered else None, limit_s, fault, crash))
        if not answered:
            return found, {}
        time.sleep(_REST_S)
    return found, settled(service, before).more_than(before)


def _deaths(service: Service) -> list[str]:
    texts = (event["text"] for event in service.events() if event["event"] == "watchdog")
    return [text for text in texts if text.startswith("the server died")]


def _until_answered(service: Service, model: str) -> bool:
    deadline = time.monotonic() + _GIVE_UP_S
    tokens = 1 if model == GENERATOR else 0
    while time.monotonic() < deadline and service.exit_code is None:
        if over_grpc(service.addresses["grpc"], model, "again", tokens, 2).kind == ANSWERED:
            return True
        time.sleep(0.05)
    return False


def _reload(service: Service, model: str) -> None:
    """As an operator rolls a model: loads it anew, with another configuration."""
    host, _, port = service.addresses["http"].rpartition(":")
    config = Endpoint(host, int(port), 0, 0).call(f"models/{model}/config")
    delay = config["parameters"].setdefault("max_queue_ms", {"string_value": "600000"})
    delay["string_value"] = str(int(delay["string_value"]) + 1)
    headers = {f"triton-grpc-protocol-{CONTROL_HEADER}": service.control_key}
    with triton.InferenceServerClient(service.addresses["grpc"]) as client:
        client.load_model(model, headers, config=json.dumps(config))


def _judged(found: Sequence[Struck], seen: Sequence[Seen], patience_s: float) -> Iterator[Row]:
    """Each request counts for what happened last before its end."""
    begins = [float("-inf"), *(each.began for each in found[1:]), float("inf")]
    for struck, (since, until) in zip(found, itertools.pairwise(begins), strict=True):
        own = [one for one in seen if since <= one.ended < until]
        counts = Counter(one.outcome for one in own)
        allowed = {OK} if struck.fault is None else {OK, "typed", REFUSED, BROKEN}
        failures = [
            f"{one.way}: {one.outcome} after {one.seconds:.1f} s {one.words}"[:200]
            for one in own
            if one.outcome not in allowed
            or one.seconds > patience_s
            or (one.outcome in (REFUSED, BROKEN) and one.way.startswith("openai"))
        ]
        healed_s = None if struck.healed is None else struck.healed - struck.began
        if healed_s is None or healed_s > struck.limit_s:
            failures.insert(0, f"not healed within {struck.limit_s:.1f} s")
        yield {
            "name": struck.name,
            "healed_s": None if healed_s is None else round(healed_s, 2),
            "limit_s": round(struck.limit_s, 2),
            "requests": len(own),
            **{kind: counts[kind] for kind in (OK, "typed", REFUSED, BROKEN, LATE)},
            "slowest_error_s": round(
                max((one.seconds for one in own if one.outcome != OK), default=0.0), 2
            ),
            "crash": struck.crash,
            "failures": failures,
        }
