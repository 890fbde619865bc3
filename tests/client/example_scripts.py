"""The scripts of client/examples as modules, which import each other as those of a folder do."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

SCRIPTS = Path(__file__).parents[2] / "client/examples"


def example(name: str) -> ModuleType:
    sys.path.insert(0, str(SCRIPTS))
    try:
        return import_module(name)
    finally:
        sys.path.remove(str(SCRIPTS))
