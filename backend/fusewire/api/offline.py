"""A list of prompts through one engine: as many as it admits at a time, without work per
token beyond the engine's own."""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from typing import Any

from fusewire.api.outputs import (
    CompletionOutput,
    IncompleteOutputs,
    RequestOutput,
    prompt_logprobs,
)
from fusewire.api.progress import REFRESH_S, ProgressBar
from fusewire.engine.finished import Finished, Pending
from fusewire.engine.generation import GenerationEngine, Ticket
from fusewire.engine.prompt_logprobs import PromptLogprobs
from fusewire.errors import FusewireError, InvalidInput, QueueFull
from fusewire.generation.parameters import GenerationParameters
from fusewire.generation.prompt import Prompt as CheckedPrompt
from fusewire.generation.prompt import Sound, read_prompt
from fusewire.generation.request import GenerationRequest

Prompt = str | Sequence[int] | Mapping[str, Any]


def answers(
    engine: GenerationEngine,
    prompts: Sequence[str | Sequence[int] | Sound],
    requested: Sequence[dict[str, Any]],
    *,
    shown: bool,
    field: str = "",
) -> list[RequestOutput]:
    """Outputs in the order of `prompts`; `requested`: the parameters of each. InvalidInput before
    anything is computed, and IncompleteOutputs after all, name `field` (default: the prompts)."""
    work = _checked(engine, prompts, requested, field)
    found: list[RequestOutput | None] = [None] * len(prompts)
    errors: dict[int, FusewireError] = {}
    running: dict[int, tuple[Ticket, Pending]] = {}
    finished = Finished()
    inputs = outputs = given = 0
    try:
        with ProgressBar(len(prompts), "prompts", shown=shown) as bar:
            while given < len(work) or running:
                given = _give(engine, work, given, running, finished, errors)
                for pending in _ended(finished):
                    ticket, _ = running.pop(pending.index)
                    if pending.error is not None:
                        errors[pending.index] = pending.error
                        continue
                    prompt, (checked, parameters) = prompts[pending.index], work[pending.index]
                    text = prompt if isinstance(prompt, str) else None
                    ids = [*_ids(checked, ticket)]
                    found[pending.index] = _output(engine, text, ids, parameters, pending)
                    inputs += len(ids)
                    outputs += ticket.num_output_tokens()
                live = 0
                if shown:
                    live = sum(ticket.num_output_tokens() for ticket, _ in running.values())
                bar.update(given - len(running), input_tokens=inputs, output_tokens=outputs + live)
    finally:
        for ticket, _ in running.values():  # interrupted
            ticket.cancel()
    if errors:
        raise IncompleteOutputs(found, errors, field or "prompts")
    return [output for output in found if output is not None]


def _checked(
    engine: GenerationEngine,
    prompts: Sequence[Any],
    requested: Sequence[dict[str, Any]],
    field: str,
) -> list[tuple[CheckedPrompt | Sound, GenerationParameters]]:
    """Prompts and their parameters; the error of the first that cannot be answered is raised."""
    made: dict[int, GenerationParameters] = {}  # of one object, which prompts share
    work: list[tuple[CheckedPrompt | Sound, GenerationParameters]] = []
    for index, (prompt, each) in enumerate(zip(prompts, requested, strict=True)):
        try:
            if id(each) not in made:
                made[id(each)] = engine.parameters(**each)
            parameters = made[id(each)]
            if isinstance(prompt, Sound):
                work.append((prompt, parameters))
                continue
            checked = read_prompt(prompt, parameters, engine.tokenizer, engine.limits, field)
            if parameters.prompt_logprobs is not None:
                PromptLogprobs(checked.token_ids, parameters.prompt_logprobs)  # is it too much?
        except InvalidInput as error:
            raise error.at(f"{field or 'prompts'}[{index}]") from None
        work.append((checked, parameters))
    return work


def _ids(prompt: CheckedPrompt | Sound, ticket: Ticket) -> Sequence[int]:
    """Of sound the rows that the encoder makes of it."""
    if isinstance(prompt, CheckedPrompt):
        return prompt.token_ids
    return range(ticket.num_input_tokens)


def _give(
    engine: GenerationEngine,
    work: Sequence[tuple[CheckedPrompt | Sound, GenerationParameters]],
    given: int,
    running: dict[int, tuple[Ticket, Pending]],
    finished: Finished,
    errors: dict[int, FusewireError],
) -> int:
    """Submits as many as the engine admits, from `given` on; returns where it stopped. `errors`
    gets those of prompts that it will never admit."""
    while given < len(work):
        prompt, parameters = work[given]
        pending = Pending(given, parameters.n, parameters.answers)
        try:
            ticket = engine.submit(
                GenerationRequest(prompt, parameters, tells="text"),
                None,
                finished.callback(pending),
            )
            running[given] = ticket, pending
        except QueueFull:
            break
        except FusewireError as error:
            errors[given] = error
        given += 1
    return given


def _ended(finished: Finished) -> list[Pending]:
    """Waits for one that has ended, a moment at most, and takes all there are."""
    try:
        first = finished.get(timeout=REFRESH_S)
    except queue.Empty:
        return []
    return [first, *(finished.get_nowait() for _ in range(finished.qsize()))]


def _output(
    engine: GenerationEngine,
    prompt: str | None,
    ids: list[int],
    parameters: GenerationParameters,
    pending: Pending,
) -> RequestOutput:
    def spell(token: int) -> str:
        return engine.tokenizer.decode([token])

    spelled = spell if parameters.logprobs is not None else None
    texts = [
        CompletionOutput.of(index, deltas, spelled) for index, deltas in enumerate(pending.texts())
    ]
    scored = pending.deltas[0].prompt_logprobs
    return RequestOutput(
        prompt,
        ids,
        texts,
        pending.deltas[-1].num_cached_tokens,
        None if scored is None else prompt_logprobs(scored, spell),
        pending.deltas[-1].language,
    )
