"""Ragged batching on the real server: many lengths, few executions, the same answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

from tests import tolerance
from tests.server.asking import Asker, ids, texts

RNG = np.random.default_rng(7)


def random_ids(length: int) -> list[int]:
    return [101, *RNG.integers(1000, 30000, length - 2).tolist(), 102]


def embeddings(reference: transformers.PreTrainedModel, rows: list[list[int]]) -> np.ndarray:
    """Normalised means by transformers, in one padded batch."""
    padded = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
    mask = torch.zeros_like(padded)
    for index, row in enumerate(rows):
        padded[index, : len(row)], mask[index, : len(row)] = torch.tensor(row), 1
    with torch.no_grad():
        states = reference(padded, attention_mask=mask).last_hidden_state * mask[..., None]
    return torch.nn.functional.normalize(states.sum(1) / mask.sum(1, keepdim=True)).numpy()


def test_32_requests_of_32_lengths_take_at_most_4_executions(
    asker: Asker, reference: transformers.PreTrainedModel
) -> None:
    rows = [random_ids(length) for length in range(5, 5 + 3 * 32, 3)]
    answers, _ = asker.sharing("gather", [ids(row) for row in rows], 4)
    for row, answer in zip(rows, answers, strict=True):
        assert isinstance(answer, dict), answer
        alone = asker.ask("minilm", ids(row))["embedding"]
        asker.same(answer["embedding"], alone)
    given = np.concatenate([answer["embedding"] for answer in answers])  # type: ignore[index]
    np.testing.assert_allclose(
        given, embeddings(reference, rows), rtol=0, atol=tolerance.MODEL_FP32
    )


def test_texts_of_different_lengths_share_an_execution(asker: Asker) -> None:
    sentences = [" ".join(["padding"] * n) for n in (1, 5, 20, 60)]
    answers, _ = asker.sharing("gather", [texts(sentence) for sentence in sentences], 2)
    for sentence, answer in zip(sentences, answers, strict=True):
        assert isinstance(answer, dict), answer
        alone = asker.ask("minilm", texts(sentence))
        asker.same(answer["embedding"], alone["embedding"])


def test_text_clients_and_ids_clients_are_not_merged(asker: Asker) -> None:
    """The server batches requests with the same set of inputs only; both kinds get answers."""
    _, before = asker.executions("gather")
    mixed = [texts("hello"), ids([101, 7592, 102])] * 4
    answers = asker.together("gather", mixed)
    _, after = asker.executions("gather")
    new = {size: count - before.get(size, 0) for size, count in after.items()}
    assert sum(count for size, count in new.items() if size > 4) == 0
    assert sum(new.values()) >= 2
    for answer in answers:
        assert isinstance(answer, dict), answer
        # "hello" is 7592 between [CLS] and [SEP]: both kinds arrive at the same tokens.
        asker.same(answer["embedding"], answers[0]["embedding"])  # type: ignore[index]


def test_a_request_with_several_rows_keeps_them_in_order(asker: Asker) -> None:
    words = ["one", "two words", "three words here"]
    rows = asker.ask("minilm", texts(*words))["embedding"]
    assert rows.shape == (3, 384)
    for word, row in zip(words, rows, strict=True):
        asker.same(row, asker.ask("minilm", texts(word))["embedding"][0])


@pytest.mark.parametrize("side", ["none", "right", "left", "scattered"])
def test_masked_rows_equal_rows_without_padding(asker: Asker, side: str) -> None:
    short, long = random_ids(6), random_ids(10)
    if side == "none":
        other = random_ids(10)
        together = asker.ask("minilm", ids(other, long))["embedding"]
        alone = asker.ask("minilm", ids(other))["embedding"]
    else:
        places = {
            "right": list(range(6)),
            "left": list(range(4, 10)),
            "scattered": [0, 2, 3, 6, 8, 9],
        }[side]
        padded, mask = np.zeros((2, 10), np.int64), np.zeros((2, 10), np.int64)
        padded[0, places], mask[0, places] = short, 1
        padded[1], mask[1] = long, 1
        together = asker.ask("minilm", ids(*padded.tolist(), attention_mask=mask))["embedding"]
        alone = asker.ask("minilm", ids(short))["embedding"]
    asker.same(together[0], alone[0])
    asker.same(together[1], asker.ask("minilm", ids(long))["embedding"][0])


def test_hidden_states_keep_the_shape_of_the_request(asker: Asker) -> None:
    padded = ids([5, 6, 7, 0], [8, 9, 10, 11], attention_mask=[[1, 1, 1, 0], [1, 1, 1, 1]])
    states = asker.ask("hidden", padded)["last_hidden_state"]
    assert states.shape[:2] == (2, 4)
    assert not states[0, 3].any()
    asker.same(states[0, :3], asker.ask("hidden", ids([5, 6, 7]))["last_hidden_state"][0])


def test_padding_tokens_are_counted_and_few_or_none(asker: Asker) -> None:
    """None on the CPU; on a GPU a batch is padded up to that of a recorded forward."""
    for _ in range(3):
        asker.together("gather", [ids(random_ids(length)) for length in (5, 70, 90)])
    tokens = asker.metric("fusewire_tokens_total", model="gather")
    padding = asker.metric("fusewire_padding_tokens_total")
    assert tokens > 3 * 165
    if asker.device == "cpu":
        page = asker.server.endpoint.metrics()
        assert 'fusewire_padding_tokens_total{model="minilm",task="embed"} 0' in page
        assert padding == 0
    else:
        assert 0 < padding <= tolerance.PADDING_SHARE * asker.metric("fusewire_tokens_total")
