"""Host and device work side by side, and what fails on the way is tried again or fails alone."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire.engine.encoder import EncoderEngine, Request
from fusewire.errors import ComputeFailed
from fusewire.settings import EngineSettings
from safetensors.numpy import load_file, save_file

from tests.engine.counting import CountingModel, answered, engine, request
from tests.reference import SENTENCES, tiny_checkpoint


@pytest.fixture
def events(monkeypatch):
    """events(engine): a list that grows with what the engine does."""

    def watch(got: EncoderEngine) -> list[str]:
        seen: list[str] = []

        def note(owner, method, name):
            original = getattr(owner, method)

            def noted(*arguments):
                seen.append(name)
                return original(*arguments)

            monkeypatch.setattr(owner, method, noted)

        note(got._reader, "encode", "tokenise")
        note(got.model, "encode", "encode")
        note(got, "_head", "head")
        return seen

    return watch


def texts(*values: str) -> Request:
    return Request({"text_input": np.array([[value.encode()] for value in values], object)})


@pytest.mark.parametrize("task", ["hidden", "embed", "classify", "tag", "fill"])
def test_results_that_are_not_finite_are_an_error_of_their_request_alone(tmp_path, task):
    tiny_checkpoint(tmp_path, "bert", task)
    tensors = load_file(tmp_path / "model.safetensors")
    (words,) = (name for name in tensors if "word_embeddings" in name)
    tensors[words][100] = np.nan
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    got = EncoderEngine(tmp_path, task)
    mask = got._task.tokenizer.mask_id
    asked = [Request({"input_ids": np.array([[7, token, mask]])}) for token in (99, 100, 101)]
    sound, spoilt, other = got.answer(asked)
    assert isinstance(spoilt, ComputeFailed)
    assert "NaN or infinite" in str(spoilt)
    assert isinstance(sound, dict)
    assert isinstance(other, dict)


def test_texts_are_tokenised_while_the_device_computes_those_before(tmp_path, events):
    tiny_checkpoint(tmp_path, "bert", "hidden")
    got = EncoderEngine(tmp_path, "hidden", EngineSettings(max_batch_tokens=40, truncate=True))
    requests = [texts(sentence * 4) for sentence in SENTENCES[:3]]
    seen = events(got)
    answers = got.answer(requests)
    # The head of one waits until the texts of the next are tokens, and comes before its encode.
    assert seen == ["tokenise", "encode", *["tokenise", "head", "encode"] * 2, "head"]
    for one, answer in zip(requests, answers, strict=True):
        [alone] = got.answer([one])
        np.testing.assert_array_equal(answer["last_hidden_state"], alone["last_hidden_state"])


def test_a_micro_batch_worth_of_short_texts_is_tokenised_at_once(tmp_path, events):
    tiny_checkpoint(tmp_path, "bert", "hidden")
    got = EncoderEngine(tmp_path, "hidden")
    seen = events(got)
    got.answer([texts(sentence) for sentence in SENTENCES])
    assert seen == ["tokenise", "encode", "head"]


def test_hidden_states_are_read_before_the_next_encode(tmp_path):
    class Reusing(CountingModel):
        """As recorded forwards do: every encode writes the same memory."""

        states = np.zeros((100, 2), np.float32)

        def encode(self, batch):
            hidden = super().encode(batch)
            self.states[: batch.tokens] = hidden.numpy()
            return type(hidden).from_numpy(self.states[: batch.tokens])

    rows = [[value] * 8 for value in (1, 2, 3, 4)]
    answers = engine(tmp_path, Reusing(), max_batch_tokens=8).answer([request(r) for r in rows])
    for answer, row in zip(answers, rows, strict=True):
        answered(answer, row)


class FailingHead:
    """Fails for more than `most` sequences."""

    def __init__(self, head, error: Exception, most: int) -> None:
        self.head, self.error, self.most = head, error, most

    def __call__(self, hidden, batch, options):
        if batch.sequences > self.most:
            raise self.error
        return self.head(hidden, batch, options)


def test_a_head_out_of_memory_is_tried_again_in_halves(tmp_path, monkeypatch):
    model = CountingModel()
    got = engine(tmp_path, model, max_batch_tokens=16)
    head = FailingHead(got._head, MemoryError(), most=1)
    monkeypatch.setattr(got, "_head", head)
    rows = [[5] * 8, [6] * 8, [7] * 16]
    answers = got.answer([request(row) for row in rows])
    for answer, row in zip(answers, rows, strict=True):
        answered(answer, row)
    # The failure shows when the next micro-batch is about to begin; the halves come after it.
    assert model.seen == [[16], [8, 8], [8], [8]]
    assert (got.last_counts.micro_batches, got.last_counts.tokens) == (3, 32)


def test_a_head_that_fails_harms_its_micro_batch_alone(tmp_path, monkeypatch):
    got = engine(tmp_path, CountingModel(), max_batch_tokens=16)
    head = FailingHead(got._head, ZeroDivisionError(), most=1)
    monkeypatch.setattr(got, "_head", head)
    rows = [[7] * 16, [5] * 8, [6] * 8]
    answers = got.answer([request(row) for row in rows])
    answered(answers[0], rows[0])
    assert all(isinstance(answer, ComputeFailed) for answer in answers[1:])
