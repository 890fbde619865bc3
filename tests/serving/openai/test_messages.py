"""Messages of chats that are refused before they are rendered."""

from __future__ import annotations

from typing import Any

import pytest
from fusewire.errors import InvalidInput
from fusewire.serving.openai.generation_bodies import ChatRequest


@pytest.mark.parametrize(
    "content", ["ab\ud800", [{"type": "text", "text": "ab\ud800"}]], ids=["text", "parts"]
)
def test_a_lone_surrogate_is_named_with_its_message(content: Any) -> None:
    messages = [{"role": "system", "content": "é🎉"}, {"role": "user", "content": content}]
    words = r"^content: got a lone surrogate at 2 in message 1, wanted text; send valid Unicode"
    with pytest.raises(InvalidInput, match=words):
        ChatRequest.model_validate({"model": "any", "messages": messages})
