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
from fusewire.text.detokenizer import Detokenizer, Silence
from fusewire.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from fusewire.models.decoder import DecoderModel

# Weights of a text's alignment, of which the answer has a number each: target x source tokens.
_MOST_WEIGHTS = 1 << 22
_SILENCE = Silence()  # of all texts that nobody wants
Forced = dict[int, tuple[int, ...]]  # by the place of new tokens: one of these


class RequestPreparation:
    """For one model folder, in any thread."""

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
        """`check`: InvalidInput for a sequence that could never run."""
        self._model = model
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
        """InvalidInput where it could never run, or asks for what the model cannot do."""
        parameters = request.parameters
        rules = self._rules.of(parameters)
        begun, bos = rules.begun, rules.bos  # of the text
        ids, source, most = [*begun], None, prompt.max_new_tokens
        forced: Forced = {}
        if isinstance(self._model, Seq2SeqModel):
            if spoken:
                begun, bos = spoken.begin, None
                ids = [*spoken.previous, *begun]
            source = Source(prompt.token_ids, prompt.features)
            if len(ids) > 1:
                room = max_new_tokens(parameters, len(source), self._limits, len(ids))
                most = min(most, room)
            eos, suppressed = parameters.forced_eos_token_id, parameters.suppress_tokens
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
            continuations=1 if rules.search else parameters.sequences,
            beams=parameters.num_beams if rules.search else 0,
            to_score=0 if scores is None else len(ids) - 1,
            source=source,
        )
        self._check(sequence)
        if parameters.alignment and source is not None:
            self._check_alignment(parameters, len(ids) + most - 1, len(source))
        read = () if source is None or spoken else source.token_ids
        place.sequence, place.begun = sequence, len(ids)
        generation = self._generation(
            rules, ids, begun, read, request, most, forced, callback, scores, place, spoken
        )
        if parameters.alignment or (spoken and spoken.heard):
            generation.decoder_ids, generation.heard = ids[:], spoken.heard if spoken else 0
        if generation.beams is not None:
            sequence.histories = generation.beams.histories
        return generation, sequence

    def _generation(
        self,
        rules: RequestRules,
        ids: list[int],
        begun: Sequence[int],
        source_ids: Sequence[int],
        request: GenerationRequest,
        most: int,
        forced: Forced,
        callback: Callable[[Event], None],
        scores: PromptLogprobs | None,
        place: Place,
        spoken: Spoken | None,
    ) -> Generation:
        parameters = request.parameters
        # What every text of the decoder begins with is no part of it; the source even less.
        encodes = isinstance(self._model, Seq2SeqModel)
        shown, prefix = ((), begun[1:]) if encodes else (ids, begun)
        seed = 0 if parameters.seed is None else parameters.seed
        if parameters.seed is None and not parameters.greedy:  # others draw nothing
            seed = secrets.randbits(63)
        first = rules.idle
        if first is None or forced or spoken:
            first = SamplingState(
                rules.sampling,
                ids,
                seed,
                forced,
                source_ids,
                spoken.mask if spoken else None,
                judged=spoken is not None and spoken.judged,
            )
        writes = request.tells != "ids" or parameters.stop
        # A stop string is looked for behind each token; log-probabilities come with theirs.
        scored = parameters.logprobs is not None or scores is not None
        quiet = not (request.tells == "tokens" or parameters.stop or scored)
        asked = request.tells == "asked"
        branches = [
            Branch(
                Continuation(
                    index,
                    self._detokenizer.start(
                        shown, skip_special_tokens=parameters.skip_special_tokens
                    )
                    if writes
                    else _SILENCE,
                    prefix,
                    rules.unstopped
                    or StopMatcher(
                        rules.strings, include_stop=parameters.include_stop_str_in_output
                    ),
                    rules.stop_tokens,
                    parameters.min_new_tokens,
                    most,
                    forced_end=most - 1 in forced,
                ),
                first.fork(seed_of(seed, index)) if index else first,
                quiet,
                asked,
            )
            for index in range(parameters.answers)
        ]
        beams = None
        if rules.search is not None:
            branches[0].places = 1 + parameters.num_beams - parameters.answers
            beams = BeamGroup(
                rules.search.again(most, not quiet),
                first,
                renormalizes=parameters.renormalize_logits,
                diversity_penalty=parameters.diversity_penalty,
            )
        return Generation(branches, callback, place, beams, scores)

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


def _forced(
    bos: int | None, eos: Sequence[int] | None, most: int, suppressed: Sequence[int]
) -> Forced:
    """Tokens by their place among `most` new ones. Of a single one transformers forces the end.
    InvalidInput where they are all `suppressed`, as transformers refuses it."""
    if bos is None and not eos:
        return {}
    wanted = {} if bos is None else {0: [bos]}
    if eos:
        wanted[most - 1] = [*eos]
    forced = {place: tuple(sorted({*ids}.difference(suppressed))) for place, ids in wanted.items()}
    for place, ids in forced.items():
        if not ids:
            got = f"{wanted[place][0]}, which is forced"
            raise InvalidInput("suppress_tokens", got, "others than those", "remove it")
    return forced
