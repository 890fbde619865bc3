"""`fusewire doctor --costs`: the cost of a model's micro-batches on this machine."""

from __future__ import annotations

import json

from rich.table import Table

from fusewire.cli.console import out
from fusewire.errors import ConfigurationError

_WIDTH = 40  # characters of the plot's longest bar


def show(folder: str, device: str, *, as_json: bool) -> None:
    """Loads the folder, measures it as serving does, and prints a table with a bar for each size:
    nanoseconds per token. A flat plot means that this machine gains nothing from batching."""
    from fusewire.devices import one_device
    from fusewire.engine.encoder import EncoderEngine
    from fusewire.hub import model_folder
    from fusewire.models import read_config, tasks_of
    from fusewire.tasks.contract import GENERATING

    path = model_folder(folder)
    task = tasks_of(read_config(path))
    if task in GENERATING:
        raise ConfigurationError(
            f"costs: got a folder for {task}, wanted one of an encoder; give another"
        )
    engine = EncoderEngine(path, task, device=one_device(device))
    engine.measure_costs()
    costs = engine.costs
    if as_json:
        found = {
            "device": engine.model.place.device,
            "points": [{"tokens": tokens, "seconds": s} for tokens, s in costs.points],
            "seconds_per_square": costs.per_square,
            "efficient_tokens": costs.efficient_tokens,
        }
        out.print_json(json.dumps(found))
        return
    table = Table(box=None)
    for title in ("tokens", "ms", "ns/token"):
        table.add_column(title, justify="right")
    table.add_column("")
    per_token = [1e9 * seconds / tokens for tokens, seconds in costs.points]
    for (tokens, seconds), each in zip(costs.points, per_token, strict=True):
        bar = "#" * max(1, round(_WIDTH * each / max(per_token)))
        row = f"{tokens}", f"{1e3 * seconds:.3f}", f"{each:.0f}"
        table.add_row(*row, bar)
    out.print(table)
    if costs.per_square:
        longest = min(512, engine.max_length)
        more_ms = 1e3 * costs.per_square * longest**2
        out.print(f"attention of {longest} tokens: {more_ms:.3f} ms more")
    out.print(f"large enough to be efficient: {costs.efficient_tokens} tokens")
