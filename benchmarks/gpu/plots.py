"""Draw the share of the bare loop's rate by the number of clients."""

import re
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.report import Row

mpl.use("svg")
# Without these, every run would write another file for the same figures.
mpl.rcParams.update({"svg.hashsalt": "shoal", "svg.fonttype": "none", "font.family": "sans-serif"})
MARKERS = "ov^sDPXd"
BOUND, LINE = 0.95, "#c92a2a"
CLOSED = re.compile(r"(?P<case>\w+), (?P<clients>\d+) clients?")


def draw(rows: Sequence[Row], subtitle: str, path: Path) -> None:
    """Write the picture as SVG: rates at the left, latencies at the right."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    rates, latencies = figure.subplots(1, 2)
    lines(rates, rows, "share_of_loop")
    rates.axhline(BOUND, color=LINE, linestyle="--", linewidth=1)
    rates.set_title("rows per second, as a share of the bare loop", fontsize=10)
    lines(latencies, rows, "p99_ms")
    latencies.set_yscale("log")
    latencies.set_title("99th percentile of the response time, ms", fontsize=10)
    latencies.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.suptitle(subtitle, fontsize=9, color="#555555")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def lines(axes: Axes, rows: Sequence[Row], quantity: str) -> None:
    """Draw one line for each model."""
    drawn = by_clients(rows, quantity)
    for marker, (case, points) in zip(MARKERS, drawn.items(), strict=False):
        axes.plot([x for x, _ in points], [y for _, y in points], marker=marker, label=case)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({clients for points in drawn.values() for clients, _ in points}))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("clients")
    axes.spines[["top", "right"]].set_visible(False)


def by_clients(rows: Sequence[Row], quantity: str) -> dict[str, list[tuple[int, float]]]:
    """Return a quantity by number of clients, for each model without an objective."""
    found: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if (match := CLOSED.fullmatch(row.case)) and quantity in row.values:
            found.setdefault(match["case"], []).append((int(match["clients"]), row.values[quantity].median))
    return found
