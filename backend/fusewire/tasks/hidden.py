"""The encoder's last hidden states, in the shape of the request."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusewire.errors import InvalidInput
from fusewire.models.task_heads import TaskHead, hidden_states
from fusewire.tasks.rows import Query
from fusewire.tasks.task import Reply, Task


class Hidden(Task):
    """`last_hidden_state` [n, longest, hidden]. With ids, `longest` is the width of the client's
    rows, and each token keeps its column; padding is zero."""

    name = "hidden"
    pairs = "optional"

    def check(self, query: Query) -> None:
        # Padding is not computed, but it is returned: a row of zeros for each padding token.
        width = max(windows[0].width for windows in query.tokens)
        if width > self.model.max_length:
            raise InvalidInput(
                "input_ids",
                f"rows of {width} with their padding",
                f"at most {self.model.max_length}",
                "leave out columns that are padding in every row",
            )

    def head(self) -> TaskHead:
        return hidden_states(self.model)

    def reply(self, query: Query, results: list[list[Any]]) -> Reply:
        rows = [windows[0] for windows in query.tokens]
        width = max(row.width for row in rows)
        states = np.zeros((len(rows), width, self.model.hidden_size), np.float32)
        for row, tokens in enumerate(rows):
            states[row, tokens.places] = results[row][0]
        return {"last_hidden_state": states}
