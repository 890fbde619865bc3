"""One system of TurboTransformers' experiment in its own process: requests wait, a policy batches
them, the model runs the batches one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import machine, rivals, turbo_policies
from benchmarks.overload_arrivals import Arrival
from benchmarks.turbo_policies import Policy
from benchmarks.worker import Handler

Run = Callable[[list[np.ndarray]], Any]


@dataclass(frozen=True)
class Closed:
    """All requests with a fixed number in flight, which measures the answers per second of a busy
    system."""

    policy: str
    sequences: list[np.ndarray]
    under_way: int


@dataclass(frozen=True)
class Open:
    """Requests at their arrival times, for `seconds`."""

    policy: str
    sequences: list[np.ndarray]
    arrivals: list[Arrival]
    seconds: float


@dataclass(frozen=True)
class Served:
    """`waited`: seconds from each arrival to its answer, or to the end."""

    taken_s: float
    waited: list[float]
    unanswered: int
    batches: int


def service(
    system: str, folder: Path, device: str, threads: int, longest: int, most: int
) -> Handler:
    """The setup of a Worker: answers a list of sequences with the model's output, Closed and Open
    with Served. `longest`: tokens of a request; `most`: requests of a batch."""
    on_gpu = device == "cuda"
    run = (
        _gpu(system, folder, longest * most) if on_gpu else rivals.SYSTEMS[system](folder, threads)
    )
    rng = np.random.default_rng(0)
    drawn = list(rng.integers(5, rivals.vocabulary(folder), (most, longest)))
    for size in (1, most):
        run(drawn[:size])
    machine.settle()

    @cache
    def policy(name: str) -> Policy:
        if name == "dynamic program":
            return turbo_policies.dynamic_program(measured_costs(run, drawn).__getitem__, most)
        return turbo_policies.in_order(1 if name == "alone" else most)

    def answer(asked: list[np.ndarray] | Closed | Open) -> Any:
        if isinstance(asked, Closed):
            return serve_closed(run, policy(asked.policy), asked)
        if isinstance(asked, Open):
            return serve_open(run, policy(asked.policy), asked)
        return rivals.packed(run(asked), asked)

    return answer


def measured_costs(run: Run, drawn: Sequence[np.ndarray]) -> NDArray[np.float64]:
    """Returns the seconds of a padded batch [length, size] up to the largest: the faster of two
    runs each."""
    most, longest = len(drawn), len(drawn[0])
    lengths = sorted({1, longest // 4, longest // 2, longest} - {0})
    sizes = sorted({1, most // 4, most // 2, most} - {0})

    def seconds(length: int, size: int) -> float:
        begin = time.perf_counter()
        run([ids[:length] for ids in drawn[:size]])
        return time.perf_counter() - begin

    table = [[min(seconds(n, size) for _ in range(2)) for size in sizes] for n in lengths]
    return turbo_policies.measured(lengths, sizes, np.array(table))


def serve_closed(run: Run, policy: Policy, asked: Closed) -> Served:
    sequences = asked.sequences
    lengths = [len(each) for each in sequences]
    coming = iter(range(len(sequences)))
    # Waiting requests, with the time when each began to wait.
    waiting = dict.fromkeys(islice(coming, asked.under_way), 0.0)
    waited: list[float] = []
    batches = 0
    began = time.perf_counter()
    while waiting:
        for batch in policy(waiting, lengths):
            run([sequences[number] for number in batch])
            now = time.perf_counter() - began
            batches += 1
            waited += [now - waiting.pop(number) for number in batch]
            # Their clients send the next ones.
            waiting |= dict.fromkeys(islice(coming, len(batch)), now)
    return Served(time.perf_counter() - began, waited, 0, batches)


def serve_open(run: Run, policy: Policy, asked: Open) -> Served:
    due = asked.arrivals
    sequences = [asked.sequences[each.text] for each in due]
    lengths = [len(each) for each in sequences]
    came = 0
    waiting: dict[int, None] = {}  # in order of arrival
    waited: list[float] = []
    batches = 0
    began = time.perf_counter()
    while (now := time.perf_counter() - began) < asked.seconds:
        while came < len(due) and due[came].at <= now:
            waiting[came] = None
            came += 1
        if not waiting:
            following = due[came].at if came < len(due) else asked.seconds
            time.sleep(min(following, asked.seconds) - now)
            continue
        for batch in policy(waiting, lengths):
            run([sequences[number] for number in batch])
            done = time.perf_counter() - began
            if done > asked.seconds:
                break
            batches += 1
            for number in batch:
                del waiting[number]
                waited.append(done - due[number].at)
    unanswered = [*waiting, *range(came, len(due))]
    waited += [max(0.0, asked.seconds - due[number].at) for number in unanswered]
    return Served(asked.seconds, waited, len(unanswered), batches)


def _gpu(system: str, folder: Path, most_tokens: int) -> Run:
    """Returns the system's run function in fp16; outputs are copied to the host in the system's own
    form."""
    if system == "fusewire":
        from fusewire.models import load_model
        from fusewire.placement import Placement

        place = Placement("cuda", "float16")
        own = load_model(folder, "hidden", place)
        own.record_forwards(most_tokens)

        def packed(sequences: list[np.ndarray]) -> Any:
            return place.numpy(own.encode(rivals.batch_of(sequences)))

        return packed
    import torch

    _, model = rivals.load_bert(folder, torch.get_num_threads())
    model = model.to("cuda", torch.float16)

    def padded(sequences: list[np.ndarray]) -> Any:
        ids, mask = (torch.from_numpy(a).cuda() for a in rivals.padded(sequences))
        with torch.inference_mode():
            return model(input_ids=ids, attention_mask=mask).last_hidden_state.cpu()

    return padded
