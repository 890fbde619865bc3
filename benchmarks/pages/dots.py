"""A plot of one table: a line per case and a marker per system, on a logarithmic scale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.gpu.arrivals_beside_vllm import SHARES
from benchmarks.pages.rows import committed
from benchmarks.records import Row, Rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colours of Okabe and Ito, each with its own marker, for readers and printers without colours.
OWN = ("#0072B2", "o")
OTHERS = (
    ("#D55E00", "s"),
    ("#009E73", "^"),
    ("#CC79A7", "D"),
    ("#E69F00", "v"),
    ("#56B4E9", "P"),
    ("#000000", "X"),
)
ROW_INCHES = 0.27


@dataclass(frozen=True)
class Dots:
    """The `chosen` rows of a benchmark, each drawn at the value of `key`."""

    title: str
    kind: str
    benchmark: str
    key: str
    unit: str
    chosen: Callable[[Row], bool] = lambda row: True

    def values(self, results: Path) -> dict[str, dict[str, float]]:
        """Returns system -> case -> value, ours first."""
        found: dict[str, dict[str, float]] = {"fusewire": {}}
        for row in self._rows(results):
            case = f"{row.get('model', '')} {row['case'].removeprefix('step ')}".strip()
            found.setdefault(row["system"], {})[case] = row[self.key]
        return found

    def describe(self, results: Path) -> str:
        return " ".join(
            f"{system}: " + ", ".join(f"{case} {value:g}" for case, value in of_case.items()) + "."
            for system, of_case in self.values(results).items()
        )

    def draw(self, results: Path) -> Figure:
        from matplotlib import ticker
        from matplotlib.figure import Figure

        values = self.values(results)
        cases = list(dict.fromkeys(case for of_case in values.values() for case in of_case))
        places = {case: -index for index, case in enumerate(cases)}
        figure = Figure(figsize=(9, 1.4 + ROW_INCHES * len(cases)), layout="constrained")
        axes = figure.subplots()
        marks = [OWN, *OTHERS]
        for (system, of_case), (color, marker) in zip(values.items(), marks, strict=False):
            y = [places[case] for case in of_case]
            size = 7 if system == "fusewire" else 5
            style = {"color": color, "marker": marker, "markersize": size, "linestyle": ""}
            axes.plot(list(of_case.values()), y, label=system, **style)
        axes.set(xscale="log", xlabel=f"{self.unit}; {self._where(results)}")
        axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
        axes.xaxis.set_minor_formatter(ticker.NullFormatter())
        axes.set_ylim(0.4 - len(cases), 0.6)
        axes.set_yticks(list(places.values()), cases)
        axes.set_title(self.title, loc="left", fontsize=11, fontweight="bold")
        axes.grid(alpha=0.3, which="both", axis="x")
        axes.grid(alpha=0.3, axis="y")
        figure.legend(loc="outside lower left", ncols=4, frameon=False)
        return figure

    def _rows(self, results: Path) -> Rows:
        rows = committed(results)[self.kind].get(self.benchmark, [])
        return [row for row in rows if self.chosen(row) and row.get(self.key) is not None]

    def _where(self, results: Path) -> str:
        row = self._rows(results)[-1]
        name = row["gpu"] if "gpu" in row else row["cpu"].partition(" (avx")[0]
        return f"{name}, {row['time'][:10]}"


def _part(name: str) -> Callable[[Row], bool]:
    return lambda row: row["part"] == name


DOTS = {
    "encoders_gpu": Dots(
        "A forward pass of an encoder on a GPU, fp16 (less is better)",
        "gpu",
        "encoder",
        "device_ms",
        "ms on the device",
        lambda row: "grid" in row["grids"],
    ),
    "encoders_cpu": Dots(
        "A forward pass of an encoder on a CPU, fp32 (less is better)",
        "cpu",
        "encoder",
        "median_ms",
        "ms",
    ),
    "generation_vllm": Dots(
        "A step of generation beside vLLM, fp16 (less is better)",
        "gpu",
        "generation_vllm",
        "step_ms",
        "ms a step, sequences x prompt",
    ),
    "arrivals_vllm": Dots(
        "99th percentile of the time to first token beside vLLM, fp16 (less is better)",
        "gpu",
        "arrivals_vllm",
        "first_token_ms_p99",
        "ms, at shares of vLLM's capacity",
        lambda row: row["share"] in SHARES,
    ),
    "generation_step": Dots(
        "A greedy step, fp16 (less is better)",
        "gpu",
        "generation",
        "device_ms",
        "ms on the device, batch x context",
        _part("step"),
    ),
    "generation_cpu": Dots(
        "A step of generation on a CPU, fp32 (less is better)",
        "cpu",
        "generation",
        "step_ms",
        "ms a step, sequences x prompt",
    ),
    "attention": Dots(
        "Attention, fp16 (more is better)",
        "gpu",
        "attention",
        "tflops",
        "TFLOP/s, heads x head_dim and longest sequence",
    ),
}
