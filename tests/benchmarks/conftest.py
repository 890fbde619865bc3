from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def _gradients_of_others() -> Iterator[None]:
    """Benchmarks turn torch's gradients off for their process, which here has other tests too."""
    with torch.enable_grad():
        yield
