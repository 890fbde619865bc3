"""The models of a service: tiny ones, so that what is seen is the server's own work."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.clients import ENCODER, GENERATOR
from tests.reference import tiny_checkpoint
from tests.server.test_generate import slow_folder


def sources(folder: Path) -> list[str]:
    """An encoder and a generator of random weights, made in this folder, as `serve` takes them."""
    tiny_checkpoint(folder / ENCODER, "bert", "embed")
    (folder / GENERATOR).mkdir()
    slow_folder(folder / GENERATOR)
    return [f"{ENCODER}={folder / ENCODER}", f"{GENERATOR}={folder / GENERATOR}"]
