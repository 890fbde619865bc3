"""An instance that generates dies while 60 clients wait: each gets an error, on every entrance."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from tests.attacks.attack import EVERYWHERE, HONEST, Stage, attack
from tests.attacks.requests import BROKEN, OK, TYPED, Outcome, over_grpc, post

_CLIENTS = 60
_TOKENS = 7000  # some ten seconds' work, so that all wait when it dies
_HEALED_S = 15.0
_GIVE_UP_S = 45.0
_ARRIVAL_S = 3.0  # of all requests


def _ask(stage: Stage, number: int) -> Outcome:
    at = stage.target.addresses
    if number % 3 == 0:
        return over_grpc(at["grpc"], "gpt", "Once", _TOKENS, _GIVE_UP_S)
    if number % 3 == 1:
        parameters = {"max_new_tokens": _TOKENS, "ignore_eos": True}
        body = {"text_input": "Once", "parameters": parameters}
        return post(at["http"], "/v2/models/gpt/generate", body, timeout_s=_GIVE_UP_S)
    body = {"model": "gpt", "prompt": "Once", "max_tokens": _TOKENS, "ignore_eos": True}
    return post(at["openai"], "/v1/completions", body, timeout_s=_GIVE_UP_S)


@attack(HONEST, breaks=EVERYWHERE, heals_s=_HEALED_S)
def killed_generator(stage: Stage) -> None:
    pool = ThreadPoolExecutor(_CLIENTS)
    waiting: list[Future[Outcome]] = [pool.submit(_ask, stage, n) for n in range(_CLIENTS)]
    stage.hold(_ARRIVAL_S)
    stage.target.stub("gpt").kill()

    def again() -> bool:
        return over_grpc(stage.target.addresses["grpc"], "gpt", "Once", 1, 5).kind == OK

    healed_s = stage.until(again, _HEALED_S, "the generator answers again")
    outcomes = [future.result() for future in waiting]
    pool.shutdown()
    lost = [outcome for outcome in outcomes if outcome.kind != OK]
    last_s = max((outcome.seconds for outcome in lost), default=0.0) - _ARRIVAL_S
    stage.note(f"healed after {healed_s:.1f} s, {len(lost)} lost, the last ended at {last_s:.1f} s")
    # Over HTTP the process that a connection leads to may have died itself.
    odd = [outcome for outcome in lost if outcome.kind not in (TYPED, BROKEN)]
    assert not odd, f"{len(odd)} of {_CLIENTS} got no error: {odd[0]}"
    assert last_s < healed_s + 2, f"healing took {healed_s:.1f} s, an error came at {last_s:.1f} s"
