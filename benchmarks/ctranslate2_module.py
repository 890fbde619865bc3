"""CTranslate2 with the settings that all of its benchmarks use."""

from __future__ import annotations

import os
from typing import Any


def import_ctranslate2() -> Any:
    """Imports CTranslate2 with MKL on every processor: on AMD's it would choose oneDNN, which takes
    three times as long in fp32. Its threads sleep between products, as they do by default. Where
    they spin (OMP_WAIT_POLICY=active), few texts in int8 take less time on some machines, but many
    take more, and so do those in fp32: MKL has threads of its own."""
    os.environ["CT2_USE_MKL"] = "1"  # read at the first import
    import ctranslate2

    return ctranslate2
