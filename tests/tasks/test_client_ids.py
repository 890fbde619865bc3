"""Ids that a client computed itself: the same answers as for its text, however they are padded."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.reference import SENTENCES
from tests.tasks.deployed import id_request, same_json, text_request
from tests.tolerance import BATCHED_VERSUS_ALONE, MODEL_FP32, PIPELINE_SCORE

FAMILIES = ["bert", "roberta", "mpnet", "distilbert", "modernbert"]


def padded(rows: list[list[int]], side: str, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids and mask [n, longest + 3], with the tokens at the left, at the right, or
    scattered."""
    width = max(map(len, rows)) + 3
    ids = np.full((len(rows), width), pad, np.int64)
    mask = np.zeros_like(ids)
    scatter = np.random.default_rng(0)
    for row, tokens in enumerate(rows):
        places = {
            "right": np.arange(len(tokens)),
            "left": np.arange(width - len(tokens), width),
            "scattered": np.sort(scatter.permutation(width)[: len(tokens)]),
        }[side]
        ids[row, places] = tokens
        mask[row, places] = 1
    return ids, mask


@pytest.mark.parametrize("side", ["right", "left", "scattered"])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_padding_changes_no_answer_and_keeps_its_place(deploy, architecture, side):
    deployed = deploy(architecture, "hidden")
    encoded = [deployed.tokenizer(sentence)["input_ids"] for sentence in SENTENCES[:4]]
    ids, mask = padded(encoded, side, deployed.tokenizer.pad_token_id)
    states = deployed.ask(id_request(ids, mask))["last_hidden_state"]
    by_text = deployed.ask(text_request(*SENTENCES[:4]))["last_hidden_state"]
    assert states.shape == (*ids.shape, 64)
    assert not states[mask == 0].any()
    for row in range(4):
        tokens = states[row][mask[row] == 1]
        assert np.abs(tokens - by_text[row, : len(tokens)]).max() <= BATCHED_VERSUS_ALONE
    if side == "right":  # transformers gives the same sentence the same positions only then
        with torch.no_grad():
            wanted = deployed.reference(torch.tensor(ids), torch.tensor(mask)).last_hidden_state
        assert np.abs(states - wanted.numpy())[mask == 1].max() <= MODEL_FP32


def test_what_stands_under_a_zero_of_the_mask_is_never_read(deploy):
    deployed = deploy("bert", "embed")
    clean = deployed.ask(id_request([[2, 9, 3, 0]], [[1, 1, 1, 0]]))["embedding"]
    wild = deployed.ask(id_request([[2, 9, 3, -(2**62)]], [[1, 1, 1, 0]], [[0, 0, 0, 77]]))[
        "embedding"
    ]
    np.testing.assert_array_equal(clean, wild)
    np.testing.assert_array_equal(clean, deployed.ask(id_request([[2, 9, 3]]))["embedding"])


def test_token_types_are_used(deploy):
    deployed = deploy("bert", "hidden", max_length=128)
    encoded = deployed.tokenizer(SENTENCES[0], SENTENCES[1])
    by_text = deployed.ask(text_request(SENTENCES[0], pairs=[SENTENCES[1]]))
    by_ids = deployed.ask(id_request([encoded["input_ids"]], types=[encoded["token_type_ids"]]))
    untyped = deployed.ask(id_request([encoded["input_ids"]]))
    name = "last_hidden_state"
    np.testing.assert_array_equal(by_text[name], by_ids[name])
    assert np.abs(by_text[name] - untyped[name]).max() > 0.01


@pytest.mark.parametrize("architecture", FAMILIES)
def test_classify_and_fill_answer_ids_as_they_answer_text(deploy, architecture):
    classify = deploy(architecture, "classify")
    ids = [classify.tokenizer(SENTENCES[0])["input_ids"]]
    by_text, by_ids = classify.engine.answer([text_request(SENTENCES[0]), id_request(ids)])
    np.testing.assert_array_equal(by_text["scores"], by_ids["scores"])
    fill = deploy(architecture, "fill")
    text = f"The water is {fill.tokenizer.mask_token} today."
    ids = [[*fill.tokenizer(text)["input_ids"], 0, 0]]
    mask = [[1] * (len(ids[0]) - 2) + [0, 0]]
    same_json(
        fill.ask_json("candidates", id_request(ids, mask)),
        fill.ask_json("candidates", text_request(text)),
        0.0,
    )


@pytest.mark.parametrize("strategy", ["none", "simple"])
@pytest.mark.parametrize("architecture", ["bert", "roberta"])
def test_entities_of_ids_have_columns_and_no_characters(deploy, architecture, strategy):
    tags = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC"}
    deployed = deploy(architecture, "tag", num_labels=4, id2label=tags, seed=1)
    ids = deployed.tokenizer(SENTENCES[3])["input_ids"]
    [by_text] = deployed.ask_json(
        "entities", text_request(SENTENCES[3], aggregation_strategy=strategy)
    )
    [by_ids] = deployed.ask_json(
        "entities",
        id_request([[0, *ids]], [[0, *[1] * len(ids)]], aggregation_strategy=strategy),
    )
    assert by_text
    assert all(entity["start"] is None is entity["end"] for entity in by_ids)
    moved = [
        entity | {"start": None, "end": None, "index": entity["index"] + 1} for entity in by_text
    ]
    same_json(by_ids, moved, PIPELINE_SCORE)


def test_words_of_ids_are_grouped_where_pieces_are_marked(deploy):
    tags = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC"}
    deployed = deploy("bert", "tag", num_labels=4, id2label=tags, seed=1)
    ids = deployed.tokenizer(SENTENCES[3])["input_ids"]
    for strategy in ("first", "average", "max"):
        [by_text] = deployed.ask_json(
            "entities", text_request(SENTENCES[3], aggregation_strategy=strategy)
        )
        [by_ids] = deployed.ask_json("entities", id_request([ids], aggregation_strategy=strategy))
        unplaced = [entity | {"start": None, "end": None} for entity in by_text]
        same_json(by_ids, unplaced, PIPELINE_SCORE)


def test_a_folder_without_tokenizer_still_tags_ids(deploy, tmp_path):
    import shutil

    deployed = deploy("bert", "tag", num_labels=4, id2label={0: "A", 1: "B", 2: "C", 3: "D"})
    folder = tmp_path / "bare"
    shutil.copytree(deployed.folder, folder)
    (folder / "tokenizer.json").unlink()
    from fusewire.engine.encoder import EncoderEngine

    bare = type(deployed)(folder, "tag", deployed.reference, EncoderEngine(folder, "tag"))
    [entities] = bare.ask_json("entities", id_request([[2, 9, 8, 3]]))
    assert [entity["index"] for entity in entities] == [0, 1, 2, 3]
    assert all(entity["word"] is None for entity in entities)
