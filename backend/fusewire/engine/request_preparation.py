"""What a request becomes before it runs: a sequence for the scheduler, and a generation with its
branches."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fusewire.engine.beam_group import BeamGroup
from fusewire.engine.branches import Branch, Event, Generation
from fusewire.engine.continuation import Continuation
from fusewire.engine.generation_sequence import GenerationSequence
from fusewire.engine.place import Place
from fusewire.engine.prompt_logprobs import PromptLogprobs
from fusewire.engine.request_rules import RequestRules, RulesOfRequests
from fusewire.engine.sampling_state import SamplingState
from fusewire.engine.seeds import seed_of
from fusewire.engine.source_pages import Source
from fusewire.engine.spoken import Spoken
from fusewire.errors import InvalidInput
from fusewire.generation.limits import GenerationLimits
from fusewire.generation.parameters import GenerationParameters
from fusewire.generation.prompt import Prompt, max_new_tokens
from fusewire.generation.request import GenerationRequest
from fusewire.generation.stop_strings import StopMatcher
from fusewire.models import Seq2SeqModel
from fusewire.text.detokenizer import Detokenizer, Silence, TextStream
from fusewire.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from fusewire.models.decoder import DecoderModel

# Weights of a text's alignment, of which the answer has a number each: target x source tokens.
_MOST_WEIGHTS = 1 << 22
_SILENCE = Silence()  # shared by all texts that nobody wants
Forced = dict[int, tuple[int, ...]]  # place among new tokens -> the tokens of which one comes there


class RequestPreparation:
    """Prepares requests for one model folder, in any thread."""

    def __init__(
        self,
        folder: Path,
        model: DecoderModel,
        tokenizer: Tokenizer,
        detokenizer: Detokenizer,
        limits: GenerationLimits,
        max_batch_tokens: int,
        check: Callable[[GenerationSequence], None],
    ) -> None:
        """`check`: raises InvalidInput for a sequence that could never run."""
        self._model = model
        self._encodes = isinstance(model, Seq2SeqModel)
        self._limits = limits
        self._max_batch_tokens = max_batch_tokens
        self._check = check
        self._detokenizer = detokenizer
        self._rules = RulesOfRequests(folder, model, tokenizer, limits)

    def prepare(
        self,
        prompt: Prompt,
        request: GenerationRequest,
        deadline: float | None,
        callback: Callable[[Event], None],
        place: Place,
        spoken: Spoken | None = None,
    ) -> tuple[Generation, GenerationSequence]:
        """A request's generation, and the sequence of its first branch. InvalidInput where it could
        never run, or asks for what the model cannot do."""
        parameters = request.parameters
        rules = self._rules.of(parameters)
        begun, bos = rules.begun, rules.bos  # what the text begins with
        ids, source, most = [*begun], None, prompt.max_new_tokens
        read: Sequence[int] = ()
        forced: Forced = {}
        if self._encodes:
            if spoken:
                begun, bos = spoken.begin, None
                ids = [*spoken.previous, *begun]
            else:
                read = prompt.token_ids
            source = Source(prompt.token_ids, prompt.features)
            if len(ids) > 1:
                room = max_new_tokens(parameters, len(source), self._limits, len(ids))
                most = min(most, room)
            eos, suppressed = parameters.forced_eos_token_id, parameters.suppress_tokens
            if eos or bos is not None:
                forced = _forced(bos, eos, most, suppressed)
        else:
            ids = [*prompt.token_ids]
        scores = None
        if parameters.prompt_logprobs is not None:
            k = min(parameters.prompt_logprobs, self._model.vocab_size)
            scores = PromptLogprobs(ids, k)
        sequence = GenerationSequence(
            token_ids=ids,
            most_tokens=len(ids) + most,
            priority=parameters.priority,
            deadline=deadline,
            begin_by=place.begin_by,
            goes_on=spoken is not None and spoken.goes_on,
            tenant=place.tenant,
            cost_s=place.cost_s,
            continuations=rules.continuations,
            beams=rules.beams,
            to_score=0 if scores is None else len(ids) - 1,
            source=source,
        )
        self._check(sequence)
        if parameters.alignment and source is not None:
            self._check_alignment(parameters, len(ids) + most - 1, len(source))
        place.sequence, place.begun = sequence, len(ids)
        sampling = rules.idle
        if sampling is None or forced or spoken:
            sampling = _sampling(rules, ids, read, forced, spoken)
        quiet = request.tells != "tokens" and not rules.tells
        branches = self._branches(rules, request.tells, ids, begun, sampling, most, forced, quiet)
        generation = Generation(branches, callback, place, None, scores)
        if rules.search is not None:
            branches[0].places = 1 + rules.beams - rules.answers
            generation.beams = beams = BeamGroup(
                rules.search.again(most, not quiet),
                sampling,
                renormalizes=parameters.renormalize_logits,
                diversity_penalty=parameters.diversity_penalty,
            )
            sequence.histories = beams.histories
        if parameters.alignment or (spoken and spoken.heard):
            generation.decoder_ids, generation.heard = ids[:], spoken.heard if spoken else 0
        return generation, sequence

    def _branches(
        self,
        rules: RequestRules,
        tells: str,
        ids: Sequence[int],
        begun: Sequence[int],
        first: SamplingState,
        most: int,
        forced: Forced,
        quiet: bool,
    ) -> list[Branch]:
        parameters = rules.parameters
        # What every text of the decoder begins with is no part of it; the source even less.
        shown, prefix = ((), begun[1:]) if self._encodes else (ids, begun)
        text: TextStream = _SILENCE
        stop, forced_end = rules.unstopped, most - 1 in forced
        branches = []
        for index in range(rules.answers):
            if tells != "ids" or parameters.stop:
                skips = parameters.skip_special_tokens
                text = self._detokenizer.start(shown, skip_special_tokens=skips)
            if parameters.stop:
                includes = parameters.include_stop_str_in_output
                stop = StopMatcher(rules.strings, include_stop=includes)
            continuation = Continuation(
                index,
                text,
                prefix,
                stop,
                rules.stop_tokens,
                parameters.min_new_tokens,
                most,
                forced_end=forced_end,
            )
            own = first  # all texts of a search share it
            if index and rules.search is None:
                own = first.fork(seed_of(first.seed, index))
            branches.append(Branch(continuation, own, quiet, asked=tells == "asked"))
        return branches

    def _check_alignment(self, parameters: GenerationParameters, target: int, source: int) -> None:
        """InvalidInput where texts of up to `target` tokens are longer than one pass may be, or
        attend to their source by too many numbers: both stop all other requests."""
        longest = self._max_batch_tokens
        name = parameters.named("max_new_tokens")
        wanted, remedy = f"at most {longest} (max_batch_tokens), read at once", f"lower {name}"
        if target <= longest:
            if target * source <= _MOST_WEIGHTS:
                return
            wanted = f"at most {_MOST_WEIGHTS} weights, one for each pair of tokens"
            remedy += " or shorten the source"
        got = f"true for texts of up to {target} tokens with a source of {source}"
        raise InvalidInput("alignment", got, wanted, remedy)


def _sampling(
    rules: RequestRules,
    ids: Sequence[int],
    source_ids: Sequence[int],
    forced: Forced,
    spoken: Spoken | None,
) -> SamplingState:
    """The sampling state of a request's first text, or of its search."""
    parameters = rules.parameters
    seed = 0 if parameters.seed is None else parameters.seed
    if parameters.seed is None and not parameters.greedy:  # others draw nothing
        seed = secrets.randbits(63)
    return SamplingState(
        rules.sampling,
        ids,
        seed,
        forced,
        source_ids,
        spoken.mask if spoken else None,
        judged=spoken is not None and spoken.judged,
    )


def _forced(
    bos: int | None, eos: Sequence[int] | None, most: int, suppressed: Sequence[int]
) -> Forced:
    """Forced tokens by their place among `most` new ones. Where there is but one, transformers
    forces the end. InvalidInput where they are all `suppressed`, as transformers refuses it."""
    wanted = {} if bos is None else {0: [bos]}
    if eos:
        wanted[most - 1] = [*eos]
    forced = {place: tuple(sorted({*ids}.difference(suppressed))) for place, ids in wanted.items()}
    for place, ids in forced.items():
        if not ids:
            got = f"{wanted[place][0]}, which is forced"
            raise InvalidInput("suppress_tokens", got, "others than those", "remove it")
    return forced
