"""What `fusewire import --quantize` refuses to measure."""

from __future__ import annotations

from pathlib import Path

import pytest
from fusewire.cli.calibrate import calibrated
from fusewire.errors import ConfigurationError


def test_tensorflow_weights_are_sent_to_a_plain_import_first(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "tf_model.h5").touch()
    with pytest.raises(ConfigurationError, match="import the folder without --quantize, then"):
        calibrated(tmp_path, {"quantize": "int8", "task": "hidden"}, "cpu", None)
