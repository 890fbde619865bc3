"""What is left of tritonserver's words for people."""

from __future__ import annotations

from fusewire.serving.supervisor.triton_words import reason_in_words


def test_a_reason_is_the_model_s_own_words_alone() -> None:
    reason = (
        "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: "
        "TritonModelException: compute: got logits that are NaN; report the model;"
    )
    assert reason_in_words(reason) == "compute: got logits that are NaN; report the model"
