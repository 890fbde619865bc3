"""What the parameters of a request mean for one model folder: the same for all requests that have
them, so that it is found once for many that come together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fusewire import kernels
from fusewire.engine.beam_candidates import MOST_CANDIDATES
from fusewire.engine.sampling_rules import SamplingRules
from fusewire.engine.sampling_state import SamplingState
from fusewire.errors import InvalidInput
from fusewire.generation.bad_words import BadWords
from fusewire.generation.limits import GenerationLimits
from fusewire.generation.parameters import GenerationParameters
from fusewire.generation.prompt import read_prefix
from fusewire.generation.stop_strings import StopMatcher, StopStrings
from fusewire.models import Seq2SeqModel
from fusewire.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from fusewire.models.decoder import DecoderModel

# As many as a server keeps of different parameters (parameter_reader.py).
_MOST_KNOWN = 64


@dataclass(frozen=True, eq=False)
class RequestRules:
    """Nothing here ever changes."""

    parameters: GenerationParameters
    # Of a model that encodes texts: what its decoder begins with, and the next token where that is
    # forced.
    begun: Sequence[int]
    bos: int | None
    stop_tokens: frozenset[int]
    strings: StopStrings
    # Of all texts, where no string stops them: it holds nothing back, so it knows nothing of them.
    unstopped: StopMatcher | None
    sampling: SamplingRules
    # Where there are beams: a search, others like which are made for requests; and where nothing
    # but the model decides, all that each could bring to its choices: nothing.
    search: kernels.BeamSearch | None = None
    idle: SamplingState | None = None


class RulesOfRequests:
    """For one model folder, in any thread."""

    def __init__(
        self, folder: Path, model: DecoderModel, tokenizer: Tokenizer, limits: GenerationLimits
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._limits = limits
        self._target_tokenizer = Tokenizer.load_target(folder) or tokenizer
        self._bad_words = BadWords(self._target_tokenizer)
        self._known: dict[int, RequestRules] = {}  # by the id of their parameters

    def of(self, parameters: GenerationParameters) -> RequestRules:
        """InvalidInput where they ask for what the tokenizer cannot write."""
        found = self._known.get(id(parameters))
        if found is None or found.parameters is not parameters:
            if len(self._known) >= _MOST_KNOWN:
                self._known = {}
            found = self._known[id(parameters)] = self._made(parameters)
        return found

    def _made(self, parameters: GenerationParameters) -> RequestRules:
        begun, bos = self._begin(parameters)
        eos = () if parameters.ignore_eos else self._model.eos_token_ids
        stop_tokens = frozenset((*eos, *parameters.stop_token_ids))
        bad_words = [
            *self._bad_words.token_ids(parameters.bad_words),
            *parameters.bad_words_ids,
        ]
        strings = StopStrings(parameters.stop)
        # A folder may name one that its model's vocabulary has not.
        eos_of_model = sorted(token for token in stop_tokens if token < self._model.vocab_size)
        sampling = SamplingRules(parameters, stop_tokens, bad_words)
        search = idle = None
        if parameters.searches:
            search = _search(parameters, eos_of_model, len(stop_tokens))
            likes = parameters.encoder_repetition_penalty != 1  # tokens of each one's source
            if search.groups == 1 and not (likes or sampling.changes_logits):
                idle = SamplingState(sampling, ())
        return RequestRules(
            parameters,
            begun,
            bos,
            stop_tokens,
            strings,
            None if strings else StopMatcher(strings),
            sampling,
            search,
            idle,
        )

    def _begin(self, parameters: GenerationParameters) -> tuple[list[int], int | None]:
        """What the decoder begins with, of which the first token is not shown, and the next one
        where that is forced; without an encoder nothing."""
        if not isinstance(self._model, Seq2SeqModel):
            return [], None
        start, bos = self._model.decoder_start_token_id, parameters.forced_bos_token_id
        if parameters.target_lang is not None:
            chosen = self._tokenizer.languages.target_start(parameters.target_lang, start)
            start = chosen.get("decoder_start_token_id", start)
            bos = chosen.get("forced_bos_token_id", bos)
        given = list(parameters.decoder_input_ids)
        if parameters.target_prefix is not None:
            prefix = read_prefix(parameters.target_prefix, self._target_tokenizer, self._limits)
            given = prefix if bos is None else [bos, *prefix]
        if given[:1] != [start] or parameters.target_prefix is not None:
            given = [start, *given]
        return given, bos if len(given) == 1 else None


def _search(parameters: GenerationParameters, eos: Sequence[int], ends: int) -> kernels.BeamSearch:
    """Of one token. InvalidInput where it would want more candidates than a step may find."""
    search = kernels.BeamSearch(
        beams=parameters.num_beams,
        max_tokens=1,
        eos_token_ids=eos,
        length_penalty=parameters.length_penalty,
        early_stopping=parameters.early_stopping,
        groups=parameters.num_beam_groups,
        n=parameters.n,
        patience=parameters.patience,
    )
    if search.candidates > MOST_CANDIDATES:
        most_beams = MOST_CANDIDATES * parameters.num_beams // search.candidates
        wanted = f"at most {most_beams} with {ends} tokens that end a text"
        name = parameters.named("num_beams")
        raise InvalidInput(name, parameters.num_beams, wanted, "lower it")
    return search
