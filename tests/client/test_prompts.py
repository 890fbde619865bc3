"""What a client takes as a prompt, before anything is sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fusewire_client import InvalidArgument
from fusewire_client.prompts import prompt_inputs


@pytest.mark.parametrize(
    ("prompt", "remedy"),
    [
        (3, "give a text, or token ids as ids=…"),
        ([3, 4], "give a text, or token ids as ids=…"),
        (np.array([3, 4]), "give a text, or token ids as ids=…"),
        (b"3", "decode it"),
        ([b"3"], "decode it"),
    ],
)
def test_what_is_no_text_has_its_remedy(prompt: Any, remedy: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^prompt.*: got .+, wanted str; {remedy}$"):
        prompt_inputs(prompt, None)


@pytest.mark.parametrize("ids", [[[1, 2], [3, 4]], [[1, 2, 3], [4]], ["a"], [True], [1.0], 3])
def test_what_is_no_list_of_ids_is_refused(ids: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^ids: got .+, wanted a flat list of integers"):
        prompt_inputs(None, ids)
