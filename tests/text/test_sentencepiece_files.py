"""A SentencePiece file that is damaged, malicious or of another kind is rejected, quickly and by
name."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fusewire.errors import CheckpointError
from fusewire.text.charsmap import Charsmap
from fusewire.text.sentencepiece_backend import SentencePieceNormalizer, sentencepiece_backend
from fusewire.text.sentencepiece_model import _message_class, read_sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.sentencepiece_models import processor, trained


def read(folder: Path, data: bytes) -> Any:
    path = folder / "spiece.model"
    path.write_bytes(data)
    model = read_sentencepiece(path)
    return sentencepiece_backend(model, SentencePieceNormalizer(model, path.name), path.name)


def changed(change: Callable[[Any], object], **options: Any) -> bytes:
    model = _message_class().FromString(trained(**options))
    change(model)
    return bytes(model.SerializeToString())


def pieces(*texts: bytes, **fields: Any) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        for text in texts:
            model.pieces.add(piece=text, **fields)

    return change


def option(spec: str, name: str, value: Any) -> Callable[[Any], None]:
    return lambda model: setattr(getattr(model, spec), name, value)


def charsmap(blob: bytes) -> Callable[[Any], None]:
    return option("normalizer_spec", "precompiled_charsmap", blob)


def trie(*units: int, texts: bytes = b"x\0") -> bytes:
    words = b"".join(unit.to_bytes(4, "little") for unit in units)
    return len(words).to_bytes(4, "little") + words + texts


# The root is at offset 1; below it, at 1 ^ 97, is `a`, whose offset leads back to its own position.
CIRCLE = trie(1 << 10, *[0] * 95, 97 | 97 << 10, *[0] * 200)

DAMAGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "no pieces": (lambda model: model.ClearField("pieces"), "got 0 pieces"),
    "too many pieces": (lambda model: pieces(*[b"a"] * (1 << 19))(model), r"got \d+ pieces"),
    "an empty piece": (pieces(b""), "of 0 characters"),
    "a long piece": (pieces(b"a" * 513), "of 513 characters"),
    "long pieces": (pieces(*[b"%06d" % n + b"a" * 494 for n in range(8500)]), "of more bytes"),
    "a piece twice": (pieces(b"abcdef", b"abcdef"), "a piece twice"),
    "a piece that is no text": (pieces(b"a\xff"), "wanted UTF-8"),
    "an unknown type": (pieces(b"abcdef", type=9), "and type 9"),
    "a second unknown piece": (pieces(b"abcdef", type=2), "got 2 unknown pieces"),
    "a score that is no number": (pieces(b"abcdef", score=float("nan")), "the score nan"),
    "words for a model": (option("trainer_spec", "model_type", 3), "model_type: got 3"),
    "spaces behind words": (
        option("trainer_spec", "treat_whitespace_as_suffix", True),
        "treat_whitespace_as_suffix: got True",
    ),
    "spaces as they are": (
        option("normalizer_spec", "escape_whitespaces", False),
        "escape_whitespaces: got False",
    ),
    "half a trie": (charsmap(b"\xff\0\0\0abc\0"), "precompiled_charsmap: got 8 bytes"),
    "a trie with a circle": (charsmap(CIRCLE), "or with a circle"),
    "a value beyond the trie": (charsmap(trie(1 << 10, *[0] * 95, 97 | 256 | 9 << 20)), "its end"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused(tmp_path, damage):
    change, message = DAMAGES[damage]
    data = changed(change)
    started = time.process_time()
    with pytest.raises(CheckpointError, match=f"^spiece.model: .*{message}"):
        read(tmp_path, data)
    assert time.process_time() - started < 10


def test_user_defined_pieces_among_merges_are_refused(tmp_path):
    data = changed(pieces(b"abcdef", type=4), model_type="bpe")
    with pytest.raises(CheckpointError, match="got 1 user-defined or unused pieces in a BPE model"):
        read(tmp_path, data)


def test_a_large_file_is_not_read(tmp_path):
    path = tmp_path / "spiece.model"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CheckpointError, match=r"spiece.model: got 1099511627776 bytes"):
        read_sentencepiece(path)


@given(st.binary(max_size=200))
def test_any_bytes_are_no_model(tmp_path_factory, data):
    with pytest.raises(CheckpointError, match=r"^spiece.model: "):
        read(tmp_path_factory.getbasetemp(), data)


@given(st.data())
@settings(max_examples=60)
def test_a_file_with_other_bytes_is_refused_or_read(tmp_path_factory, data):
    whole = bytearray(trained(vocab_size=300))
    for _ in range(data.draw(st.integers(1, 5))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([len(whole), len(whole) // 2, 1000]))
    try:
        ours = read(tmp_path_factory.getbasetemp(), bytes(whole[:cut]))
    except CheckpointError:
        return
    ours.encode("Any text \u00bd")


@given(st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=300), st.text(max_size=20))
def test_any_trie_is_refused_or_read(units, text):
    try:
        rules = Charsmap(trie(*units), "spiece.model")
    except CheckpointError:
        return
    rules.apply(text)


@pytest.mark.sweep
def test_the_largest_vocabulary_takes_bounded_memory(tmp_path):
    texts = [b"%05x" % (n * 2654435761 % (1 << 20)) + b"abcdefghij" * 40 for n in range(10_000)]
    (tmp_path / "spiece.model").write_bytes(changed(pieces(*dict.fromkeys(texts))))
    code = (
        "import sys; from pathlib import Path; folder = Path(sys.argv[1]);"
        "from tests.text.test_sentencepiece_files import read;"
        "read(folder, (folder / 'spiece.model').read_bytes());"
        "print(Path('/proc/self/status').read_text())"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    # Not `ru_maxrss`, which includes the peak of the process that started this one.
    peak_kib = int(done.stdout.split("VmHWM:")[1].split()[0])
    assert peak_kib < 3 << 20


def test_rules_are_read_whole(tmp_path):
    """Each of some 230,000 rules gives the result of sentencepiece."""
    data = trained(normalization_rule_name="nfkc")
    path = tmp_path / "spiece.model"
    path.write_bytes(data)
    model = read_sentencepiece(path)
    rules = Charsmap(model.charsmap, path.name)
    assert len(rules) > 200_000
    theirs = processor(data)
    keys = list(rules._places)[::97]
    assert [rules.apply(f"a{key}b") for key in keys] == [
        theirs.normalize(f"a{key}b").removeprefix("\u2581").replace("\u2581", " ") for key in keys
    ]
