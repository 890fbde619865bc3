"""The plots of docs/images. The SVG's description has the same values as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import generation_curves
from benchmarks.pages import speedups
from benchmarks.pages.dots import DOTS
from benchmarks.pages.rows import committed
from benchmarks.pages.speedups import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours are distinguishable with any colour vision. The background is opaque, so
# that text is legible on light and dark pages.
FASTER, SLOWER, INK, FAINT = "#0072B2", "#D55E00", "#222222", "#666666"
STYLE = {
    "svg.fonttype": "path",
    "svg.hashsalt": "fusewire",  # the same rows give the same file
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
}

SPEEDUPS = (
    "How many times as fast as the fastest alternative (generation: whole runs, prompts included)"
)


@dataclass(frozen=True)
class Picture:
    """`title` is its alternative text; `describe` returns its values as text."""

    title: str
    describe: Callable[[Path], str]
    draw: Callable[[Path], Figure]

    def write(self, results: Path, path: Path) -> Path:
        import matplotlib

        path.parent.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context(STYLE):
            described = {"Date": None, "Title": self.title, "Description": self.describe(results)}
            self.draw(results).savefig(path, metadata=described, facecolor="white")
        return path


def describe_speedups(results: Path) -> str:
    return " ".join(
        f"{group.title} ({group.hardware}): "
        + ", ".join(f"{each.case} {each.times:.2f} ({each.rival})" for each in group.speedups)
        + "."
        for group in speedups.groups(committed(results))
    )


def draw_speedups(results: Path) -> Figure:
    from matplotlib.figure import Figure

    groups = speedups.groups(committed(results))
    rows = (len(groups) + 1) // 2
    figure = Figure(figsize=(12, 3.6 * rows), layout="constrained")
    figure.suptitle(SPEEDUPS, fontsize=13)
    grid = list(figure.subplots(rows, 2, squeeze=False).flat)
    for axes, group in zip(grid, groups, strict=False):
        _bars(axes, group)
    for axes in grid[len(groups) :]:
        axes.set_axis_off()
    return figure


def _bars(axes: Axes, group: Group) -> None:
    times = [each.times for each in group.speedups]
    places = range(len(times))
    axes.barh(places, times, color=[FASTER if each >= 1 else SLOWER for each in times])
    for place, each in zip(places, group.speedups, strict=True):
        label = f" {each.times:.2f} x {each.rival}"
        axes.text(max(1.0, each.times), place, label, va="center", fontsize=9)
    axes.axvline(1.0, color=INK, linewidth=1)
    axes.set_yticks(places, [each.case for each in group.speedups])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.7 * max(times))  # room for the names
    axes.set_title(group.title, loc="left", fontsize=11, fontweight="bold")
    axes.set_xlabel(group.hardware, color=FAINT, fontsize=9)


def _arrivals(results: Path) -> list[dict]:
    return committed(results)["gpu"][generation_curves.BENCHMARK]


def describe_arrivals(results: Path) -> str:
    rows = _arrivals(results)
    points = (
        f"{row['policy']} at {row['share']:.0%} load: {row['tokens_per_s']:.0f} tokens/s, time to "
        f"first token p99 {row['first_token_ms_p99']:.0f} ms"
        for row in rows
    )
    return f"{rows[0]['model']}, {rows[0]['gpu']}: " + "; ".join(points) + "."


def draw_arrivals(results: Path) -> Figure:
    return generation_curves.figure(_arrivals(results))


PICTURES = {
    "results": Picture(SPEEDUPS, describe_speedups, draw_speedups),
    "arrivals": Picture(
        "Time to first token and time between tokens over throughput, continuous batching and "
        "batches that run to completion",
        describe_arrivals,
        draw_arrivals,
    ),
    **{name: Picture(dots.title, dots.describe, dots.draw) for name, dots in DOTS.items()},
}
