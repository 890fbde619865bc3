"""In 16 bits a decoder is as close to transformers in fp32 as transformers itself is in 16 bits."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire.models import load_decoder
from fusewire.models.registry import DECODERS
from fusewire.placement import Placement

from tests.models.paged_texts import logits_in_pieces
from tests.models.tiny_decoders import LONGEST, random_ids, tiny_decoder, transformers_logits
from tests.places import GPU_HALVES, TORCH_DTYPES
from tests.tolerance import allowed_error

pytestmark = pytest.mark.parametrize("place", GPU_HALVES, indirect=True)


@pytest.mark.parametrize("most", [None, 1], ids=["whole", "tokens"])
@pytest.mark.parametrize("model_type", DECODERS)
def test_logits_are_as_right_as_those_of_transformers(tmp_path, place: Placement, model_type, most):
    reference = tiny_decoder(tmp_path, model_type).to(place.device)
    sequences = random_ids((1, 9, 33, 64))
    truth = np.concatenate(transformers_logits(reference, sequences)).astype(np.float64)
    rounded = transformers_logits(reference.to(TORCH_DTYPES[place.dtype]), sequences)
    ours = np.concatenate(logits_in_pieces(load_decoder(tmp_path, place), sequences, most))
    allowed = allowed_error(truth, np.concatenate(rounded), place.dtype, LONGEST)
    assert not allowed.excess(ours)
