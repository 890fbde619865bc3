"""Runs a list of prompts through an engine, as many as it admits at a time, without work per token
beyond the engine's own."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusewire.api.outputs import (
    CompletionOutput,
    IncompleteOutputs,
    RequestOutput,
    prompt_logprobs,
)
from fusewire.api.progress import REFRESH_S, ProgressBar
from fusewire.api.turns import Turns
from fusewire.engine.finished import Finished, Pending
from fusewire.engine.generation import GenerationEngine, Ticket
from fusewire.errors import FusewireError, InvalidInput, QueueFull
from fusewire.generation.parameters import GenerationParameters
from fusewire.generation.prompt import AudioFeatures, read_prompt
from fusewire.generation.prompt import Prompt as CheckedPrompt
from fusewire.generation.request import GenerationRequest

Prompt = str | Sequence[int] | Mapping[str, Any]
# Reads an audio input when it is its turn, since features take memory. Raises InvalidInput.
Unread = Callable[[], AudioFeatures]

# Prompts that are submitted together; with more, the device would wait longer for the first.
_TOGETHER = 128


def answers(
    engine: GenerationEngine,
    turns: Turns,
    prompts: Sequence[str | Sequence[int] | Unread],
    requested: Sequence[dict[str, Any]],
    *,
    shown: bool,
    field: str = "",
) -> list[RequestOutput]:
    """Returns outputs in the order of `prompts`. `turns`: one for all calls with this engine.
    `requested`: the parameters of each. Raises InvalidInput if nothing was computed, or
    IncompleteOutputs after everything was; both name `field` (default: the prompts)."""
    work = _checked(engine, prompts, requested, field)
    found: list[RequestOutput | None] = [None] * len(prompts)
    finished = Finished()
    giving = _Giving(engine, turns, work, finished)
    running, errors = giving.running, giving.errors
    inputs = outputs = 0
    try:
        with ProgressBar(len(prompts), "prompts", shown=shown) as bar:
            while giving.given < len(work) or running:
                more = giving.give()
                for pending in _ended(finished, 0.0 if more else REFRESH_S):
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
                done = giving.given - len(running)
                bar.update(done, input_tokens=inputs, output_tokens=outputs + live)
    finally:
        turns.leave(finished)
        for ticket, _ in running.values():  # interrupted
            ticket.cancel()
    if not errors:
        return [output for output in found if output is not None]
    index, first = min(errors.items())
    if len(errors) == len(work) and isinstance(first, InvalidInput):
        raise first.at(f"{field or 'prompts'}[{index}]")
    raise IncompleteOutputs(found, errors, field or "prompts")


def _checked(
    engine: GenerationEngine,
    prompts: Sequence[Any],
    requested: Sequence[dict[str, Any]],
    field: str,
) -> list[tuple[CheckedPrompt | Unread, GenerationParameters]]:
    """Returns the prompts and their parameters. Raises the error of the first prompt that cannot be
    answered."""
    made: dict[int, GenerationParameters] = {}  # by id: prompts may share one object
    fitting: set[tuple[int, int]] = set()  # parameters, by id, and numbers of tokens
    work: list[tuple[CheckedPrompt | Unread, GenerationParameters]] = []
    for index, (prompt, each) in enumerate(zip(prompts, requested, strict=True)):
        try:
            if id(each) not in made:
                made[id(each)] = engine.parameters(**each)
            parameters = made[id(each)]
            if callable(prompt):
                work.append((prompt, parameters))
                continue
            checked = read_prompt(prompt, parameters, engine.tokenizer, engine.limits, field)
            size = id(parameters), len(checked.token_ids)
            if size not in fitting:
                engine.check(checked, parameters)
                fitting.add(size)
        except InvalidInput as error:
            raise error.at(f"{field or 'prompts'}[{index}]") from None
        work.append((checked, parameters))
    return work


def _ids(prompt: CheckedPrompt | Unread, ticket: Ticket) -> Sequence[int]:
    """Returns a prompt's token ids; for audio, the indices of the rows of the encoder's output."""
    if isinstance(prompt, CheckedPrompt):
        return prompt.token_ids
    return range(ticket.num_input_tokens)


class _Giving:
    """Submits the work to the engine in order, as much as it admits."""

    def __init__(
        self,
        engine: GenerationEngine,
        turns: Turns,
        work: Sequence[tuple[CheckedPrompt | Unread, GenerationParameters]],
        finished: Finished,
    ) -> None:
        self.running: dict[int, tuple[Ticket, Pending]] = {}
        self.errors: dict[int, FusewireError] = {}  # of prompts that are never admitted
        self.given = 0
        self._engine = engine
        self._turns = turns
        self._work = work
        self._finished = finished
        # At most as many audio inputs wait as run, which suffices to always have a next one.
        self._most = 2 * engine.limits.max_sequences if engine.log_mel is not None else len(work)
        self._read: AudioFeatures | None = None  # the next audio input, if it has been read

    def give(self) -> bool:
        """Submits work for a moment. Returns whether the engine may admit more."""
        until, given = time.monotonic() + REFRESH_S, self.given
        together = _TOGETHER if self._engine.log_mel is None else 1  # audio takes long to read
        while self._left:
            if time.monotonic() > until:
                return True
            if not self._turns.may_give(self._finished):
                return False
            with self._engine.together():
                for _ in range(together):
                    if self._left and not self._give_one():
                        self._turns.found_no_room(self._finished, gave=self.given > given)
                        return False
        self._turns.leave(self._finished)
        return False

    @property
    def _left(self) -> bool:
        """Whether there is more to submit now."""
        return self.given < len(self._work) and len(self.running) < self._most

    def _give_one(self) -> bool:
        """Submits the next prompt. Returns whether it was admitted, or never will be."""
        given, parameters = self._work[self.given]
        pending = Pending(self.given, parameters.n, parameters.answers)
        try:
            if callable(given):
                self._read = self._read or given()
            prompt = self._read if callable(given) else given
            assert prompt is not None
            request = GenerationRequest(prompt, parameters, tells="text")
            callback = self._finished.callback(pending)
            self.running[self.given] = self._engine.submit(request, None, callback), pending
        except QueueFull:
            return False
        except FusewireError as error:
            self.errors[self.given] = error
        self._read = None
        self.given += 1
        return True


def _ended(finished: Finished, wait_s: float) -> list[Pending]:
    """Waits at most `wait_s` for a prompt to end. Returns all that have ended."""
    try:
        first = finished.get(timeout=wait_s) if wait_s else finished.get_nowait()
    except queue.Empty:
        return []
    found = [first, *(finished.get_nowait() for _ in range(finished.qsize()))]
    return [each for each in found if each is not None]


def _output(
    engine: GenerationEngine,
    prompt: str | None,
    ids: list[int],
    parameters: GenerationParameters,
    pending: Pending,
) -> RequestOutput:
    spell = engine.tokenizer.token_text
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
