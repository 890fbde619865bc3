"""The part of the demo that translates: with beam search and its scores, and many texts at once."""

from __future__ import annotations

import random
import time

from fusewire_client import Client
from numbers_and_dates import LANGUAGES, a_source, translated
from rich.console import Console
from rich.table import Table

SOURCES = ("347", "21000", "2031-05-09", "999999")
UNSURE = "700707"
TOGETHER = 64
SEARCH = {"model": "tiny-translator", "num_beams": 4}


def show_translations(console: Console, client: Client) -> None:
    console.print(
        "\n[bold]Translations by beam search[/]: from a Marian model of 0.4 million weights, "
        "trained here, for about a minute, on numbers and dates.\n"
    )
    table = Table("source", *(f"target_lang={language}" for language in LANGUAGES))
    columns = [client.translate(SOURCES, target_lang=language, **SEARCH) for language in LANGUAGES]
    for row in zip(SOURCES, *columns, strict=True):
        table.add_row(*row)
    console.print(table)
    table = Table("score", f"the four beams of {UNSURE}", "right")
    best = client.translate(UNSURE, target_lang="deu", n=4, details=True, **SEARCH)
    for found in best:
        right = "yes" if found.text == translated(UNSURE, "deu") else ""
        table.add_row(f"{found.score:.3f}", found.text, right)
    console.print(table)
    show_many(console, client)


def show_many(console: Console, client: Client) -> None:
    rng = random.Random(7)
    sources = [a_source(rng) for _ in range(TOGETHER)]
    began = time.perf_counter()
    found = client.translate(sources, target_lang="deu", **SEARCH)
    seconds = time.perf_counter() - began
    right = sum(
        text == translated(source, "deu") for source, text in zip(sources, found, strict=True)
    )
    console.print(
        f"{TOGETHER} texts at once, four beams each, in the same steps: {1e3 * seconds:.0f} ms; "
        f"{right} of {TOGETHER} are right"
    )
