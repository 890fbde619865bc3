"""Requests of chance over all parameters of generation, and what every answer must obey."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from fusewire.engine.generation import GenerationEngine
from fusewire.generation.parameters import GenerationParameters
from fusewire.generation.prompt import max_new_tokens
from fusewire.generation.spelling import ALIASES
from fusewire.models.seq2seq_model import Seq2SeqModel

from tests.engine.generating import END, LONGEST, Answer

Make = Callable[[random.Random], Any]


def some(*values: Any) -> Make:
    return lambda rng: rng.choice(values)


def whole(least: int, most: int) -> Make:
    return lambda rng: rng.randint(least, most)


def many(make: Make, most: int, least: int = 0) -> Make:
    return lambda rng: [make(rng) for _ in range(rng.randint(least, most))]


def either(*makes: Make) -> Make:
    return lambda rng: rng.choice(makes)(rng)


A, B, C = 64, 65, 66  # ids of the letters, of which most texts are made
LETTERS = {A: 100, B: 100, C: 99.5}
IDS = either(some(A, B, C), whole(0, END))
WORDS = some("a", "ab", "ba", "bb", "cab", "aba", "bca", " a", "é", "\x00", "zzz", "abc" * 21)
FLAGS = some(True, False)

# By parameter: what may be asked for, and what never.
VALID: dict[str, Make] = {
    "max_new_tokens": whole(1, 40),
    "max_tokens": whole(1, 40),
    "min_new_tokens": whole(0, 12),
    "min_tokens": whole(0, 12),
    "do_sample": FLAGS,
    "temperature": some(0, 0.0, 0.001, 0.7, 1, 1.5, 100),
    "top_k": some(-1, 0, 1, 2, 50, 257),
    "top_p": some(1e-9, 0.1, 0.9, 1, 1.0),
    "min_p": some(0, 0.0, 0.05, 1.0),
    "typical_p": some(1e-9, 0.2, 1.0),
    "repetition_penalty": some(0.01, 0.8, 1, 1.0, 1.3, 100),
    "presence_penalty": some(-2, 0, 0.5, 2.0),
    "frequency_penalty": some(-2.0, 0, 0.5, 2),
    "no_repeat_ngram_size": some(0, 1, 2, 3, 4, 1024),
    "logit_bias": either(
        some(LETTERS, LETTERS | {END: 98}, {str(A): 50, "65": 50}),
        lambda rng: {str(IDS(rng)): rng.choice([-100, -1.5, 0, 5.0, 100]) for _ in range(6)},
    ),
    "bad_words": many(WORDS, 4),
    "suppress_tokens": many(IDS, 5),
    "begin_suppress_tokens": many(IDS, 5),
    "stop": either(many(WORDS, 3), WORDS),
    "stop_token_ids": many(IDS, 5),
    "ignore_eos": FLAGS,
    "add_special_tokens": FLAGS,
    "skip_special_tokens": FLAGS,
    "include_stop_str_in_output": FLAGS,
    "n": whole(1, 4),
    "best_of": whole(1, 5),
    "seed": some(0, 1, -1, 2**63 - 1, -(2**63)),
    "logprobs": whole(0, 20),
    "prompt_logprobs": whole(0, 20),
    "priority": some(-1000, -1, 0, 7, 1000),
    "timeout_seconds": some(100, 86400.0, None),
    "num_beams": whole(1, 5),
    "use_beam_search": FLAGS,
    "length_penalty": some(-5, -1, 0, 0.6, 1.0, 5, 10),
    "early_stopping": some(True, False, "never"),
    "renormalize_logits": FLAGS,
    "target_prefix": WORDS,
    "decoder_input_ids": many(IDS, 5),
    "alignment": FLAGS,
}
_NO_NUMBER = some("one", "1,5", "", True, [], {}, math.nan, math.inf, -math.inf)
_NO_WHOLE = either(_NO_NUMBER, some(1.0, 0.5, -(10**30), 10**30))
_NO_FLAG = some(0, 1, "yes", 1.0, [])
INVALID: dict[str, Make] = {
    **dict.fromkeys(("max_new_tokens", "max_tokens"), either(_NO_WHOLE, some(0, -1, 2**40))),
    **dict.fromkeys(("min_new_tokens", "min_tokens"), either(_NO_WHOLE, some(-1, 2**40))),
    "do_sample": _NO_FLAG,
    "temperature": either(_NO_NUMBER, some(-1, -0.01, 1e-9, 100.1)),
    "top_k": either(_NO_WHOLE, some(-2, 258, 2**40)),
    "top_p": either(_NO_NUMBER, some(0, -1, 1.0001)),
    "min_p": either(_NO_NUMBER, some(-1, 1.0001)),
    "typical_p": either(_NO_NUMBER, some(0, -1, 1.0001)),
    "repetition_penalty": either(_NO_NUMBER, some(0, -1, 101)),
    "presence_penalty": either(_NO_NUMBER, some(-2.1, 3)),
    "frequency_penalty": either(_NO_NUMBER, some(-2.1, 3)),
    "no_repeat_ngram_size": either(_NO_WHOLE, some(-1, 1025)),
    "logit_bias": some(
        [], "1", {"a": 1}, {"-1": 1}, {"01": 1}, {257: 1}, {1: 101}, {1: math.nan}, {1: None},
        {1.5: 1}, dict.fromkeys(range(1025), 1), {True: 1},
    ),
    "bad_words": some("a", [""], [1], [None], ["a"] * 257, ["a" * 65], {"a": 1}),
    "suppress_tokens": some(5, "5", [-1], [257], [1.0], [1] * 1025),
    "begin_suppress_tokens": some(5, "5", [-1], [257], [1.0], [1] * 1025),
    "stop": some("", [""], [1], ["a"] * 17, ["a" * 257], 5, {"a": 1}),
    "stop_token_ids": some(5, ["x"], [-1], [257], [1.0], [1] * 129, "5"),
    "ignore_eos": _NO_FLAG,
    "add_special_tokens": _NO_FLAG,
    "skip_special_tokens": _NO_FLAG,
    "include_stop_str_in_output": _NO_FLAG,
    "n": either(_NO_WHOLE, some(0, -1, 65)),
    "best_of": either(_NO_WHOLE, some(0, -1, 65)),
    "seed": either(_NO_WHOLE, some(2**63, -(2**63) - 1)),
    "logprobs": either(_NO_WHOLE, some(-1, 21)),
    "prompt_logprobs": either(_NO_WHOLE, some(-1, 21)),
    "priority": either(_NO_WHOLE, some(-1001, 1001)),
    "timeout_seconds": either(_NO_NUMBER, some(0, -1, 86401)),
    "num_beams": either(_NO_WHOLE, some(0, -1, 513)),
    "use_beam_search": _NO_FLAG,
    "length_penalty": either(_NO_NUMBER, some(-5.1, 10.5)),
    "early_stopping": some(0, 1, "always", 1.0, []),
    "renormalize_logits": _NO_FLAG,
    "target_prefix": some(5, ["a"], True, "\ud800", ""),
    "decoder_input_ids": some(5, "5", [-1], [257], [1.0], [1] * 4097),
    "alignment": _NO_FLAG,
}  # fmt: skip
# Each with what it acts on; chance alone seldom brings them together.
TOGETHER = (
    {"logit_bias": some(LETTERS), "temperature": some(0.7, 1.5)},
    {"n": whole(1, 2), "best_of": whole(2, 5), "temperature": some(1.0)},
    {"logit_bias": some(LETTERS), "stop": VALID["stop"], "bad_words": VALID["bad_words"]},
    {"logit_bias": some(LETTERS | {END: 99}), "min_tokens": whole(1, 12)},
)
# Of beams alone: what they do not go with is left out, so that most are searched.
BEAMS: tuple[dict[str, Make], ...] = (
    {"num_beams": whole(2, 5), "n": whole(1, 2), "max_tokens": whole(1, 30)},
    {"num_beams": whole(2, 4), "logit_bias": some(LETTERS | {END: 98}), "max_tokens": whole(1, 30)},
    {"use_beam_search": some(True), "n": whole(2, 4), "max_tokens": whole(1, 30)},
    {"num_beams": whole(2, 5), "patience": some(0.3, 1.5, 3.0), "max_tokens": whole(1, 30)},
)
_PROMPTS = either(
    lambda rng: "".join(rng.choices("abc é中\x00\n", k=rng.randint(1, 20))), many(IDS, 60, least=1)
)
_NO_PROMPTS = some("", "\ud800", [], [-1], [END + 1], [1.5], b"a", [1] * LONGEST)


FORCED_EOS = 2  # of encoder-decoder folders that name no other


@dataclass
class Asked:
    prompt: str | list[int]
    parameters: dict[str, Any]
    wrong: set[str]  # what alone is reason to refuse it

    def may_be_refused(self, engine: GenerationEngine) -> bool:
        """For what its parts say together, where each is right."""
        p = {name: value for name, value in self.parameters.items() if value is not None}
        if any({alias, name} <= p.keys() for alias, name in ALIASES.items()):
            return True
        others = [p[name] for name in self._of_others(engine) if name in p]
        if any(value is not False and value != [] for value in others):
            return True
        if p.get("decoder_input_ids") and "target_prefix" in p:
            return True
        if engine.limits.source is not None and FORCED_EOS in p.get("suppress_tokens", []):
            return True
        if self.searches() and self._beams_may_be_refused(p, engine.cache.pages):
            return True
        samples = p.get("do_sample", bool(SAMPLING & p.keys()))
        greedy = not samples or p.get("temperature", 1) == 0
        most = p.get("max_new_tokens", p.get("max_tokens", LONGEST))
        least = p.get("min_new_tokens", p.get("min_tokens", 0))
        if p.get("alignment") and most >= engine.settings.max_batch_tokens - self._length():
            return True
        n, best_of = p.get("n", 1), p.get("best_of", p.get("n", 1))
        tokens = max(1, least) if most == LONGEST else most
        return (
            (greedy and best_of > 1)
            or best_of < n
            or least > most
            or self._length() + max(tokens, least) > LONGEST // 2  # text may have more tokens
        )

    def _length(self) -> int:
        prefixes = (self.parameters.get(name) or () for name in BEGINNINGS)
        return len(self.prompt) + sum(map(len, prefixes))

    def _of_others(self, engine: GenerationEngine) -> set[str]:
        """What models of this kind do not take."""
        return OF_DECODERS if engine.limits.source else OF_ENCODER_DECODERS

    def searches(self) -> bool:
        return self.parameters.get("num_beams", 1) != 1 or "use_beam_search" in self.parameters

    def _beams_may_be_refused(self, p: dict[str, Any], pages: int) -> bool:
        beams = p.get("num_beams", p.get("best_of", p.get("n", 1)))
        prompt = (
            len(str(self.prompt).encode()) if isinstance(self.prompt, str) else len(self.prompt)
        )
        longest = self._length() + prompt + p.get("max_new_tokens", p.get("max_tokens", LONGEST))
        return (
            {"num_beams", "use_beam_search"} <= p.keys()
            or any(p.get(name) not in (None, []) for name in WITHOUT_BEAMS)
            or p.get("n", 1) > beams
            or beams * (longest // 16 + 1) + prompt // 16 + 1 > pages
        )

    def coupled(self, engine: GenerationEngine) -> set[str]:
        """What it may be refused for beside what is wrong."""
        without = WITHOUT_BEAMS if self.searches() else set()
        return COUPLED | without | self._of_others(engine) | {*BEGINNINGS, "alignment"}

    def forbids(self) -> bool:
        """Tokens, so that none may be left."""
        names = (
            "no_repeat_ngram_size",
            "bad_words",
            "min_new_tokens",
            "min_tokens",
            "suppress_tokens",
        )
        return any(self.parameters.get(name) for name in names)


# What parts that each are right can be refused for together.
COUPLED = {"n", "best_of", "num_beams", "use_beam_search", *ALIASES, *ALIASES.values()}
SAMPLING = {"temperature", "top_k", "top_p", "min_p", "typical_p"}
BEGINNINGS = ("target_prefix", "decoder_input_ids")
OF_DECODERS, OF_ENCODER_DECODERS = {"prompt_logprobs"}, {*BEGINNINGS, "alignment"}
WITHOUT_BEAMS = {*SAMPLING, "do_sample", "best_of", "stop", "logprobs", "prompt_logprobs"}


def any_request(rng: random.Random) -> Asked:
    """Most of them right."""
    names = rng.sample(sorted(VALID), rng.randint(0, 8))
    parameters = {name: VALID[name](rng) for name in names}
    if rng.random() < 0.7:
        chosen = rng.choice(TOGETHER)
        parameters |= {name: make(rng) for name, make in chosen.items()}
    if rng.random() < 0.3:
        for name in (*WITHOUT_BEAMS, *ALIASES.values(), "num_beams", "use_beam_search"):
            parameters.pop(name, None)
        parameters |= {name: make(rng) for name, make in rng.choice(BEAMS).items()}
    prompt, wrong = _PROMPTS(rng), set()
    if rng.random() < 0.1:
        for name in rng.sample(sorted(VALID), rng.randint(1, 2)):
            parameters[name] = INVALID[name](rng)
            wrong.add(name)
    if rng.random() < 0.03:
        parameters["beams"] = 2
        wrong.add("beams")
    if rng.random() < 0.03:
        prompt = _NO_PROMPTS(rng)
        wrong |= {"text_input", "input_ids"}
    return Asked(prompt, parameters, wrong)


def obeys(
    engine: GenerationEngine, prompt: str | Sequence[int], p: GenerationParameters, answer: Answer
) -> None:
    """Holds an answer to all that was asked."""
    ids = engine.tokenizer.backend.encode(prompt).ids if isinstance(prompt, str) else list(prompt)
    most = max_new_tokens(p, len(ids), engine.limits)
    assert {delta.index for delta in answer.deltas} == set(range(p.n))
    scored = [delta.prompt_logprobs for delta in answer.deltas]
    assert [each is not None for each in scored].count(True) == (p.prompt_logprobs is not None)
    assert scored[0] is None or len(list(scored[0])) == len(ids)
    if isinstance(engine.model, Seq2SeqModel):
        beginning = begun(engine, p)
        most = max_new_tokens(p, len(ids), engine.limits, len(beginning))
        ids = beginning
    lasts = [_last(answer, index) for index in range(p.n)]
    if p.searches:
        scores = [last.score for last in lasts]
        assert scores == sorted(scores, reverse=True)
        for last in lasts:
            wanted = last.cumulative_logprob / last.num_output_tokens**p.length_penalty
            assert math.isclose(last.score, wanted, rel_tol=1e-4, abs_tol=1e-4)
    assert sum(d.score is not None for d in answer.deltas) == (p.n if p.searches else 0)
    for last in lasts:
        assert (last.alignment is not None) == p.alignment
        if last.alignment is not None:
            assert last.alignment.weights.sum(1) == pytest.approx(1, abs=1e-5)
            assert len(last.alignment.weights) == len(last.alignment.token_ids)
    for index in range(p.n):
        _one_obeys(engine, ids, p, most, [d for d in answer.deltas if d.index == index])
    if p.best_of is not None and p.best_of > p.n:
        means = [last.cumulative_logprob / last.num_output_tokens for last in lasts]
        assert means == sorted(means, reverse=True)


def begun(engine: GenerationEngine, p: GenerationParameters) -> list[int]:
    """What the decoder of an encoder-decoder model begins with."""
    start = engine.model.decoder_start_token_id
    if p.target_prefix is not None:
        return [start, *engine.tokenizer.backend.encode(p.target_prefix).ids]
    given = list(p.decoder_input_ids)
    return given if given[:1] == [start] else [start, *given]


def _last(answer: Answer, index: int) -> Any:
    return [delta for delta in answer.deltas if delta.index == index][-1]


def _one_obeys(
    engine: GenerationEngine, ids: list[int], p: GenerationParameters, most: int, deltas: list[Any]
) -> None:
    tokens, text = [d.token for d in deltas], "".join(d.text for d in deltas)
    assert [d.finish_reason is None for d in deltas] == [True] * (len(deltas) - 1) + [False]
    reason = deltas[-1].finish_reason
    assert all(0 <= token <= END for token in tokens)
    assert p.min_new_tokens <= len(tokens) <= most
    assert not {*p.suppress_tokens} & {*tokens}
    assert tokens[0] not in p.begin_suppress_tokens
    stops = {*p.stop_token_ids, *(() if p.ignore_eos else engine.model.eos_token_ids)}
    assert not stops & set(tokens[:-1])
    forced_end = p.forced_eos_token_id is not None and len(tokens) == most  # whatever is forbidden
    stopped_by_token = tokens[-1] in stops and not forced_end
    if reason == "length":
        assert len(tokens) == most
        assert not stopped_by_token
    else:
        assert reason == "stop"

    given = p.target_prefix or ""  # has stop strings as it likes
    assert text.startswith(given)
    if not p.decoder_input_ids:  # which may end within a character
        stopped = reason == "stop" and not stopped_by_token
        _stop_strings_obeyed(p, deltas, len(given), text, stopped)
    words = [word for word in engine._preparation._rules._bad_words.token_ids(p.bad_words)]
    for end in range(1, len(tokens) + 1 - forced_end):
        so_far = ids + tokens[:end]
        for word in words:
            banned = so_far[-len(word) :] == word
            assert not banned or (len(word) == 1 and word[0] in stops)
        if n := p.no_repeat_ngram_size:
            grams = [so_far[at : at + n] for at in range(len(so_far) - n)]
            assert so_far[-n:] not in grams

    assert [d.num_output_tokens for d in deltas] == list(range(1, len(deltas) + 1))
    total = 0.0
    for delta in deltas:
        assert delta.logprob <= 1e-4 or p.searches  # biases and penalties raise it
        total += delta.logprob
        assert math.isclose(delta.cumulative_logprob, total, rel_tol=1e-6, abs_tol=1e-6)
        alternatives = [value for _, value in delta.top_logprobs]
        assert len(alternatives) == (p.logprobs or 0)
        assert alternatives == sorted(alternatives, reverse=True)
        assert len({token for token, _ in delta.top_logprobs}) == len(alternatives)
        assert dict(delta.top_logprobs).get(delta.token, delta.logprob) == delta.logprob


def _stop_strings_obeyed(
    p: GenerationParameters, deltas: list[Any], given: int, text: str, stopped: bool
) -> None:
    """`given`: characters that were not generated; `stopped`: by a stop string, as nothing else
    ended the text."""
    free = "".join(d.text for d in deltas[: max(0, p.min_new_tokens - 1)])  # they do not count yet
    if p.include_stop_str_in_output and stopped:
        assert text.endswith(p.stop)
        text = text[:-1]
    else:
        assert not stopped or p.stop
    assert not any(stop in text[max(given, len(free)) :] for stop in p.stop)
