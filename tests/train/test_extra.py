"""What training says where its extra is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import sys
sys.modules[{package!r}] = None
try:
    import fusewire.train
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_without_a_package_of_the_extra_the_remedy_is_named(package: str) -> None:
    program = WITHOUT.format(package=package)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.startswith(f"ConfigurationError {package}: got no such package"), done
    assert "pip install 'fusewire[train]'" in done.stdout
