"""In 16 bits a decoder is as near to transformers in fp32 as transformers itself is in 16 bits."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire.models import load_decoder
from fusewire.models.registry import DECODERS
from fusewire.placement import Placement

from tests import tolerance
from tests.models.paged_texts import logits_in_pieces
from tests.models.tiny_decoders import random_ids, tiny_decoder, transformers_logits
from tests.places import GPU_HALVES, TORCH_DTYPES

pytestmark = pytest.mark.parametrize("place", GPU_HALVES, indirect=True)


@pytest.mark.parametrize("most", [None, 1], ids=["whole", "tokens"])
@pytest.mark.parametrize("model_type", DECODERS)
def test_logits_are_as_right_as_those_of_transformers(tmp_path, place: Placement, model_type, most):
    reference = tiny_decoder(tmp_path, model_type).to(place.device)
    sequences = random_ids((1, 9, 33, 64))
    truth = np.concatenate(transformers_logits(reference, sequences))
    rounded = transformers_logits(reference.to(TORCH_DTYPES[place.dtype]), sequences)
    theirs = float(np.abs(np.concatenate(rounded) - truth).max())
    ours = np.concatenate(logits_in_pieces(load_decoder(tmp_path, place), sequences, most))
    allowed = tolerance.granted(theirs, float(np.abs(truth).max()), place.dtype)
    assert np.abs(ours - truth).max() <= allowed
