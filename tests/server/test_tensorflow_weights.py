"""Models imported from TensorFlow answer as from safetensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from fusewire.serving.config import Deployment
from fusewire.serving.repository import import_folder

from tests.server.asking import Asker, ids
from tests.weights.tensorflow.genuine import unpacked


def test_answers_are_equal_to_those_of_safetensors(
    asker: Asker, repository: Path, tmp_path: Path, device: str
) -> None:
    folder = unpacked(tmp_path) / "bert"
    answers = []
    for kind in ("torch", "h5", "tf1", "tf2"):
        import_folder(
            folder / kind,
            repository,
            name=f"from-{kind}",
            settings={"task": "hidden", "dtype": "float32"},
            deployment=Deployment(device=device),
        )
        asker.server.load(f"from-{kind}")
        answers.append(asker.ask(f"from-{kind}", ids([5, 6, 7]))["last_hidden_state"])
        asker.server.unload(f"from-{kind}")
    assert np.abs(answers[0]).max() > 0.1
    for answer in answers[1:]:
        np.testing.assert_array_equal(answer, answers[0])
