"""From deltas to responses: a step's together, nothing lost, nothing twice."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fusewire.engine.continuation import Alignment, Delta
from fusewire.engine.prompt_logprobs import PromptLogprobs
from fusewire.errors import InvalidInput
from fusewire.generation.limits import GenerationLimits, SourceLimits
from fusewire.generation.parameter_reader import ParameterReader
from fusewire.generation.parameters import GenerationParameters
from fusewire.generation.spelling import layer
from fusewire.serving.instance.generated import Generated, TokensToText
from fusewire.tasks.contract import GENERATE, RETURNED, contract
from fusewire.tasks.generate import GenerateRequest, read
from hypothesis import given
from hypothesis import strategies as st

LIMITS = GenerationLimits(vocab_size=100, max_length=50, max_request_tokens=400, max_sequences=64)
TYPES = {"TYPE_STRING": object, "TYPE_FP32": np.float32, "TYPE_UINT32": np.uint32}


def delta(index: int, text: str, count: int, last: bool = False, **more: Any) -> Delta:
    reason = "length" if last else None
    values = {"token": 7, "logprob": -1.0, "top_logprobs": ()} | more
    return Delta(
        index,
        text,
        cumulative_logprob=-float(count),
        num_output_tokens=count,
        finish_reason=reason,
        **values,
    )


def generated(n: int, stream: bool, prefix: str = "", **given: Any) -> Generated:
    drawn = {"temperature": 1.0} if n > 1 else {}
    parameters = GenerationParameters(**layer({"n": n, **drawn, **given}))
    request = GenerateRequest("p", parameters, "text_input", stream, prefix, frozenset(RETURNED))
    return Generated(request, 3, TokensToText(lambda token: f"<{token}>"))


@st.composite
def divisions(draw: st.DrawFn) -> list[list[str]]:
    """The pieces of one to four texts."""
    pieces = st.lists(st.text(max_size=3), min_size=1, max_size=5)
    return draw(st.lists(pieces, min_size=1, max_size=4))


@given(texts=divisions(), data=st.data(), stream=st.booleans())
def test_texts_and_counts_add_up_in_whatever_order_they_come(
    texts: list[list[str]], data: st.DataObject, stream: bool
) -> None:
    made = generated(len(texts), stream)
    responses: list[dict[str, Any]] = []
    used = [0] * len(texts)
    while not made.ended:
        assert stream or not responses
        index = data.draw(st.sampled_from([i for i, t in enumerate(texts) if used[i] < len(t)]))
        used[index] += 1
        last = used[index] == len(texts[index])
        made.add(delta(index, texts[index][used[index] - 1], used[index], last))
        if made.ended or (made.ready and data.draw(st.booleans())):
            responses.append(made.take())
    for index, pieces in enumerate(texts):
        joined = b"".join(response["text_output"][index] for response in responses)
        assert joined.decode() == "".join(pieces)
        assert sum(int(r["num_output_tokens"][index]) for r in responses) == len(pieces)
    assert responses[-1]["finish_reason"].tolist() == [b"length"] * len(texts)
    assert responses[-1]["cumulative_logprob"].tolist() == [-len(pieces) for pieces in texts]
    assert stream or len(responses) == 1


def test_a_steps_texts_come_together() -> None:
    made = generated(2, stream=True)
    made.add(delta(0, "a", 1))
    assert not made.ready
    made.add(delta(1, "b", 1))
    assert made.ready
    assert made.take()["text_output"].tolist() == [b"a", b"b"]
    # The second waits for pages: the first is not held up by more than a step.
    made.add(delta(0, "c", 2))
    assert not made.ready
    made.add(delta(0, "d", 3))
    assert made.ready
    assert made.take()["text_output"].tolist() == [b"cd", b""]
    assert not made.ready


def test_outputs_have_the_types_and_ranks_of_the_contract() -> None:
    made = generated(1, stream=False, prefix="p")
    made.add(delta(0, "é", 1, last=True, num_cached_tokens=2, score=-0.5))
    response = made.take()
    outputs = contract(GENERATE)[1]
    assert list(response) == [output.name for output in outputs]
    for output in outputs:
        array = response[output.name]
        assert array.dtype == TYPES[output.dtype], output.name
        assert array.shape == (1,)
    assert response["text_output"][0].decode() == "pé"
    assert response["logprobs"][0] == b"null"
    assert response["num_cached_tokens"] == 2


def test_scores_come_with_the_last_response_of_beams_alone() -> None:
    made = generated(2, stream=True, num_beams=2, temperature=0)
    for index in range(2):
        made.add(delta(index, "a", 1))
    assert "sequences_scores" not in made.take()
    for index in range(2):
        made.add(delta(index, "b", 2, last=True, score=-0.25 * index))
    assert made.take()["sequences_scores"].tolist() == [0.0, -0.25]
    drawn = generated(1, stream=False)
    drawn.add(delta(0, "a", 1, last=True))
    assert "sequences_scores" not in drawn.take()


def test_an_alignment_comes_with_the_last_piece_of_each_text() -> None:
    made = generated(2, stream=True, alignment=True, temperature=1)
    weights = np.array([[0.25, 0.75], [1.0, 0.0]], np.float32)
    found = Alignment([7, 8], [1, 2], weights)
    for index in range(2):
        made.add(delta(index, "a", 1, last=index == 0, alignment=None if index else found))
    first, second = made.take()["alignment"]
    wanted = {"source_ids": [7, 8], "token_ids": [1, 2], "weights": weights.tolist()}
    assert json.loads(first) == wanted
    assert second == b"null"
    made.add(delta(1, "b", 2, last=True, alignment=found))
    assert [json.loads(each) for each in made.take()["alignment"]] == [None, wanted]


@pytest.mark.parametrize("returned", [True, False, None])
def test_an_alignment_that_is_not_returned_is_not_computed(returned: bool | None) -> None:
    inputs: dict[str, Any] = {"text_input": np.array([b"p"], object)}
    if returned is not None:
        inputs["return_alignment"] = np.array([returned])
    reader = ParameterReader(replace(LIMITS, source=SourceLimits(100, 50, "positions")))
    parameters = read(inputs, {"alignment": True, "max_tokens": 7}, reader).parameters
    assert parameters.alignment is bool(returned)
    assert parameters.max_new_tokens == 7
    assert parameters.named("max_new_tokens") == "max_tokens"


def test_logprobs_name_the_token_taken_and_the_likeliest() -> None:
    made = generated(1, stream=False, logprobs=2)
    made.add(delta(0, "a", 1, rank=2, top_logprobs=[(5, -0.5), (7, -1.0)]))
    assert not made.ready
    made.add(delta(0, "b", 2, True, rank=9, top_logprobs=[(5, -0.5), (6, -np.inf)]))
    first, second = json.loads(made.take()["logprobs"][0])
    assert {token: each["rank"] for token, each in first.items()} == {"7": 2, "5": 1}
    assert {token: each["rank"] for token, each in second.items()} == {"7": 9, "5": 1, "6": 2}
    assert second["6"] == {"logprob": -9999.0, "rank": 2, "decoded_token": "<6>"}


def test_logprobs_have_the_bytes_of_parts_of_characters() -> None:
    wanted = frozenset(["logprobs"])
    request = GenerateRequest("p", GenerationParameters(logprobs=1), returned=wanted)
    to_text = TokensToText(lambda token: "\ufffd", lambda token: bytes([token, 0x82]))
    made = Generated(request, 3, to_text)
    made.add(delta(0, "", 1, last=True))
    ((place,),) = (json.loads(each) for each in made.take()["logprobs"])
    assert place["7"]["decoded_token"] == "\ufffd"
    assert place["7"]["bytes"] == [7, 0x82]


def test_prompt_logprobs_come_with_the_first_response_alone() -> None:
    scored = PromptLogprobs([4, 7, 6], k=1)
    scored.fill(0, [np.array(x) for x in ([-2.0, -0.5], [3, 1], [[5], [6]], [[-0.25], [-0.5]])])
    made = generated(1, stream=True, prompt_logprobs=1)
    made.add(delta(0, "a", 1, prompt_logprobs=scored))
    (answer,) = made.take()["prompt_logprobs"]
    assert json.loads(answer) == [
        None,
        {
            "7": {"logprob": -2.0, "rank": 3, "decoded_token": "<7>"},
            "5": {"logprob": -0.25, "rank": 1, "decoded_token": "<5>"},
        },
        {"6": {"logprob": -0.5, "rank": 1, "decoded_token": "<6>"}},
    ]
    made.add(delta(0, "b", 2, True))
    assert made.take()["prompt_logprobs"].tolist() == [b"null"]


def test_nothing_is_returned_that_was_not_asked_for() -> None:
    request = GenerateRequest("p", GenerationParameters())
    made = Generated(request, 3, str)
    made.add(delta(0, "a", 1, last=True))
    assert list(made.take()) == ["text_output"]


def text(value: str | bytes) -> np.ndarray:
    return np.array([value.encode() if isinstance(value, str) else value], object)


def test_the_prompt_leads_unless_streamed() -> None:
    assert read({"text_input": text("p")}, {}, ParameterReader(LIMITS)).prefix == "p"
    streamed = {"text_input": text("p"), "stream": np.array([True])}
    assert read(streamed, {}, ParameterReader(LIMITS)).prefix == ""
    without = {"text_input": text("p"), "exclude_input_in_output": np.array([True])}
    assert read(without, {}, ParameterReader(LIMITS)).prefix == ""
    assert read({"input_ids": np.array([1, 2])}, {}, ParameterReader(LIMITS)).prefix == ""


def test_parameters_of_the_tensor_go_before_those_of_the_request() -> None:
    inputs = {
        "text_input": text("p"),
        "sampling_parameters": text('{"top_p": "0.5", "seed": null}'),
    }
    own = {"top_p": "0.9", "temperature": "0.7", "max_tokens": "5", "seed": 3}
    parameters = read(inputs, own, ParameterReader(LIMITS)).parameters
    assert (parameters.top_p, parameters.temperature) == (0.5, 0.7)
    assert (parameters.max_new_tokens, parameters.seed) == (5, 3)
    inputs["sampling_parameters"] = text('{"max_new_tokens": 7}')  # the same one by its other name
    assert read(inputs, own, ParameterReader(LIMITS)).parameters.max_new_tokens == 7


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"text_input": text(b"\xff")}, "text_input: got byte 0xff at offset 0"),
        ({"text_input": np.array([b"a", b"b"], object)}, "text_input: got shape"),
        ({"text_input": np.empty(0, object)}, "text_input: got shape"),
        ({"input_ids": np.array([[1]])}, "input_ids: got int64 of shape"),
        ({"input_ids": np.array([1], np.int32)}, "input_ids: got int32"),
        ({"text_input": text("a"), "stream": np.array([], bool)}, "stream: got shape"),
        ({"text_input": text("a"), "text_pair": text("b")}, "text_pair: got an unknown tensor"),
        ({"text_input": text("a"), "sampling_parameters": text(b"\xff")}, "sampling_parameters"),
    ],
)
def test_what_is_wrong_is_named(inputs: dict[str, np.ndarray], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        read(inputs, {}, ParameterReader(LIMITS))
