"""The models of the overload benchmark and their requests: texts to embed, and prompts whose
answers have mixed lengths, drawn as in `generation_poisson`."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import random_bert
from benchmarks.encoder import minilm_folder
from benchmarks.overload_systems import LOADS, LONGEST_ANSWER, LONGEST_PROMPT
from benchmarks.overload_ways import Prompt
from benchmarks.served_requests import Texts

TEXTS = 256  # and number of prompts


class Given(NamedTuple):
    """A model and its requests."""

    name: str
    folder: Path
    texts: dict[str, list[Any]]  # by load
    tokens: dict[str, list[int]]  # of each text, or of each answer

    def work(self, load: str, weight: float) -> list[float]:
        """Returns the work of each request in tokens; a prompt's tokens count `weight` each."""
        texts, tokens = self.texts[load], self.tokens[load]
        if not LOADS[load].generates:
            return [float(each) for each in tokens]
        return [new + weight * len(each.ids) for each, new in zip(texts, tokens, strict=True)]


def prompt_weight(prompts: Sequence[Prompt], answers_per_s: float, prompts_per_s: float) -> float:
    """Returns the cost of a prompt's token, relative to a generated one. `answers_per_s`: the rate
    of mean answers in a closed loop; `prompts_per_s`: the rate where each prompt is answered by one
    token."""
    new = sum(each.new for each in prompts)
    read = sum(len(each.ids) for each in prompts)
    if prompts_per_s <= answers_per_s:
        raise RuntimeError(
            f"prompts: got {prompts_per_s:.1f}/s, wanted more than of whole answers, "
            f"{answers_per_s:.1f}/s; give the closed loop longer"
        )
    return new / read * answers_per_s / (prompts_per_s - answers_per_s)


@contextmanager
def encoded(random: bool) -> Iterator[Given]:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) if random else minilm_folder()
        if random:
            random_bert.write(folder, "MiniLM-L6")
        words = Texts(folder)
        found = {
            name: words.some(TEXTS, kind.least, kind.most)
            for name, kind in LOADS.items()
            if not kind.generates
        }
        texts = {name: given for name, (given, _) in found.items()}
        tokens = {name: [len(each) for each in ids] for name, (_, ids) in found.items()}
        name = "MiniLM-L6 (random weights)" if random else "MiniLM-L6"
        yield Given(name, folder, texts, tokens)


@contextmanager
def generated(random: bool) -> Iterator[Given]:
    """Yields a model with random weights, whatever `random` is."""
    with tempfile.TemporaryDirectory() as root:
        # In its own process, so that torch's memory is freed.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            name, prompts = pool.submit(_write, Path(root)).result()
        loads = [load for load, kind in LOADS.items() if kind.generates]
        tokens = [each.new for each in prompts]
        yield Given(
            f"{name} (random weights)",
            Path(root),
            dict.fromkeys(loads, prompts),
            dict.fromkeys(loads, tokens),
        )


def _write(root: Path) -> tuple[str, list[Prompt]]:
    from benchmarks.arrivals import ANSWER, PROMPT, requests
    from benchmarks.generation_poisson import SMALL
    from benchmarks.generation_served import folder_of
    from benchmarks.gpu.generation_models import Place

    if (PROMPT[2], ANSWER[2]) != (LONGEST_PROMPT, LONGEST_ANSWER):
        raise RuntimeError(f"lengths: got {PROMPT}, {ANSWER} of generation_arrivals")
    folder_of(root, SMALL, Place("cpu", "float32"))
    drawn = requests(1.0, 4.0 * TEXTS, SMALL.vocabulary)[:TEXTS]
    return SMALL.name, [Prompt(each.prompt, each.new) for each in drawn]
