"""Other processes import the same modules as this one."""

from __future__ import annotations

import sys
from pathlib import Path

import fusewire
import pytest
from fusewire.import_path import import_path

OWN = str(Path(fusewire.__file__).parent.parent.absolute())


def test_the_order_is_that_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), "/nowhere", OWN, str(tmp_path)])
    assert import_path() == [str(tmp_path), OWN]


def test_a_package_of_the_working_folder_is_found_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", ["", str(tmp_path)])
    assert import_path() == [OWN, str(tmp_path)]
