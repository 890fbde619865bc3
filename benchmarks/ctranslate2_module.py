"""CTranslate2 as it is fastest here."""

from __future__ import annotations

import os
from typing import Any


def import_ctranslate2() -> Any:
    """Imports CTranslate2 with MKL on every processor: on AMD's it would choose oneDNN, which takes
    three times as long in fp32. And with threads that spin between its products: waking them can
    take longer than a short product does."""
    # Both are read at the first import.
    os.environ |= {"CT2_USE_MKL": "1", "OMP_WAIT_POLICY": "active"}
    import ctranslate2

    return ctranslate2
