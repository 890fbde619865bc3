"""What a request will cost, before it is read."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire.engine.expectation import Expectation
from fusewire.engine.request import Request


def texts(*rows: bytes, pair: bytes | None = None) -> Request:
    inputs = {"text_input": np.array([[row] for row in rows], object)}
    if pair is not None:
        inputs["text_pair"] = np.array([[pair]] * len(rows), object)
    return Request(inputs)


def test_tokens_by_bytes_are_learned():
    expectation = Expectation(512)
    assert expectation.of(texts(b"a" * 400)).tokens == pytest.approx(100)
    for _ in range(300):
        asked = [expectation.of(texts(b"a" * 100)), expectation.of(texts(b"a" * 200))]
        expectation.learn(asked, [50, 100])
    expected = expectation.of(texts(b"a" * 400, b"a" * 200))
    assert expected.tokens == pytest.approx(300, rel=0.02)
    assert expected.squares == pytest.approx(200**2 + 100**2, rel=0.04)


def test_a_text_and_its_pair_are_one_sequence():
    expected = Expectation(512).of(texts(b"a" * 40, b"a" * 80, pair=b"b" * 40))
    assert expected.tokens == pytest.approx(50)
    assert expected.squares == pytest.approx(20**2 + 30**2)


def test_ids_say_what_they_are():
    expected = Expectation(512).of(Request({"input_ids": np.zeros((3, 20), np.int64)}))
    assert (expected.tokens, expected.squares) == (60, 1200)


@pytest.mark.parametrize(("windows", "tokens"), [(False, 128), (True, 1000)])
def test_a_longer_text_is_cut_or_read_in_windows(windows, tokens):
    expectation = Expectation(128, windows=windows)
    expected = expectation.of(texts(b"a" * 4000))
    assert expected.tokens == pytest.approx(tokens)
    assert expected.squares == pytest.approx(tokens * 128)
    expectation.learn([expected], [128])  # of a text that was cut nothing is learned
    if not windows:
        assert expectation.of(texts(b"a" * 40)).tokens == pytest.approx(10)


def test_tokens_of_an_image_are_learned():
    expectation = Expectation(0)
    request = Request({"pixel_values": np.zeros((2, 3, 4, 4), np.float32)})
    assert expectation.of(request).tokens == 0
    expectation.learn([expectation.of(request)], [394])
    assert expectation.of(request).tokens == pytest.approx(394)


def test_the_first_image_has_the_tokens_of_its_model():
    expectation = Expectation(0, image_tokens=197)
    request = Request({"pixel_values": np.zeros((2, 3, 4, 4), np.float32)})
    assert expectation.of(request).tokens == 394
    for _ in range(300):
        expectation.learn([expectation.of(request)], [2 * 50])
    assert expectation.of(request).tokens == pytest.approx(100, rel=0.02)
