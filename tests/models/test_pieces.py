"""On a CPU a token's logits have the same bits however its text is split into steps, and whatever
else these compute."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire.models import load_decoder
from fusewire.models.registry import DECODERS
from fusewire.placement import Placement

from tests.models.paged_texts import logits_in_pieces
from tests.models.tiny_decoders import LONGEST, random_ids, tiny_decoder
from tests.places import CPU_TARGETS

LENGTHS = (LONGEST, 33, 5)


@pytest.mark.parametrize("place", CPU_TARGETS, indirect=True)
@pytest.mark.parametrize("model_type", DECODERS)
def test_a_text_in_pieces_has_the_bits_of_the_whole(tmp_path, place: Placement, model_type):
    tiny_decoder(tmp_path, model_type)
    model, texts = load_decoder(tmp_path, place), random_ids(LENGTHS)
    whole = [logits_in_pieces(model, [text], most=None)[0] for text in texts]
    for most in (1, 3, 40):  # pieces of a few rows, and of whole blocks
        for got, wanted in zip(logits_in_pieces(model, texts, most), whole, strict=True):
            np.testing.assert_array_equal(got, wanted)
