"""Draw the comparison: bars for closed loops, lines for open ones."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.peers.measuring import OFFERED_PER_S, closed_name, open_name
from benchmarks.peers.tables import US, case_name
from benchmarks.peers.workload import MLP, SLOW, WAIT, Workload
from benchmarks.report import Row, find

mpl.use("svg")
# Without these, every run would write another file for the same figures.
mpl.rcParams.update({"svg.hashsalt": "shoal", "svg.fonttype": "none", "font.family": "sans-serif"})
OURS, THEIRS, LINE = "#0b7285", "#b8c4cc", "#c92a2a"
MARKERS = "ov^sDPXd"


def draw(rows: Sequence[Row], peers: Sequence[str], subtitle: str, path: Path) -> None:
    """Write the picture as SVG."""
    figure = Figure(figsize=(12, 4.4), layout="constrained")
    wait, mlp, slow = figure.subplots(1, 3, width_ratios=(1, 1, 1.3))
    bars(wait, rows, peers, WAIT)
    bars(mlp, rows, peers, MLP)
    goodput(slow, rows, peers)
    figure.suptitle(subtitle, fontsize=9, color="#555555")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def bars(axes: Axes, rows: Sequence[Row], peers: Sequence[str], workload: Workload) -> None:
    """Draw requests per second at 64 and 256 connections, the slowest at the bottom."""
    rates = {p: [rate(rows, workload.name, p, n) for n in (64, 256)] for p in peers}
    order = sorted(peers, key=lambda peer: max(rates[peer]))
    for index, peer in enumerate(order):
        color = OURS if peer == US else THEIRS
        axes.barh(index + 0.2, rates[peer][1], 0.38, color=color)
        axes.barh(index - 0.2, rates[peer][0], 0.38, color=color, alpha=0.6)
    axes.set_yticks(range(len(order)), order)
    if ceiling_per_s := workload.ceiling_per_s():
        axes.axvline(ceiling_per_s, color=LINE, linestyle="--", linewidth=1)
    axes.set_title(f"{workload.name}: requests/s at 256 (above)\nand 64 connections", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)


def rate(rows: Sequence[Row], workload: str, peer: str, connections: int) -> float:
    """Return requests per second, 0 where there are none."""
    return find(rows, case_name(workload, closed_name(connections), peer), "requests_per_s") or 0.0


def goodput(axes: Axes, rows: Sequence[Row], peers: Sequence[str]) -> None:
    """Draw answers within the objective against what was offered."""
    ceiling_per_s = SLOW.ceiling_per_s()
    ideal = sorted([0.0, ceiling_per_s, *map(float, OFFERED_PER_S)])
    axes.plot(ideal, [min(x, ceiling_per_s) for x in ideal], color=LINE, linestyle="--", linewidth=1, label="possible")
    for marker, peer in zip(MARKERS, peers, strict=False):
        points = [(x, find(rows, case_name(SLOW.name, open_name(x), peer), "in_time_per_s")) for x in OFFERED_PER_S]
        known = [(x, y) for x, y in points if y is not None]
        width, color = (2.5, OURS) if peer == US else (1.2, None)
        axes.plot([x for x, _ in known], [y for _, y in known], marker=marker, linewidth=width, color=color, label=peer)
    axes.set_xlabel("offered requests/s (Poisson)")
    axes.set_title("slow: answers within 100 ms, per second", fontsize=10)
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.spines[["top", "right"]].set_visible(False)
