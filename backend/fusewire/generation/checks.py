"""Parameters of generation against the limits of a model: the one place that checks a request's."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from itertools import chain
from math import floor, gcd
from typing import Any, NoReturn

from fusewire.errors import InvalidInput, sent
from fusewire.generation.limits import GenerationLimits
from fusewire.generation.no_effect import without_no_effect
from fusewire.generation.parameters import GenerationParameters
from fusewire.generation.seq2seq_parameters import Seq2SeqParameters
from fusewire.generation.speech_parameters import SpeechParameters
from fusewire.generation.spelling import DEFAULT_LENGTH, SAMPLING, layer

_SAMPLES = (*SAMPLING, "do_sample")
_WITHOUT_BEAMS = ("best_of", "stop", "prompt_logprobs")

# Below it logits could leave float32 when they are divided.
SMALLEST_TEMPERATURE = 1e-3


def read_parameters(
    values: Mapping[str, Any],
    limits: GenerationLimits,
    defaults: Mapping[str, Any] | None = None,
) -> GenerationParameters:
    """A request's values, checked and completed by `defaults`, as `generation_defaults` makes them:
    those that fit neither the values nor the limits give way. InvalidInput."""
    given = without_no_effect({name: value for name, value in values.items() if value is not None})
    length = given.pop(DEFAULT_LENGTH, None)
    if length is not None and (type(length) is not int or length < 1):
        raise InvalidInput(
            DEFAULT_LENGTH, sent(length), "a whole number of 1 or more", "correct it"
        )
    named = layer(given)
    others = {"do_sample": False, "max_new_tokens": length, **(defaults or {})}
    parameters = GenerationParameters(
        **{k: v for k, v in others.items() if k not in named}, **given
    )
    fitting = {**dict(parameters), **_give_way(parameters, limits, named)}
    parameters = GenerationParameters.completed(given, fitting)
    _check(parameters, limits)
    return parameters


def _give_way(
    p: GenerationParameters, limits: GenerationLimits, named: Container[str]
) -> dict[str, Any]:
    """The defaults among `p`, changed to fit the limits and what a request has `named`: so only
    what it named can be refused."""
    temperature, n, best_of, do_sample = p.temperature, p.n, p.best_of, p.do_sample
    least, most = p.min_new_tokens, p.max_new_tokens
    if "do_sample" in named and "temperature" not in named and p.do_sample:
        temperature = temperature or 1.0

    # As many sequences as run at once, and may have the tokens that were named.
    lengths = {"min_new_tokens": least, "max_new_tokens": most or 1}
    longest = max([1, *(length for name, length in lengths.items() if name in named)])
    allowed = min(max(1, limits.max_request_tokens // longest), limits.max_sequences)
    beams, greedy = p.num_beams, not do_sample or temperature == 0
    if "num_beams" not in named:
        without = any(name in named for name in _not_with_beams(p, greedy=greedy))
        beams = 1 if without else min(beams, allowed)
    elif beams > 1:  # what was named stays, and is refused
        do_sample, best_of, greedy = False, None, True
    sequences = beams if beams > 1 else 1 if greedy else allowed
    if "n" not in named:
        n = min(n, sequences, best_of if best_of and "best_of" in named else n)
    if "best_of" not in named and best_of is not None:
        best_of = min(best_of, sequences) if n <= min(best_of, sequences) else None

    # As many tokens as all of them may have.
    each = max(1, limits.max_request_tokens // (beams if beams > 1 else best_of or n))
    if "min_new_tokens" not in named:
        least = min(least, each)
        if most is not None and "max_new_tokens" in named:
            least = min(least, most)
    if "max_new_tokens" not in named and most is not None:
        most = max(least, min(most, each))
    fitting = {
        "num_beams": beams,
        "num_beam_groups": gcd(beams, p.num_beam_groups) if p.diversity_penalty else 1,
        "do_sample": do_sample,
        "temperature": temperature,
        "n": n,
        "best_of": best_of,
        "min_new_tokens": least,
        "max_new_tokens": most,
    }
    return {name: value for name, value in fitting.items() if name not in named}


def _check(p: GenerationParameters, limits: GenerationLimits) -> None:
    """Raises InvalidInput for what one field alone does not show."""

    def refuse(name: str, got: object, wanted: str, remedy: str) -> NoReturn:
        raise InvalidInput(p.named(name), got, wanted, remedy)

    for name, temperatures in (
        ("temperature", (p.temperature,)),
        ("fallback_temperatures", p.fallback_temperatures),
    ):
        for temperature in temperatures:
            if 0 < temperature < SMALLEST_TEMPERATURE:
                wanted = f"0 (greedy) or at least {SMALLEST_TEMPERATURE}"
                refuse(name, temperature, wanted, "raise it, or send 0")
    named = p.model_fields_set  # a folder may name what its model's vocabulary has not
    lists: dict[str, Iterable[int]] = {
        "logit_bias": p.logit_bias,
        "stop_token_ids": p.stop_token_ids,
        "bad_words_ids": chain(*p.bad_words_ids) if "bad_words_ids" in named else (),
    }
    for name in {"suppress_tokens", "begin_suppress_tokens", "decoder_input_ids"} & named:
        lists[name] = getattr(p, name)
    for name, ids in lists.items():
        for token in ids:
            if not 0 <= token < limits.vocab_size:
                wanted = f"ids 0..{limits.vocab_size - 1}, the model's vocabulary"
                refuse(name, f"id {token}", wanted, "use this model's tokenizer")
    _check_source_options(p, limits, refuse)
    _check_speech_options(p, limits, refuse)
    if p.max_new_tokens == 0 and p.prompt_logprobs is None:
        if limits.source is not None:  # whose prompts have none
            refuse("max_new_tokens", 0, "at least 1, as nothing would be answered", "raise it")
        wanted = "at least 1 without prompt_logprobs, as nothing would be answered"
        refuse("max_new_tokens", 0, wanted, "raise it, or ask for prompt_logprobs")
    if p.best_of is not None and p.best_of < p.n:
        refuse("best_of", p.best_of, f"at least {p.n}, which is n", "raise it or remove it")
    many = "num_beams" if p.searches else "best_of" if p.best_of is not None else "n"
    _check_beam_groups(p, refuse)
    if p.searches:
        _check_beams(p, refuse)
    elif p.sequences > 1 and p.greedy:
        wanted = "1 where no tokens are drawn, as all sequences would be equal"
        refuse(many, p.sequences, wanted, "set a temperature, or num_beams")
    if p.sequences > limits.max_sequences:
        wanted = f"at most {limits.max_sequences}, the sequences that run at once"
        refuse(many, p.sequences, wanted, "lower it")
    most = p.max_new_tokens
    if most is not None and p.min_new_tokens > most:
        wanted = f"at most {most}, the most new tokens"
        refuse("min_new_tokens", p.min_new_tokens, wanted, "lower it")
    # Behind a prompt there is less room than this, which is named where its length is known.
    tokens = p.sequences * min(most or max(p.min_new_tokens, 1), limits.max_length)
    if tokens > limits.max_request_tokens:
        got = f"{tokens} tokens" + (f" over {p.sequences} sequences" if p.sequences > 1 else "")
        length = "max_new_tokens" if "max_new_tokens" in p.model_fields_set else "min_new_tokens"
        name = many if p.sequences > 1 and many in p.model_fields_set else length
        wanted = f"at most {limits.max_request_tokens} generated by one request"
        refuse(name, got, wanted, "ask for fewer tokens" + (" or texts" if p.sequences > 1 else ""))


def _not_with_beams(p: GenerationParameters, *, greedy: bool) -> list[str]:
    """The fields that ask for what beam search does not have."""
    sampling = [] if greedy else [name for name in _SAMPLES if name in p.model_fields_set]
    others = [name for name in _WITHOUT_BEAMS if getattr(p, name) not in (None, ())]
    return sampling + others + (["logprobs"] if p.logprobs else [])


def _check_beams(p: GenerationParameters, refuse: Callable[..., NoReturn]) -> None:
    if p.n > p.num_beams:
        wanted = f"at most {p.num_beams}, which is {p.named('num_beams')}"
        refuse("n", p.n, wanted, "lower it, or raise that")
    kept = p.num_beam_groups * max(1, floor(p.num_beams / p.num_beam_groups * p.patience + 0.5))
    if p.n > kept:
        wanted = f"at most {kept}, the texts that are kept with patience {p.patience}"
        refuse("n", p.n, wanted, "lower it, or raise that")
    for name in _not_with_beams(p, greedy=p.greedy):
        if name in p.model_fields_set:
            wanted = f"none with num_beams {p.num_beams}, as beam search has no such thing"
            if name == "logprobs":
                wanted = f"0 with num_beams {p.num_beams}: of the tokens taken, not of others"
            refuse(name, getattr(p, name), wanted, "remove it, or set num_beams to 1")
        wanted = f"1 where texts end as the folder's {name} says"
        refuse("num_beams", p.num_beams, wanted, "remove it")


def _check_beam_groups(p: GenerationParameters, refuse: Callable[..., NoReturn]) -> None:
    if p.num_beams % p.num_beam_groups:
        wanted = f"a divisor of {p.num_beams}, which is num_beams"
        refuse("num_beam_groups", p.num_beam_groups, wanted, "change one of them")
    if p.num_beam_groups > 1 and not p.diversity_penalty:
        wanted = f"more than 0 with num_beam_groups {p.num_beam_groups}, which would be equal"
        refuse("diversity_penalty", p.diversity_penalty, wanted, "raise it")
    named = "diversity_penalty" in p.model_fields_set
    if p.num_beam_groups == 1 and p.diversity_penalty and named:
        wanted = "0 without num_beam_groups, as it tells groups apart"
        refuse("diversity_penalty", p.diversity_penalty, wanted, "add them, or remove it")


def _check_source_options(
    p: GenerationParameters, limits: GenerationLimits, refuse: Callable[..., NoReturn]
) -> None:
    """Refuses parameters that only models with an encoder take, or only models without."""
    bos = () if p.forced_bos_token_id is None else (p.forced_bos_token_id,)
    forced = {"forced_bos_token_id": bos, "forced_eos_token_id": p.forced_eos_token_id or ()}
    for name, ids in forced.items():
        for token in ids:
            if limits.source is None:
                refuse(name, token, "null for a model without an encoder", "remove it")
            if token >= limits.vocab_size:
                wanted = f"an id 0..{limits.vocab_size - 1}, the model's vocabulary"
                refuse(name, token, wanted, "use this model's tokenizer")
    n = p.encoder_no_repeat_ngram_size
    if n and limits.source is None:
        refuse("encoder_no_repeat_ngram_size", n, "0 for a model without an encoder", "remove it")
    if p.encoder_repetition_penalty != 1 and limits.source is None:
        penalty = p.encoder_repetition_penalty
        refuse(
            "encoder_repetition_penalty", penalty, "1 for a model without an encoder", "remove it"
        )
    for name in ("source_lang", "target_lang"):
        if limits.source is None and getattr(p, name) is not None:
            refuse(name, getattr(p, name), "null for a model without an encoder", "remove it")
    if p.alignment and limits.source is None:
        refuse("alignment", True, "false for a model without an encoder", "remove it")
    for name in ("target_prefix", "decoder_input_ids"):
        if limits.source is None and getattr(p, name):
            wanted = "null for a model without an encoder, which goes on from its prompt"
            refuse(name, getattr(p, name), wanted, "write it at the end of the prompt")
    if p.target_prefix is not None and p.decoder_input_ids:
        wanted = "null beside decoder_input_ids, which are the same as ids"
        refuse("target_prefix", p.target_prefix, wanted, "remove one of them")
    if p.decoder_input_ids and p.target_lang is not None:
        wanted = "null beside target_lang, which says how the text begins"
        refuse("decoder_input_ids", p.decoder_input_ids, wanted, "use target_prefix")
    if p.target_lang is not None and "forced_bos_token_id" in p.model_fields_set:
        wanted = "null beside target_lang, which says how the text begins"
        refuse("forced_bos_token_id", p.forced_bos_token_id, wanted, "remove one of them")
    if limits.source is not None and p.prompt_logprobs is not None:
        wanted = "null for an encoder-decoder model, which reads the prompt and predicts none of it"
        refuse("prompt_logprobs", p.prompt_logprobs, wanted, "remove it")


def _check_speech_options(
    p: GenerationParameters, limits: GenerationLimits, refuse: Callable[..., NoReturn]
) -> None:
    """Refuses parameters that only models of speech take, or that none of them takes."""
    speech = limits.speech
    if speech is None:
        for name, field in SpeechParameters.model_fields.items():
            if getattr(p, name) != field.default:
                wanted = "null for a model that reads no speech"
                refuse(name, getattr(p, name), wanted, "remove it")
        return
    for name, field in Seq2SeqParameters.model_fields.items():
        if name != "forced_eos_token_id" and getattr(p, name) != field.default:
            wanted = "null for a model of speech, whose source is no text"
            refuse(name, getattr(p, name), wanted, "remove it")
    for name in ("condition_on_prev_tokens", "prompt_ids"):
        if getattr(p, name) and speech.previous is None:
            wanted = "none for a model whose generation_config.json has no prev_sot_token_id"
            refuse(name, getattr(p, name), wanted, "remove it, or add that")
    if p.no_speech_threshold is not None and p.logprob_threshold is None:
        wanted = "null without logprob_threshold, as a window is silence by both"
        refuse("no_speech_threshold", p.no_speech_threshold, wanted, "set that too, or remove it")
    judged = (p.compression_ratio_threshold, p.logprob_threshold) != (None, None)
    for name, off in {"n": 1, "best_of": None}.items():
        if judged and getattr(p, name) != off:
            wanted = f"{'1' if off else 'none'} where a window may be decoded again"
            remedy = "remove it, or compression_ratio_threshold and logprob_threshold"
            refuse(name, getattr(p, name), wanted, remedy)
    if p.times_words and not speech.alignment_heads:
        wanted = "true or false for a model whose generation_config.json names no alignment_heads"
        remedy = "name there those heads of its decoder, as the published models of OpenAI do"
        refuse("return_timestamps", p.return_timestamps, f"{wanted} that it has", remedy)
    if p.return_timestamps and p.stop:
        wanted = "none with timestamps, whose parts have all that is said"
        refuse("stop", list(p.stop), wanted, "leave one of them out")
    for token in p.prompt_ids:
        if not 0 <= token < speech.eos and token != speech.previous:
            wanted = f"ids of text tokens, 0..{speech.eos - 1}"
            refuse("prompt_ids", f"id {token}", wanted, "use this model's tokenizer")
    if not speech.languages:
        for name in ("language", "task"):
            if getattr(p, name) is not None:
                wanted = "null for a model that transcribes one language alone"
                refuse(name, getattr(p, name), wanted, "remove it")
    elif p.language is not None and speech.known(p.language) is None:
        wanted = f"one of {', '.join(speech.languages)}"
        refuse("language", repr(p.language), wanted, "choose one, or leave it out")
