"""The parameters of a generation request: their meaning, and the messages of invalid ones."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fusewire.errors import CheckpointError, InvalidInput
from fusewire.generation.answer_parameters import (
    LONGEST_STOP,
    MOST_LOGPROBS,
    MOST_SEQUENCES,
    MOST_STOP_TOKENS,
    MOST_STOPS,
)
from fusewire.generation.checks import read_parameters
from fusewire.generation.defaults import FILE, generation_defaults
from fusewire.generation.limits import GenerationLimits
from fusewire.generation.parameter_reader import ParameterReader
from fusewire.generation.parameters import FIELD, GenerationParameters
from fusewire.generation.prompt import max_new_tokens
from fusewire.generation.seq2seq_parameters import LONGEST_PREFIX, MOST_PREFIX_TOKENS
from fusewire.generation.token_parameters import (
    LONGEST_BAD_WORD,
    MOST_BAD_WORDS,
    MOST_BIASES,
    MOST_SUPPRESSED,
)
from fusewire.text.bounded_json import MOST_BYTES, read_object
from hypothesis import given
from hypothesis import strategies as st
from transformers import GenerationConfig

LIMITS = GenerationLimits(
    vocab_size=2000, max_length=512, max_request_tokens=1024, max_sequences=48
)


def parse(defaults: dict[str, Any] | None = None, /, **asked: Any) -> GenerationParameters:
    return parse_json(json.dumps(asked).encode(), defaults)


def parse_json(text: bytes, defaults: dict[str, Any] | None = None) -> GenerationParameters:
    return read_parameters(read_object(FIELD, text), LIMITS, defaults)


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    def write(**config: Any) -> Path:
        (tmp_path / FILE).write_text(json.dumps(config))
        return tmp_path

    return write


def test_a_request_that_says_nothing_is_greedy_and_takes_what_fits() -> None:
    parameters = parse()
    assert parameters.greedy
    assert parameters.sequences == 1
    assert max_new_tokens(parameters, 12, LIMITS) == 500


@pytest.mark.parametrize(
    ("asked", "greedy"),
    [
        ({"temperature": 0.7}, False),
        ({"top_p": 0.9}, False),
        ({"top_k": 5}, False),
        ({"temperature": 0}, True),
        ({"temperature": 0, "do_sample": True}, True),
        ({"do_sample": True}, False),
        ({"do_sample": False, "temperature": 0.7, "top_k": 50}, True),
        ({"seed": 3, "repetition_penalty": 1.1}, True),
    ],
)
def test_who_says_how_to_draw_wants_to_draw(asked: dict[str, Any], greedy: bool) -> None:
    assert parse(**asked).greedy is greedy


def test_what_a_request_says_goes_before_the_folder(folder: Callable[..., Path]) -> None:
    path = folder(do_sample=True, temperature=0.6, top_k=30, top_p=0.9, max_new_tokens=64)
    defaults = generation_defaults(path)
    parameters = parse(defaults, top_p=0.5, max_tokens=None)
    assert not parameters.greedy
    assert (parameters.temperature, parameters.top_k, parameters.top_p) == (0.6, 30, 0.5)
    assert parameters.max_new_tokens == 64
    assert parse(defaults, do_sample=False).greedy
    assert parse(defaults, temperature=0).greedy


def test_a_temperature_in_the_folder_alone_does_not_draw(folder: Callable[..., Path]) -> None:
    defaults = generation_defaults(folder(temperature=0.6))
    assert parse(defaults).greedy
    assert parse(defaults, top_p=0.9).temperature == 0.6


def test_numbers_of_numpy_are_taken() -> None:
    asked = read_parameters({"num_beams": np.int64(4), "length_penalty": np.float32(0.5)}, LIMITS)
    assert (asked.num_beams, asked.length_penalty) == (4, 0.5)
    of_numpy: dict[str, Any] = {
        "max_tokens": np.int64(3),
        "seed": np.uint32(7),
        "top_k": np.int8(-1),
        "ignore_eos": np.True_,
        "stop_token_ids": np.array([1, 2]),
        "bad_words_ids": [np.array([3, 4])],
        "logit_bias": {np.int64(5): np.float32(0.5)},
    }
    plain: dict[str, Any] = {
        "max_tokens": 3,
        "seed": 7,
        "top_k": -1,
        "ignore_eos": True,
        "stop_token_ids": [1, 2],
        "bad_words_ids": [[3, 4]],
        "logit_bias": {5: 0.5},
    }
    assert GenerationParameters(**of_numpy) == GenerationParameters(**plain)
    assert read_parameters(of_numpy, LIMITS) == read_parameters(plain, LIMITS)
    with pytest.raises(InvalidInput, match=r"max_tokens: got 2\.5, wanted a whole number"):
        GenerationParameters(max_tokens=np.float64(2.5))


def test_top_k_is_off_as_zero_or_minus_one() -> None:
    assert parse(top_k=-1).top_k == parse(top_k=0).top_k == parse().top_k == 0


def test_numbers_and_flags_may_be_written_as_strings() -> None:
    written = {"temperature": "0.5", "top_p": "1", "top_k": "-1", "max_tokens": "5", "seed": "-7"}
    flags = {"ignore_eos": "true", "skip_special_tokens": "False"}
    plain = {"temperature": 0.5, "top_p": 1, "top_k": -1, "max_tokens": 5, "seed": -7}
    of_strings = parse(**written, **flags, logit_bias={"3": "1e1"})
    of_values = parse(**plain, ignore_eos=True, skip_special_tokens=False, logit_bias={"3": 10.0})
    assert of_strings == of_values
    assert parse(temperature="0", top_p="1").greedy
    assert parse(do_sample="false", temperature="0.5").greedy


def test_what_changes_no_answer_is_accepted() -> None:
    harmless = {
        "detokenize": True,
        "spaces_between_special_tokens": True,
        "add_generation_prompt": True,
        "continue_final_message": False,
        "request_id": "of the client",
    }
    assert parse(**harmless, top_p=0.9) == parse(top_p=0.9)


def test_beams_as_hugging_face_and_vllm_spell_them() -> None:
    parameters = parse(num_beams="4", num_return_sequences=2, early_stopping="true")
    assert (parameters.num_beams, parameters.n, parameters.early_stopping) == (4, 2, True)
    assert (parameters.sequences, parameters.answers) == (4, 2)
    assert parse(num_beams=2, early_stopping="never").early_stopping == "never"
    assert parse(use_beam_search=True, n=3).num_beams == 3
    parameters = parse(use_beam_search="true", n=3, best_of=5, temperature=0)
    assert (parameters.num_beams, parameters.n, parameters.best_of) == (5, 3, None)
    assert not parse(use_beam_search=False).searches
    assert not parse(num_beams=1, length_penalty=2.0).searches


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"n": 5}, "n: got 5, wanted at most 4, which is num_beams"),
        ({"num_return_sequences": 5}, "num_return_sequences: got 5, wanted at most 4"),
        ({"temperature": 0.7}, "temperature: got 0.7, wanted none with num_beams 4"),
        ({"do_sample": True}, "do_sample: got true, wanted none with num_beams"),
        ({"top_p": 0.7}, "top_p: got 0.7, wanted none with num_beams"),
        ({"best_of": 4}, "best_of: got 4, wanted none with num_beams"),
        ({"stop": "x"}, r"stop: got \['x'\], wanted none with num_beams"),
        ({"logprobs": 1}, "logprobs: got 1, wanted 0 with num_beams 4: of the tokens taken"),
        ({"prompt_logprobs": 0}, "prompt_logprobs: got 0, wanted none with num_beams"),
        ({"use_beam_search": True}, "use_beam_search: got it and num_beams together"),
    ],
)
def test_what_beams_do_not_go_with_is_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        parse(num_beams=4, **asked)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"best_of": 513}, "best_of: got 513, wanted at most 512"),
        ({"best_of": 0}, "best_of: got 0, wanted at least 1"),
        ({"best_of": 2, "n": 3}, "n: got 3, wanted at most 2, which is best_of"),
        ({"best_of": 49}, "best_of: got 49, wanted at most 48, the sequences that run at once"),
        ({"best_of": 8, "max_tokens": 300}, "best_of: got 2400 tokens over 8 sequences"),
        ({"n": 49}, "n: got 49, wanted at most 48, the sequences that run at once"),
    ],
)
def test_vllms_beams_are_refused_by_the_name_that_was_sent(
    asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=f"^{message}"):
        parse(use_beam_search=True, **asked)


def test_a_folders_beams_give_way(folder: Callable[..., Path]) -> None:
    defaults = generation_defaults(folder(num_beams=4, length_penalty=2.0, early_stopping=True))
    parameters = parse(defaults)
    assert (parameters.num_beams, parameters.length_penalty) == (4, 2.0)
    assert parameters.early_stopping is True
    for asked in ({"temperature": 0}, {"logprobs": 0}):
        assert parse(defaults, **asked).searches
    for asked in ({"temperature": 0.7}, {"logprobs": 1}, {"stop": "x"}, {"num_beams": 1}):
        assert not parse(defaults, **asked).searches
    few = GenerationLimits(2000, 500, 4000, 3)
    assert read_parameters({}, few, defaults).num_beams == 3
    with pytest.raises(InvalidInput, match="num_beams: got 4, wanted at most 3, the sequences"):
        read_parameters({"num_beams": 4}, few, defaults)
    with pytest.raises(InvalidInput, match="num_beams: got 10000 tokens over 20 sequences"):
        parse(defaults, num_beams=20, max_tokens=500)


def test_named_beams_go_before_a_folder_that_samples(folder: Callable[..., Path]) -> None:
    defaults = generation_defaults(folder(do_sample=True, temperature=0.6))
    assert parse(defaults, num_beams=4).greedy
    with pytest.raises(CheckpointError, match=r"stop: got \['x'\], wanted none with num_beams 4"):
        generation_defaults(folder(stop_strings=["x"], num_beams=4))
    ends = generation_defaults(folder(stop_strings=["x"]))
    with pytest.raises(InvalidInput, match="num_beams: got 4, wanted 1 where texts end as the"):
        parse(ends, num_beams=4)


def test_other_names_and_single_strings() -> None:
    parameters = parse(max_tokens=9, min_tokens=2, stop="END", logit_bias={"7": -100})
    assert (parameters.max_new_tokens, parameters.min_new_tokens) == (9, 2)
    assert (parameters.max_tokens, parameters.min_tokens) == (9, 2)
    assert parameters.stop == ("END",)
    assert parameters.logit_bias == {7: -100.0}


NOT_NUMBERS = [True, "one", "0x1", " 1", "", [1], {}, "NaN", "inf", "-"]
REFUSED: list[tuple[str, list[Any]]] = [
    ("max_new_tokens", [0, -1, 1.5, 5.0, "5.0", "0", *NOT_NUMBERS]),
    ("max_tokens", [0, True]),
    ("min_new_tokens", [-1, *NOT_NUMBERS]),
    ("do_sample", [1, 0, "1", "yes", ""]),
    ("temperature", [-0.1, 100.5, 1e-9, "-0.1", "1e999", *NOT_NUMBERS]),
    ("top_k", [-2, -1.0, "-2", 1.5, *NOT_NUMBERS]),
    ("top_p", [0, -0.5, 1.0001, *NOT_NUMBERS]),
    ("min_p", [-0.1, 1.1, *NOT_NUMBERS]),
    ("typical_p", [0, 1.1, *NOT_NUMBERS]),
    ("repetition_penalty", [0, -1, 101, *NOT_NUMBERS]),
    ("presence_penalty", [-2.1, 2.1, *NOT_NUMBERS]),
    ("frequency_penalty", [-2.1, 2.1, *NOT_NUMBERS]),
    ("no_repeat_ngram_size", [-1, 1025, *NOT_NUMBERS]),
    ("encoder_no_repeat_ngram_size", [2, -1, 1025, *NOT_NUMBERS]),  # 2: the model has no encoder
    ("logit_bias", [5, [], {"x": 1}, {"-1": 1}, {"07": 1}, {"2000": 1}, {"7": 101}, {"7": "x"}]),
    ("logit_bias", [{str(i): 1 for i in range(MOST_BIASES + 1)}, {"7": True}, {"9" * 30: 1}]),
    (
        "bad_words",
        ["word", [""], [1], ["w"] * (MOST_BAD_WORDS + 1), ["w" * (LONGEST_BAD_WORD + 1)]],
    ),
    ("bad_words_ids", [5, [5], [[]], [[-1]], [[2000]], [[True]], [[1]] * (MOST_BAD_WORDS + 1)]),
    ("bad_words_ids", [[[1] * (LONGEST_BAD_WORD + 1)]]),
    ("suppress_tokens", [5, [True], [-1], [2000], [1] * (MOST_SUPPRESSED + 1)]),
    ("begin_suppress_tokens", [5, [True], [-1], [2000], [1] * (MOST_SUPPRESSED + 1)]),
    ("stop", ["", [""], [1], 1, {}, ["s"] * (MOST_STOPS + 1), "s" * (LONGEST_STOP + 1)]),
    ("stop_token_ids", [5, [True], [-1], [2000], [1] * (MOST_STOP_TOKENS + 1)]),
    ("ignore_eos", [1, "no"]),
    ("forced_bos_token_id", [5, -1, *NOT_NUMBERS]),  # 5: the model has no encoder
    ("forced_eos_token_id", [5, [5, 6], -1, [], ["x"], *NOT_NUMBERS]),
    ("renormalize_logits", [1, "no"]),
    ("source_lang", ["en", "", 5, "x" * 65]),  # "en": the model has no encoder
    ("target_lang", ["en", "", 5, "x" * 65]),
    ("encoder_repetition_penalty", [0, 101, 1.5, *NOT_NUMBERS]),  # 1.5: the model has no encoder
    ("patience", [0, -1, 16.5, *NOT_NUMBERS]),
    ("alignment", [True, 1, "yes"]),  # true: the model has no encoder
    ("target_prefix", ["a", "", 5, "x" * (LONGEST_PREFIX + 1)]),  # "a": the model has no encoder
    ("decoder_input_ids", [[5], 5, [True], [-1], [1] * (MOST_PREFIX_TOKENS + 1)]),
    ("language", ["de", "", 5, "x" * 65]),  # "de": the model reads no speech
    ("task", ["transcribe", "sing", "", 5]),
    ("return_timestamps", [True, "word", "Word", 1, "yes"]),
    ("condition_on_prev_tokens", [True, 1, "yes"]),
    ("prompt_ids", [[5], "5", [1.5], [0] * 4097]),
    # Parameters of speech models, which this model is not.
    ("fallback_temperatures", [[0.2], 0.2, [-1], [101], [1e-4], [0.5] * 17, *NOT_NUMBERS]),
    ("compression_ratio_threshold", [1.35, 0, -1, *NOT_NUMBERS]),
    ("logprob_threshold", [-1.0, 0.0, 0.5, *NOT_NUMBERS]),
    ("no_speech_threshold", [0.0, 0.6, 1.5, *NOT_NUMBERS]),
    ("add_special_tokens", [1]),
    ("skip_special_tokens", [1]),
    ("include_stop_str_in_output", [0]),
    ("n", [0, MOST_SEQUENCES + 1, 10**6, 2, *NOT_NUMBERS]),  # 2: without sampling
    ("best_of", [0, MOST_SEQUENCES + 1, 2, *NOT_NUMBERS]),
    ("seed", [2**63, -(2**63) - 1, *NOT_NUMBERS]),
    ("logprobs", [-1, MOST_LOGPROBS + 1, *NOT_NUMBERS]),
    ("prompt_logprobs", [-1, MOST_LOGPROBS + 1, *NOT_NUMBERS]),
    ("priority", [1001, -1001, *NOT_NUMBERS]),
    ("timeout_seconds", [0, -1, 86401, *NOT_NUMBERS]),
    ("temprature", [0.5]),
    ("echo", [True]),
    ("detokenize", [False]),
    ("num_beams", [-1, 0, 513, 10**9, 2.0, *NOT_NUMBERS]),
    ("num_return_sequences", [-1, 0, 2, 65, 10**9]),
    ("length_penalty", [-5.1, 10.1, 10**9, *NOT_NUMBERS]),
    ("early_stopping", [0, 1, "always", "Never", "NaN", [], {}]),
    ("use_beam_search", [0, 1, "yes", []]),
    ("num_beam_groups", [0, -1, 2, 513, 1.5, *NOT_NUMBERS]),  # 2: with a single beam
    ("diversity_penalty", [-0.5, 101, *NOT_NUMBERS]),
]


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in REFUSED for value in values]
)
def test_a_wrong_value_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=rf"^{name}: got .+, wanted .+; .+$") as caught:
        parse(**{name: value})
    assert caught.value.field == name
    assert len(str(caught.value)) < 1000  # with the names of all


def test_every_parameter_is_refused_somewhere() -> None:
    assert set(GenerationParameters.model_fields) <= {name for name, _ in REFUSED}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", 1024),
        ("temperature", 100),
        ("top_k", 2001),  # more than the vocabulary: all of it, as in transformers
        ("top_p", 1),
        ("min_p", 1),
        ("no_repeat_ngram_size", 1024),
        ("logit_bias", {str(i): -100 for i in range(MOST_BIASES)}),
        ("bad_words", ["w" * LONGEST_BAD_WORD] * MOST_BAD_WORDS),
        ("stop", ["s" * LONGEST_STOP] * MOST_STOPS),
        ("stop_token_ids", [1999] * MOST_STOP_TOKENS),
        ("seed", -(2**63)),
        ("logprobs", MOST_LOGPROBS),
    ],
)
def test_the_limit_itself_is_allowed(name: str, value: Any) -> None:
    parse(**{name: value})


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"max_tokens": 3, "max_new_tokens": 3}, "max_tokens: got max_tokens and max_new_tokens"),
        (
            {"max_tokens": 3, "min_tokens": 4},
            "min_tokens: got 4, wanted at most 3, the most new tokens; lower it",
        ),
        ({"n": 4, "best_of": 3, "temperature": 1}, "best_of: got 3, wanted at least 4"),
        ({"stop": 5}, "stop: got 5, wanted a string or a list of strings"),
        ({"stop_token_ids": 5}, "stop_token_ids: got 5, wanted a list"),
        ({"n": 49, "top_p": 0.9}, "n: got 49, wanted at most 48, the sequences that run at once"),
        ({"best_of": 49, "top_p": 0.9}, "best_of: got 49, wanted at most 48"),
        ({"n": 3}, "n: got 3, wanted 1 where no tokens are drawn"),
        ({"n": 4, "top_p": 0.9, "max_tokens": 300}, "n: got 1200 tokens over 4 sequences"),
        ({"best_of": 8, "top_p": 0.9, "max_tokens": 300}, "best_of: got 2400 tokens over 8"),
        (
            {"encoder_repetition_penalty": 2.0},
            "encoder_repetition_penalty: got 2.0, wanted 1 for a model without an encoder; remove",
        ),
        ({"num_beams": 4, "num_beam_groups": 3}, "num_beam_groups: got 3, wanted a divisor of 4"),
        ({"num_beams": 4, "num_beam_groups": 2}, "diversity_penalty: got 0.0, wanted more than 0"),
    ],
)
def test_what_does_not_go_together_is_refused(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse(**asked)
    assert str(caught.value).startswith(words)


def test_new_tokens_fit_behind_the_prompt() -> None:
    assert max_new_tokens(parse(max_tokens=12), 500, LIMITS) == 12
    for name, asked in (("max_tokens", 13), ("max_new_tokens", 4000), ("min_tokens", 13)):
        words = f"^{name}: got {asked}, wanted at most 12, the context length of 512 less the 500"
        with pytest.raises(InvalidInput, match=words):
            max_new_tokens(parse(**{name: asked}), 500, LIMITS)


# Defaults of folders and operators, each valid on its own.
DEFAULTS = st.fixed_dictionaries(
    {},
    optional={
        "do_sample": st.booleans(),
        "temperature": st.sampled_from([0, 0.6]),
        "top_k": st.sampled_from([0, 50, 50_000]),
        "max_new_tokens": st.sampled_from([1, 16, 400, 5000]),
        "min_new_tokens": st.sampled_from([0, 16, 400, 5000]),
        "n": st.integers(1, MOST_SEQUENCES),
        "best_of": st.integers(1, MOST_SEQUENCES),
    },
)
ASKED = st.fixed_dictionaries(
    {},
    optional={
        "do_sample": st.booleans(),
        "temperature": st.sampled_from([0, 0.6]),
        "top_k": st.sampled_from([0, 50]),
        "max_new_tokens": st.sampled_from([1, 16, 400, 1000]),
        "min_new_tokens": st.sampled_from([0, 16, 400, 1000]),
        "n": st.integers(1, MOST_SEQUENCES),
        "best_of": st.integers(1, MOST_SEQUENCES),
    },
)


@given(defaults=DEFAULTS, asked=ASKED, prompt_tokens=st.integers(1, 511))
def test_no_default_refuses_what_would_be_taken_without_it(
    defaults: dict[str, Any], asked: dict[str, Any], prompt_tokens: int
) -> None:
    try:
        alone = max_new_tokens(parse(**asked), prompt_tokens, LIMITS)
    except InvalidInput:
        return
    parameters = parse(defaults, **asked)
    assert {name: getattr(parameters, name) for name in asked} == asked
    assert 1 <= max_new_tokens(parameters, prompt_tokens, LIMITS) <= alone


def test_a_default_gives_way_to_the_room_that_a_prompt_leaves() -> None:
    assert max_new_tokens(parse({"max_new_tokens": 400}), 500, LIMITS) == 12
    assert max_new_tokens(parse({"min_new_tokens": 400}), 500, LIMITS) == 12


def test_a_default_length_gives_way_to_request_folder_and_room() -> None:
    default = {"default_max_new_tokens": 16}
    assert parse(**default).max_new_tokens == 16
    assert parse(**default, max_tokens=40).max_new_tokens == 40
    assert parse(**default, min_tokens=20).max_new_tokens == 20
    assert parse({"max_new_tokens": 5}, **default).max_new_tokens == 5
    assert parse({"min_new_tokens": 20}, **default).max_new_tokens == 20
    assert max_new_tokens(parse(**default), 500, LIMITS) == 12
    for wrong in (0, True, 1.5, "many"):
        with pytest.raises(InvalidInput, match=r"^default_max_new_tokens: got"):
            parse(default_max_new_tokens=wrong)


def test_a_default_is_as_near_to_its_value_as_what_is_asked_allows() -> None:
    assert parse({"max_new_tokens": 9}, min_new_tokens=12).max_new_tokens == 12
    assert parse({"min_new_tokens": 12}, max_new_tokens=9).min_new_tokens == 9
    assert parse({"max_new_tokens": 900}, n=8, temperature=1.0).max_new_tokens == 1024 // 8
    assert parse({"n": 8, "do_sample": True}, max_new_tokens=512).n == 2
    assert parse({"n": 8, "do_sample": True}, temperature=0).n == 1
    assert parse({"best_of": 2, "do_sample": True}, n=3).best_of is None
    assert not parse({"temperature": 0}, top_p=0.9).greedy


def test_a_folder_may_want_more_than_a_deployment_grants(folder: Callable[..., Path]) -> None:
    defaults = generation_defaults(folder(max_new_tokens=100_000))
    assert max_new_tokens(parse(defaults), 12, LIMITS) == 500


def test_what_python_gives_is_refused_in_the_same_words() -> None:
    with pytest.raises(InvalidInput, match=r"^max_tokens: got 'x', wanted a whole number; "):
        GenerationParameters(max_tokens="x")
    with pytest.raises(InvalidInput, match=r"^beams: got 2, wanted one of the parameters"):
        GenerationParameters(beams=2)
    assert not GenerationParameters(temperature=0.5, max_tokens=None).greedy
    assert GenerationParameters(logit_bias={7: -1.0}).logit_bias == {7: -1.0}


def test_without_max_new_tokens_all_sequences_share_what_a_request_may_generate() -> None:
    parameters = parse(n=4, temperature=1.0)
    assert max_new_tokens(parameters, 12, LIMITS) == 1024 // 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "ill-formed JSON"),
        (b"{", "ill-formed JSON"),
        (b"{'n': 1}", "ill-formed JSON"),
        (b"[]", "got a JSON list, wanted a JSON object"),
        (b"null", "got null, wanted a JSON object"),
        (b"true", "got true, wanted a JSON object"),
        (b"-1.5", "got a JSON number, wanted a JSON object"),
        (b'{"n": 1, "n": 2}', "the key 'n' twice"),
        (b'{"logit_bias": {"1": 1, "1": 2}}', "the key '1' twice"),
        (b'{"temperature": NaN}', "got NaN, wanted finite"),
        (b'{"temperature": -Infinity}', "got -Infinity, wanted finite"),
        (b'{"stop": "\xff"}', "byte 0xff at offset 10"),
        (b'{"stop": ' + b"[" * 100_000, "deeper nesting"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "a number with too many digits"),
        (b'{"stop": "' + b" " * MOST_BYTES + b'"}', "bytes, wanted at most"),
    ],
)
def test_ill_formed_json_is_refused(text: bytes, words: str) -> None:
    with pytest.raises(InvalidInput, match=r"^sampling_parameters: got ") as caught:
        parse_json(text)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_number_beyond_floats_is_no_number() -> None:
    with pytest.raises(InvalidInput, match="temperature: got inf"):
        parse_json(b'{"temperature": 1e999}')


def test_time_is_linear_in_a_string_without_end() -> None:
    started = time.process_time()
    with pytest.raises(InvalidInput, match="ill-formed JSON"):
        parse_json(b'{"' + rb"\"" * (MOST_BYTES // 2 - 10))
    assert time.process_time() - started < 5


def test_brackets_in_strings_are_no_nesting() -> None:
    assert parse(stop=['[[[[[{"\\']).stop == ('[[[[[{"\\',)


@given(st.binary(max_size=80) | st.text('{}[]":,01enstop\\ ', max_size=40).map(str.encode))
def test_any_bytes_are_parameters_or_an_invalid_input(text: bytes) -> None:
    with suppress(InvalidInput):
        parse_json(text)


@given(
    st.dictionaries(
        st.sampled_from(sorted(GenerationParameters.model_fields)),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats(width=32)
            | st.text("a0", max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.text("a0", max_size=3), inner)
            ),
            max_leaves=4,
        ),
        max_size=4,
    )
)
def test_any_values_are_parameters_or_an_invalid_input(asked: dict[str, Any]) -> None:
    with suppress(InvalidInput):
        parse(**asked)


def test_a_folder_without_the_file_says_it_in_its_older_one(tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "repetition_penalty": 1.3, "num_beams": 1, "top_k": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert generation_defaults(tmp_path) == {"repetition_penalty": 1.3, "num_beams": 1}
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_beams": 0}))
    with pytest.raises(
        CheckpointError, match=r"^config\.json: num_beams: got 0, wanted at least 1"
    ):
        generation_defaults(tmp_path)
    (tmp_path / FILE).write_text("{}")
    assert generation_defaults(tmp_path) == {}


def test_a_folder_without_the_file_says_nothing(tmp_path: Path) -> None:
    assert generation_defaults(tmp_path) == {}


def test_what_transformers_itself_saves_is_read(tmp_path: Path) -> None:
    """Its defaults, except those of an encoder-decoder, count as disabled or harmless."""
    GenerationConfig(
        **GenerationConfig._get_default_generation_params() | {"eos_token_id": [1, 2]}
    ).save_pretrained(tmp_path)
    defaults = generation_defaults(tmp_path)
    assert parse(defaults).greedy
    assert parse(defaults, do_sample=True).top_k == 50


def test_a_folders_top_k_above_the_vocabulary_is_no_fault(folder: Callable[..., Path]) -> None:
    assert generation_defaults(folder(top_k=50_000)) == {"top_k": 50_000}


@pytest.mark.parametrize(
    "config",
    [
        {"num_beams": 600},
        {"num_beams": 4, "do_sample": True},
        {"num_return_sequences": 2},
        {"early_stopping": "no"},
        {"suppress_tokens": 5},
        {"begin_suppress_tokens": ["a"]},
        {"forced_eos_token_id": 2},
        {"encoder_no_repeat_ngram_size": 3},
        {"min_length": 10},
        {"epsilon_cutoff": 3e-4},
        {"guidance_scale": 1.5},
        {"bad_words_ids": [5]},
        {"temperature": -1},
        {"top_p": "high"},
        {"max_new_tokens": 5, "min_new_tokens": 6},
    ],
)
def test_what_a_folder_asks_and_is_not_supported_is_refused(
    folder: Callable[..., Path], config: dict[str, Any]
) -> None:
    name = list(config)[-1]
    with pytest.raises(CheckpointError, match=rf"^generation_config\.json: {name}: got .+wanted"):
        generation_defaults(folder(**config))


def test_how_many_texts_are_returned_is_for_requests_to_say(folder: Callable[..., Path]) -> None:
    assert generation_defaults(folder(num_return_sequences=1)) == {}
    words = r"num_return_sequences: got 2, wanted 1 or null, .*send it \(or `n`\) with requests$"
    with pytest.raises(CheckpointError, match=words):
        generation_defaults(folder(num_return_sequences=2, do_sample=True))


def test_the_lengths_of_an_encoder_decoders_targets_are_taken(folder: Callable[..., Path]) -> None:
    """transformers counts the first token, which is not generated."""
    config = {
        "min_length": 10,
        "max_length": 142,
        "forced_bos_token_id": 0,
        "forced_eos_token_id": 2,
    }
    defaults = generation_defaults(folder(**config, bad_words_ids=[[5]]), encoder_decoder=True)
    lengths = {"min_new_tokens": 9, "max_new_tokens": 141}
    assert defaults == {**lengths, "bad_words_ids": [[5]]}
    named = {"suppress_tokens": [5], "begin_suppress_tokens": [6, 7], "length_penalty": 10.0}
    forced = {"forced_eos_token_id": [2, 3], "encoder_no_repeat_ngram_size": 3}
    assert generation_defaults(folder(**named), encoder_decoder=False) == named
    assert generation_defaults(folder(**named, **forced), encoder_decoder=True) == {
        **named,
        "encoder_no_repeat_ngram_size": 3,
    }
    assert parse(defaults).bad_words_ids == ((5,),)
    newer = generation_defaults(folder(**config, max_new_tokens=20), encoder_decoder=True)
    assert newer == {**lengths, "max_new_tokens": 20}
    for wrong in ({"max_length": "142"}, {"min_length": -1}):
        with pytest.raises(CheckpointError, match=r"^generation_config\.json: m"):
            generation_defaults(folder(**wrong), encoder_decoder=True)


@pytest.mark.parametrize("least", ["min_length", "min_new_tokens"])
@pytest.mark.parametrize("most", ["max_length", "max_new_tokens"])
def test_lengths_that_contradict_each_other_are_named_as_the_folder_has_them(
    folder: Callable[..., Path], least: str, most: str
) -> None:
    wanted = f"^generation_config.json: {least}: got 30, wanted no more tokens than {most}, 20,"
    with pytest.raises(CheckpointError, match=wanted):
        generation_defaults(folder(**{least: 30, most: 20}), encoder_decoder=True)


def test_parameters_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        parse().temperature = 2.0  # type: ignore[misc]


def test_a_folder_that_searches_with_beams_may_name_a_temperature(
    folder: Callable[..., Path],
) -> None:
    """As in transformers: only do_sample turns sampling on."""
    defaults = generation_defaults(folder(num_beams=4, temperature=0.7, top_k=20))
    assert parse(defaults).num_beams == 4
    assert parse(defaults, do_sample=True).num_beams == 1
    with pytest.raises(CheckpointError, match="num_beams 4"):
        generation_defaults(folder(num_beams=4, do_sample=True, temperature=0.7))


def test_requests_that_say_the_same_share_what_is_read_of_it() -> None:
    reader = ParameterReader(LIMITS, {"top_k": 5})
    said = [
        {"max_tokens": 7, "temperature": 0.5},
        {"max_new_tokens": 7, "temperature": 0.5},
        {"max_tokens": 7, "temperature": "0.5"},
        {"max_tokens": 7, "temperature": 0.5, "stop": ["a", "b"]},
        {"max_tokens": 7, "temperature": 0.5, "logit_bias": {"3": 1, "4": -2.5}},
        {},
    ]
    for values in said:
        found, wanted = reader.read(values), read_parameters(values, LIMITS, {"top_k": 5})
        assert dict(found) == dict(wanted)
        assert found.model_fields_set == wanted.model_fields_set
        assert found.named("max_new_tokens") == wanted.named("max_new_tokens")
        assert reader.read(dict(values)) is found
    for _ in range(2):
        with pytest.raises(InvalidInput, match="max_tokens: got -1"):
            reader.read({"max_tokens": -1})


def test_parameters_as_long_as_they_may_be_are_not_kept() -> None:
    reader, long = ParameterReader(LIMITS), {"stop": ["x" * 256] * 16}
    assert reader.read(long) is not reader.read(long)
    assert dict(reader.read(long)) == dict(reader.read(long))
