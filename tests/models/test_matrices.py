"""The names that quantize_skip accepts are known before a weight is read: those of loaded
models."""

from __future__ import annotations

from pathlib import Path

import pytest
from fusewire.models import check_folder, load_decoder, load_encoder
from fusewire.placement import Placement

from tests.models import test_image_models, test_image_text_models
from tests.models.test_image_models import saved
from tests.models.tiny_decoders import DECODERS, tiny_decoder
from tests.models.tiny_seq2seq import SEQ2SEQ, tiny_encoder, tiny_seq2seq
from tests.models.tiny_whisper import tiny_whisper
from tests.reference import ARCHITECTURES, tiny_checkpoint


def agrees(folder: Path, task: str) -> None:
    place = Placement("cpu", quantize="int8")
    load_decoder(folder, place) if task == "generate" else load_encoder(folder, task, place)
    assert place.formats
    assert {*check_folder(folder, task)} == {*place.formats}


@pytest.mark.parametrize("task", ["hidden", "fill", "classify", "answer"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_encoders_of_texts(tmp_path, architecture, task):
    tiny_checkpoint(tmp_path, architecture, task)
    agrees(tmp_path, task)


@pytest.mark.parametrize("model_type", DECODERS)
def test_decoders(tmp_path, model_type):
    tiny_decoder(tmp_path, model_type)
    agrees(tmp_path, "generate")


@pytest.mark.parametrize("model_type", SEQ2SEQ)
def test_encoder_decoders(tmp_path, model_type):
    tiny_seq2seq(tmp_path / "whole", model_type)
    agrees(tmp_path / "whole", "generate")
    tiny_encoder(tmp_path / "encoder", model_type)
    agrees(tmp_path / "encoder", "hidden")


def test_speech(tmp_path):
    tiny_whisper(tmp_path)
    agrees(tmp_path, "generate")


@pytest.mark.parametrize("name", test_image_models.LABELS)
def test_encoders_of_images(tmp_path, name):
    saved(tmp_path, *test_image_models.LABELS[name])
    agrees(tmp_path, "label")


@pytest.mark.parametrize("name", test_image_text_models.BOTH)
def test_encoders_of_images_and_texts(tmp_path, name):
    saved(tmp_path, *test_image_text_models.BOTH[name])
    agrees(tmp_path, "label")
