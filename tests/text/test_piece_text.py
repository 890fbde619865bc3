"""Pieces become the text of sentencepiece and transformers, in a stream too."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from fusewire.text.piece_text import PieceJoining, PieceStream
from fusewire.text.sentencepiece_model import read_sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.sentencepiece_models import processor, trained
from tests.text.translation_folders import pieces_of

MODELS: dict[str, dict[str, Any]] = {
    "unigram": {},
    "bytes": {"byte_fallback": True},
    "no space in front": {"add_dummy_prefix": False},
    "spaces kept": {"remove_extra_whitespaces": False},
    "as it is": {"add_dummy_prefix": False, "remove_extra_whitespaces": False},
    "user-defined": {"user_defined_symbols": "<sep>,\u2581\u2581\u2581,quick"},
}
SPECIAL = ["</s>", "<pad>"]
# Pieces of the other language, of neither, bytes that are characters or not, and spaces.
FOREIGN = ["\u2581fremd", "\u00fc\u2581", ">>fra<<", "a\n", "<unk>", "<s>"]
SPACES = ["", "\u2581", "\u2581\u2581"]
BYTES = [f"<0x{byte:02X}>" for byte in bytes.fromhex("41 20 E2 82 AC C3 A9 80 ED A0 F4 90 0A FF")]


class Both:
    def __init__(self, path: Path, **options: Any) -> None:
        path.write_bytes(trained(**options))
        self.ours = read_sentencepiece(path)
        self.theirs: sentencepiece.SentencePieceProcessor = processor(trained(**options))
        pieces = [piece for piece in pieces_of(trained(**options)) if piece not in SPECIAL]
        spaces = [piece for piece in pieces if "\u2581" in piece]
        few = st.sampled_from([*FOREIGN, *SPACES, *BYTES, *SPECIAL, *spaces[:9], *pieces[-5:]])
        self.pieces = st.lists(
            st.sampled_from([*SPACES, *SPECIAL]) | few | st.sampled_from(pieces), max_size=12
        )

    def wanted(self, pieces: list[str], behind_special: str, plain: bool) -> str:
        text, run = "", []
        for piece in pieces:
            if piece in SPECIAL:
                text += self.theirs.decode_pieces(run) + piece + behind_special
                run = []
            else:
                run.append(piece)
        text += self.theirs.decode_pieces(run)
        return (text.replace("\u2581", " ") if plain else text).strip()


@pytest.fixture(params=MODELS, scope="module")
def both(request, tmp_path_factory) -> Both:
    return Both(tmp_path_factory.mktemp("model") / "spiece.model", **MODELS[request.param])


@pytest.mark.parametrize(("behind", "plain"), [(" ", True), ("", False)], ids=["marian", "m2m_100"])
@given(st.data())
@settings(max_examples=150)
def test_any_pieces(both, behind, plain, data):
    pieces = data.draw(both.pieces)
    joining = PieceJoining.of(both.ours, SPECIAL, behind_special=behind, plain_spaces=plain)
    assert joining.text(pieces) == both.wanted(pieces, behind, plain)


def test_white_space_waits_for_what_comes_behind_it(both):
    stream = PieceStream(PieceJoining.of(both.ours, SPECIAL, plain_spaces=True))
    assert [stream.step(piece) for piece in ("x", "\u2581", "y", "\u2581")] == ["x", "", " y", ""]
    assert stream.flush() == ""


def test_a_run_of_bytes_comes_with_the_piece_behind_it(tmp_path):
    both = Both(tmp_path / "spiece.model", byte_fallback=True)
    stream = PieceStream(PieceJoining.of(both.ours, SPECIAL))
    pieces = ("<0xE2>", "<0x82>", "<0xAC>", "<0xE2>", "x", "<0xC3>")
    assert [stream.step(piece) for piece in pieces] == ["", "", "", "", "\u20ac\ufffdx", ""]
    assert stream.flush() == "\ufffd"


@pytest.mark.parametrize("piece", ["\u2581", "<0xE2>", "", "a", "</s>"])
def test_time_is_linear_in_the_pieces(both, piece):
    stream = PieceStream(PieceJoining.of(both.ours, SPECIAL))
    started = time.process_time()
    for _ in range(100_000):
        stream.step(piece)
    stream.flush()
    assert time.process_time() - started < 10
