"""What passes, and what programs read."""

from __future__ import annotations

import json
import math

from fusewire.parity import Difference, Floors, Parity

FOUND = {"embedding": Difference(0.5, 0.5, math.nan, 1.0)}


def test_json_has_no_word_for_what_is_no_number():
    found = Parity("A", "embed", "float32", "fp32", 1, 1, FOUND, {}, Floors(), spearman=math.inf)
    read = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert read["differences"]["embedding"]["mean_cosine"] is None
    assert read["spearman"] is None
    assert read["passed"] is True


def test_a_tolerance_that_is_no_number_lets_nothing_pass():
    allowed = {"embedding": math.nan}
    assert not Parity("A", "embed", "float32", "fp32", 1, 1, FOUND, allowed, Floors()).passed
