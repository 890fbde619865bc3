"""Stop strings against the naive definition, for every way of splitting a text into pieces."""

from __future__ import annotations

import time

import pytest
from fusewire.generation.stop_strings import StopMatcher, StopStrings
from hypothesis import given
from hypothesis import strategies as st

# Two letters give overlaps, boundaries and strings inside strings.
words = st.text("ab", min_size=1, max_size=6)


def naive(text: str, stops: list[str], include_stop: bool) -> tuple[str, str | None]:
    """Returns (output, stop string): the first end of any stop string; among those the longest."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end if include_stop else end - len(stop)], stop
    return text, None


@given(
    st.lists(st.text("abc", max_size=5), max_size=12), st.lists(words, max_size=4), st.booleans()
)
def test_the_output_is_that_of_the_naive_definition_however_the_text_is_cut(
    pieces: list[str], stops: list[str], include_stop: bool
) -> None:
    matcher = StopMatcher(StopStrings(stops), include_stop=include_stop)
    output = "".join(matcher.feed(piece) for piece in pieces) + matcher.flush()
    assert (output, matcher.matched) == naive("".join(pieces), stops, include_stop)


@given(st.lists(st.text("ab", max_size=4), max_size=12), st.lists(words, min_size=1, max_size=4))
def test_exactly_the_longest_possible_beginning_of_a_stop_string_is_held_back(
    pieces: list[str], stops: list[str]
) -> None:
    matcher = StopMatcher(StopStrings(stops))
    text = released = ""
    for piece in pieces:
        text += piece
        released += matcher.feed(piece)
        if matcher.matched is not None:
            return
        beginnings = {stop[:size] for stop in stops for size in range(len(stop))}
        held = max((text[i:] for i in range(len(text) + 1) if text[i:] in beginnings), key=len)
        assert released == text[: len(text) - len(held)]


def test_a_stop_string_across_tokens_never_leaks() -> None:
    matcher = StopMatcher(StopStrings(["</answer>"]))
    assert [matcher.feed(piece) for piece in ("42<", "/ans", "wer", "> more", "text")] == [
        "42",
        "",
        "",
        "",
        "",
    ]
    assert matcher.matched == "</answer>"
    assert matcher.flush() == ""


def test_a_false_beginning_is_let_out_as_soon_as_it_cannot_be_one() -> None:
    matcher = StopMatcher(StopStrings(["\n\nUser:"]))
    assert matcher.feed("yes\n\nUse") == "yes"
    assert matcher.feed(" it") == "\n\nUse it"


def test_what_is_held_back_comes_out_at_the_end() -> None:
    matcher = StopMatcher(StopStrings(["END"]))
    assert (matcher.feed("the E"), matcher.feed("N"), matcher.flush()) == ("the ", "", "EN")
    assert matcher.flush() == ""


def test_the_stop_string_itself_is_included_where_asked() -> None:
    matcher = StopMatcher(StopStrings(["."]), include_stop=True)
    assert matcher.feed("One. Two.") == "One."
    assert matcher.feed(" Three") == ""


def test_of_strings_that_end_together_the_longest_is_cut_away() -> None:
    matcher = StopMatcher(StopStrings(["b", "aab", "ab"]))
    assert matcher.feed("caab") == "c"
    assert matcher.matched == "aab"


def test_a_string_inside_a_longer_one_stops_first() -> None:
    matcher = StopMatcher(StopStrings(["abcd", "bc"]))
    assert matcher.feed("abcd") == "a"
    assert matcher.matched == "bc"


def test_text_before_the_minimum_stops_nothing() -> None:
    matcher = StopMatcher(StopStrings(["ab"]))
    assert matcher.pass_through("xa") == "xa"
    assert matcher.pass_through("ab") == "ab"
    assert matcher.feed("b") == "b"
    assert matcher.feed("ab") == ""
    assert matcher.matched == "ab"


def test_without_stop_strings_everything_passes_at_once() -> None:
    matcher = StopMatcher(StopStrings([]))
    assert (matcher.feed("abc"), matcher.flush()) == ("abc", "")


def test_one_automaton_serves_several_sequences() -> None:
    strings = StopStrings(["ab"])
    first, second = StopMatcher(strings), StopMatcher(strings)
    assert (first.feed("a"), second.feed("b")) == ("", "b")
    assert (first.feed("b"), second.feed("a")) == ("", "")
    assert (first.matched, second.matched) == ("ab", None)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])


def test_time_is_linear_on_a_text_of_false_beginnings() -> None:
    """A quadratic matcher would take hours: each character extends a prefix of 4096 characters."""
    matcher = StopMatcher(StopStrings(["a" * 4096 + "b", "a" * 4095 + "c"]))
    started = time.process_time()
    released = sum(len(matcher.feed("a" * 64)) for _ in range(8000))
    assert released == 8000 * 64 - 4096
    assert time.process_time() - started < 20
